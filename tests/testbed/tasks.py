"""Functions that children of a launcher run in tests."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from benchmarks.testbed.processes import to_parent


def add(first: int, second: int) -> int:
    """Return a sum."""
    return first + second


def who() -> tuple[str, str, int]:
    """Return this host's name, the namespace's inode and the process id."""
    return socket.gethostname(), os.readlink("/proc/thread-self/ns/net"), os.getpid()


def fail(word: str) -> NoReturn:
    """Print a line and raise."""
    print(f"printed {word}")
    raise ValueError(f"raised {word}")


def crash() -> None:
    """Be killed by the kernel."""
    os.kill(os.getpid(), signal.SIGSEGV)


def unpicklable() -> object:
    """Return what cannot be sent."""
    return lambda: None


def print_and_wait(word: str) -> None:
    """Print a line, then wait."""
    print(word, flush=True)
    time.sleep(1e6)


def wait_for_ever(file: str) -> None:
    """Say that this runs, then wait; write a file when told to end."""
    try:
        to_parent().send(os.getpid())
        time.sleep(1e6)
    finally:
        Path(file).write_text("tidied up", encoding="utf-8")


def never_end() -> None:
    """Say that this runs, then wait, whatever it is told."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    to_parent().send(os.getpid())
    while True:
        time.sleep(1e6)


def threads() -> int:
    """Return how many threads a child begins with."""
    return len(os.listdir("/proc/self/task"))
