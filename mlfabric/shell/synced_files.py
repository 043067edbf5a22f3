"""Files that hold their old content or the new one, whole, whenever and however the writer ends. Shell-level."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace_synced", "sync_directory"]


def replace_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file aside, in the same directory, and rename it once it is on the disk.

    Only with :func:`sync_directory` after it the new name outlives a crash of the host.

    Args:
        path: of the file; there need not be one.
        write: writes the new content.

    Raises:
        OSError: it could not be written; what was there before is unchanged.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Let the names in a directory outlive a crash of the host.

    Raises:
        OSError: they may not.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
