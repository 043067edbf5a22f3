"""What processes that are forked from a worker's know of it, and what becomes of gRPC's handlers of forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORK = """
import os, sys
{first}
import mlfabric
from mlfabric.shell.forking import is_copy, tell_copies

class One:
    def in_a_copy(self):
        print("told", is_copy(), flush=True)

one, gone = One(), One()
tell_copies(one)
tell_copies(gone)
del gone
print("here", is_copy(), flush=True)
for _ in range(2):
    copy = os.fork()
    if not copy:
        os._exit(0)
    os.waitpid(copy, 0)
print("variable", os.environ["GRPC_ENABLE_FORK_SUPPORT"])
"""


def forked(first: str, **environment: str) -> tuple[list[str], str]:
    """Run a process that forks two, with something before it imports mlfabric; return what came and its log."""
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", FORK.format(first=first)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines(), done.stderr


def test_each_copy_is_told_for_what_is_still_there_and_the_original_is_not():
    out, log = forked("")
    assert out == ["here False", "told True", "told True", "variable 0"]
    assert not log


@pytest.mark.parametrize(
    ("environment", "times"), [({}, 1), ({"GRPC_ENABLE_FORK_SUPPORT": "1"}, 1), ({"GRPC_ENABLE_FORK_SUPPORT": "0"}, 0)]
)
def test_who_forks_with_grpc_s_handlers_on_is_warned_once(environment, times):
    _, log = forked("import grpc", **environment)
    assert log.count("had loaded gRPC before mlfabric: the copies may crash; import mlfabric first") == times
