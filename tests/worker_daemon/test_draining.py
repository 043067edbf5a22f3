"""SIGTERM ends a worker's process in an orderly way; scripts and forked processes keep their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mlfabric.config import WorkerSettings
from mlfabric.worker_daemon.sigterm import drain_on_sigterm


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Begin with the system's way, and end with what was there before."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_handler_that_the_script_has_set_stays() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    drain_on_sigterm()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("script", [signal.SIG_DFL, signal.SIG_IGN], ids=["ours", "its own"])
def test_a_forked_process_has_no_handler_of_ours(script: signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, script)
    drain_on_sigterm()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if signal.getsignal(signal.SIGTERM) is script else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (signal.getsignal(signal.SIGTERM) is script) is (script is signal.SIG_IGN)


FORK_AND_END = """
import os, signal
from mlfabric.worker_daemon.sigterm import drain_on_sigterm

drain_on_sigterm()
for _ in range(200):
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # nobody else ends it if it did not hear
        while True:
            signal.pause()
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
"""


def test_a_process_that_is_told_to_end_as_soon_as_it_is_forked_dies() -> None:
    """Forked from a process that has loaded little: to copy one with all tests takes a hundred times as long."""
    subprocess.run([sys.executable, "-c", FORK_AND_END], check=True, timeout=100)


def test_other_threads_set_no_handler() -> None:
    thread = threading.Thread(target=drain_on_sigterm)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(("said", "drains"), [(None, True), ("", True), ("1", True), ("0", False), ("False", False)])
def test_the_environment_declines_it(said: str | None, drains: bool) -> None:
    environment = {} if said is None else {"MLFABRIC_DRAIN_ON_SIGTERM": said}
    assert WorkerSettings.from_environment(environment).drain_on_sigterm is drains
