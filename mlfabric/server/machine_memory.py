"""How much memory the machine has for a server, so that a model which cannot fit is refused before anything is made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["machine_bytes"]

_CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes(container: Iterable[str] = _CONTAINER) -> int:
    """Return the memory that is built in, or less if a container of this process may have no more.

    Args:
        container: files with what a container may have, in bytes; what is missing, or no number, sets no limit.
    """
    built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([built_in, *(limit for path in container if (limit := _number_in(Path(path))))])


def _number_in(path: Path) -> int:
    """Return the number that a file holds, 0 if there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
