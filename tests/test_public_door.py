"""The public door: what ``import mlfabric`` offers is there, is documented, and takes only our own name."""

from __future__ import annotations

import inspect
from importlib import metadata

import pytest

import mlfabric


def test_the_public_door_lists_its_names_once() -> None:
    assert len(mlfabric.__all__) == len(set(mlfabric.__all__))


@pytest.mark.parametrize("name", sorted(n for n in mlfabric.__all__ if not n.startswith("__")))
def test_every_public_class_and_function_says_what_it_does(name: str) -> None:
    offered = getattr(mlfabric, name)
    if inspect.isclass(offered) or inspect.isroutine(offered):
        assert inspect.getdoc(offered), f"mlfabric.{name} has no docstring"


def test_the_package_has_a_docstring_and_a_version() -> None:
    assert mlfabric.__doc__
    assert mlfabric.__version__.count(".") == 2


def test_an_installation_adds_exactly_one_import_name() -> None:
    tops = {name for name, owners in metadata.packages_distributions().items() if "mlfabric" in owners}
    assert tops <= {"mlfabric"}


def test_an_installed_version_is_the_source_s_version() -> None:
    installed = [d.version for d in metadata.distributions(name="mlfabric")]
    assert set(installed) <= {mlfabric.__version__}
