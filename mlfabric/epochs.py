"""Epochs of schedulers and servers, kept on disk: none is ever begun twice.

A version is a server epoch and a number; a transfer's place in the order begins with the scheduler's epoch. Neither may
be given twice, also not by a process that dies before it has done anything else. So each epoch is written down, to
outlive a crash of the host, before it begins.
"""

from __future__ import annotations

import os
from pathlib import Path

from mlfabric.errors import FabricError

__all__ = ["begin_epoch", "note_epoch"]


def begin_epoch(path: Path, least: int) -> int:
    """Return an epoch that was never begun with this file, and keep it there.

    Args:
        path: of the file that the last epoch is kept in; it need not exist.
        least: the epoch is not below this.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    epoch = max(least, _noted(path) + 1)
    _note(path, epoch)
    return epoch


def note_epoch(path: Path, epoch: int) -> None:
    """Keep an epoch that was begun because the scheduler said so, unless a greater one is kept there.

    Args:
        path: as in :func:`begin_epoch`; its folder is made if there is none.
        epoch: that was begun.

    Raises:
        FabricError: as in :func:`begin_epoch`.
    """
    if epoch > _noted(path):
        _note(path, epoch)


def _noted(path: Path) -> int:
    try:
        return int(path.read_text()) if path.exists() else -1
    except (OSError, ValueError) as error:
        raise _unkept(path, error) from error


def _note(path: Path, epoch: int) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unkept(path, error) from error


def _unkept(path: Path, error: Exception) -> FabricError:
    return FabricError(f"the epoch could not be kept in {path}: {error}; check its content, free space and rights")
