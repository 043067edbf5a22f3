"""Numbers that only grow, kept on disk: a scheduler's term, the epoch of a server's model.

A term may never be given twice, also not by a process that dies before it has done anything else. A server that
resumes from an older checkpoint must show which epoch it, or a former process, was in last. So each number is written
down, to outlive a crash of the host, before it counts.
"""

from __future__ import annotations

from pathlib import Path

from mlfabric.errors import FabricError
from mlfabric.shell.synced_files import replace_synced, sync_directory

__all__ = ["keep_number", "last_number", "next_number"]


def next_number(path: Path, least: int) -> int:
    """Return a number above all that this file has kept, and keep it there.

    Args:
        path: of the file that the last one is kept in; it need not exist.
        least: the number is not below this.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    number = max(least, last_number(path) + 1)
    keep_number(path, number)
    return number


def last_number(path: Path) -> int:
    """Return the number in this file, -1 if there is none.

    Raises:
        FabricError: as in :func:`next_number`.
    """
    try:
        return int(path.read_text().split()[0]) if path.exists() else -1
    except (OSError, ValueError, IndexError) as error:
        raise _unkept(path, error) from error


def keep_number(path: Path, number: int) -> None:
    """Keep a number in place of the last one.

    Args:
        path: as in :func:`next_number`; its folder is made if there is none.
        number: which.

    Raises:
        FabricError: as in :func:`next_number`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(path, lambda file: file.write(f"{number}\n".encode()))
        sync_directory(path.parent)
    except OSError as error:
        raise _unkept(path, error) from error


def _unkept(path: Path, error: Exception) -> FabricError:
    return FabricError(
        f"the term or epoch could not be kept in {path}: {error}; check its content, free space and rights"
    )
