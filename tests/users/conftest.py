"""What a user does: scripts of their own, the ``mlfabric`` command, real processes; nothing of the inside.

Tests here import ``mlfabric`` at most, and its public names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.processes import Start, fabric_up

Job = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keep a fabric up for all tests here; gives the scheduler's address."""
    with fabric_up(tmp_path_factory.mktemp("fabric")) as address:
        yield address


@pytest.fixture
def job(start: Start, fabric: str) -> Job:
    """Run a script's text to its end with ``mlfabric run`` in the fabric of all tests; gives exit code, all output."""
    return _job(start, fabric)


@pytest.fixture
def lone_job(start: Start, free_port: int) -> Job:
    """Run a script's text as ``job`` does, but with a fabric of its own, which goes by the options."""
    return _job(start, f"127.0.0.1:{free_port}")


def _job(start: Start, scheduler: str) -> Job:
    def run(script: str, *options: str, workers: int = 2, **environment: str) -> tuple[int, str]:
        command = ("run", "-n", str(workers), "--scheduler", scheduler, *options, "SCRIPT")
        return start(*command, script=script, **environment).finish()

    return run
