"""Who still runs, and in which namespaces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress


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
