"""What doctor asks for is what the package asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from mlfabric.cli.checks import LEAST_PYTHON, LEAST_VERSIONS

PYPROJECT = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"


def test_doctor_wants_the_versions_that_pip_wants():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    asked = dict(re.findall(r"([\w-]+)>=(\d+\.\d+)", " ".join(project["dependencies"])))
    assert {name: ".".join(map(str, least)) for name, least in LEAST_VERSIONS.items()} == {
        name: asked[name] for name in LEAST_VERSIONS
    }
    assert project["requires-python"] == f">={'.'.join(map(str, LEAST_PYTHON))}"
