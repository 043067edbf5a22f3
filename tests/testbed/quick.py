"""``mlfabric bench paper --quick`` as a process, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.testbed.hosts import testbed
from mlfabric.errors import UnavailableError
from tests.testbed.digits import HAS_DIGITS, NO_DIGITS

__all__ = ["begin_quick", "skip_without_hosts"]


def skip_without_hosts() -> None:
    """Skip where no hosts can be made, or where there is nothing to train on."""
    if not HAS_DIGITS:
        pytest.skip(NO_DIGITS)
    try:
        with testbed(["a"], link_bps=10_000_000):
            pass
    except UnavailableError as error:
        pytest.skip(f"no network namespaces here: {error}")


def begin_quick(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the command; its files, temporary ones too, are in a folder."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    command = [sys.executable, "-m", "mlfabric", "bench", "paper", "--quick", "--results", str(folder / "runs")]
    command += ["--json", str(folder / "paper.json"), "--report", str(folder / "report"), *options]
    environment = os.environ | {"NO_COLOR": "1", "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
