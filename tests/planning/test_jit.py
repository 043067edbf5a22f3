"""What is kept on disk of compiled functions is renewed when anything changes that it was made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlfabric.planning.fluid import jit

LOW = """
from mlfabric.jit import lean

STEP = {step}


@lean
def step(n):
    return n + STEP
"""
TOP = """
from mlfabric.jit import compiled, entry, is_cold, set_warm
from mlfabric import other
from mlfabric.low import (
    step,
)


@compiled
@entry
def twice(n):
    return step(n) + step(10)


before = is_cold()
print(before, twice(0), len(step.signatures))
set_warm()
"""


def test_a_change_of_a_constant_in_an_imported_file_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "mlfabric"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "other.py").touch()
    (package / "jit.py").write_text(Path(jit.__file__).read_text())
    (package / "top.py").write_text(TOP)

    def said(step: int) -> str:
        (package / "low.py").write_text(LOW.format(step=step))
        # Not the caches' own age: only the digest tells these apart.
        command = [sys.executable, "-c", "import mlfabric.top"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert said(1) == "True 12 1"
    assert said(1) == "False 12 0"
    assert said(2) == "True 14 1"


PAIR = """
from typing import NamedTuple


class Pair(NamedTuple):
    left: int
    right: int
"""
ADD = """
from mlfabric.jit import compiled, entry
from mlfabric.{module} import Pair


@compiled
@entry
def add(pair):
    return pair.left + pair.right


print(add(Pair(1, 2)))
"""


def test_what_an_earlier_version_kept_is_made_anew_if_its_types_have_another_place_now(tmp_path: Path) -> None:
    package = tmp_path / "mlfabric"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jit.py").write_text(Path(jit.__file__).read_text())
    for module, before in (("pair", None), ("couple", "pair")):
        (package / f"{module}.py").write_text(PAIR)
        if before:
            (package / f"{before}.py").unlink()
        (package / "adding.py").write_text(ADD.format(module=module))
        command = [sys.executable, "-c", "import mlfabric.adding"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "3\n"


def test_a_function_that_only_kernels_call_refuses_python_even_once_it_is_compiled(tmp_path: Path) -> None:
    package = tmp_path / "mlfabric"
    package.mkdir()
    for name, text in (("__init__", ""), ("other", ""), ("low", LOW.format(step=1)), ("top", TOP)):
        (package / f"{name}.py").write_text(text)
    (package / "jit.py").write_text(Path(jit.__file__).read_text())
    command = [sys.executable, "-c", "from mlfabric.top import step; step(1)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TypeError: step is called by kernels only" in done.stderr
