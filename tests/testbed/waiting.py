"""Waiting for what will happen, in tests; and who still runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

PATIENCE_S = 60.0


def wait_until(holds: Callable[[], bool], what: str, every_s: float = 0.01) -> None:
    """Wait until a condition holds, which is looked at every so often."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, f"waited {PATIENCE_S} s in vain: {what}"
        time.sleep(every_s)


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_in(namespaces: Sequence[str]) -> list[int]:
    """Return the processes that run in some namespaces."""
    inodes = set()
    found = []
    for name in namespaces:
        with suppress(OSError):
            inodes.add(os.stat(f"/run/netns/{name}").st_ino)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                found.append(int(entry))
    return found


def namespaces_of(pid: int) -> list[str]:
    """Return the names of the namespaces that a process has made."""
    return [name for name in os.listdir("/run/netns") if name.startswith(f"mf-{pid}-")]
