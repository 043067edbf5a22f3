"""Epochs of schedulers and servers, kept on disk.

A scheduler's epoch may never be given twice, also not by a process that dies before it has done anything else. A
server that resumes from an older checkpoint must show which epoch it, or a former process, was in last. So each epoch
is written down, to outlive a crash of the host, before it begins.
"""

from __future__ import annotations

from pathlib import Path

from mlfabric.errors import FabricError
from mlfabric.shell.synced_files import replace_synced, sync_directory

__all__ = ["begin_epoch", "last_epoch", "note_epoch"]


def begin_epoch(path: Path, least: int) -> int:
    """Return an epoch that was never begun with this file, and keep it there.

    Args:
        path: of the file that the last epoch is kept in; it need not exist.
        least: the epoch is not below this.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    epoch = max(least, last_epoch(path) + 1)
    note_epoch(path, epoch)
    return epoch


def last_epoch(path: Path) -> int:
    """Return the epoch in this file, -1 if there is none.

    Raises:
        FabricError: as in :func:`begin_epoch`.
    """
    try:
        return int(path.read_text().split()[0]) if path.exists() else -1
    except (OSError, ValueError, IndexError) as error:
        raise _unkept(path, error) from error


def note_epoch(path: Path, epoch: int) -> None:
    """Keep an epoch that a server begins.

    Args:
        path: as in :func:`begin_epoch`; its folder is made if there is none.
        epoch: which.

    Raises:
        FabricError: as in :func:`begin_epoch`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(path, lambda file: file.write(f"{epoch}\n".encode()))
        sync_directory(path.parent)
    except OSError as error:
        raise _unkept(path, error) from error


def _unkept(path: Path, error: Exception) -> FabricError:
    return FabricError(f"the epoch could not be kept in {path}: {error}; check its content, free space and rights")
