"""What ``mlfabric`` offers is found in an interactive session."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def test_the_public_names_are_listed_completed_and_imported_by_a_star():
    script = """
import rlcompleter, sys, mlfabric
assert dir(mlfabric) == sorted(mlfabric.__all__), dir(mlfabric)
assert "torch" not in sys.modules, "listing loads nothing"
completer = rlcompleter.Completer({"mlfabric": mlfabric})
found = [completer.complete("mlfabric.re", i) for i in range(9)]
assert [f"mlfabric.{n}(" for n in dir(mlfabric) if n.startswith("re")] == [f for f in found if f], found
everything = {}
exec("from mlfabric import *", everything)
assert set(mlfabric.__all__) <= set(everything)
assert everything["wrap"] is mlfabric.wrap
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=100)
