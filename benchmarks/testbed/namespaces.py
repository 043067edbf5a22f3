"""Network namespaces: entering one, finding what runs in it, and names that say whose they are.

A name carries its owner's process id and the time at which that process began (a process id alone is used again), so
that whoever comes later can tell what a crashed owner has left behind.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["FOLDER", "enter", "entered", "kill_all_in", "leftovers", "owner_prefix", "set_host_name"]

FOLDER = Path("/run/netns")
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
_NAME = re.compile(r"mf-(\d+)-(\d+)-")
_LIBC = ctypes.CDLL(None, use_errno=True)


def owner_prefix() -> str:
    """Return what the names of this process' namespaces begin with."""
    pid = os.getpid()
    return f"mf-{pid}-{_began(pid)}-"


def leftovers() -> list[str]:
    """Return the namespaces whose owner has ended."""
    return [name for name in _names() if (found := _NAME.match(name)) and not _lives(*map(int, found.groups()))]


def _names() -> list[str]:
    return sorted(os.listdir(FOLDER)) if FOLDER.is_dir() else []


def _lives(pid: int, began: int) -> bool:
    return _began(pid) == began


def _began(pid: int) -> int | None:
    """Return when a process began, in ticks since boot; None if there is none, or it only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def enter(name: str) -> None:
    """Move the calling thread into a namespace.

    Raises:
        OSError: there is no such namespace, or the rights are lacking.
    """
    with (FOLDER / name).open("rb") as file:
        _checked(_LIBC.setns(file.fileno(), CLONE_NEWNET), name)


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Be in a namespace for as long as the block runs; sockets made in there stay there.

    Raises:
        OSError: as :func:`enter`.
    """
    with open("/proc/thread-self/ns/net", "rb") as before:
        enter(name)
        try:
            yield
        finally:
            _checked(_LIBC.setns(before.fileno(), CLONE_NEWNET), "the namespace before")


def set_host_name(name: str) -> None:
    """Give the calling process a host name of its own.

    Raises:
        OSError: the rights are lacking.
    """
    _checked(_LIBC.unshare(CLONE_NEWUTS), name)
    encoded = name.encode()
    _checked(_LIBC.sethostname(encoded, len(encoded)), name)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def kill_all_in(names: Collection[str]) -> int:
    """Kill whatever runs in some namespaces, except this process; return how many processes that were."""
    inodes = {(FOLDER / name).stat().st_ino for name in names if (FOLDER / name).exists()}
    killed = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    os.kill(int(entry), signal.SIGKILL)
                    killed += 1
    return killed
