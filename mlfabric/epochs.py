"""Epochs of schedulers and servers, kept on disk: none is ever begun twice.

A version is a server epoch and a number; a transfer's place in the order begins with the scheduler's epoch. Neither may
be given twice, also not by a process that dies before it has done anything else. So each epoch is written down, to
outlive a crash of the host, before it begins. Beside it stands the last one for which nothing counts that was computed
before it, where there was one: who goes on from what is older must not take versions of before for its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from mlfabric.errors import FabricError

__all__ = ["begin_epoch", "clean_epoch", "note_epoch"]


def begin_epoch(path: Path, least: int) -> int:
    """Return an epoch that was never begun with this file, and keep it there.

    Args:
        path: of the file that the last epoch is kept in; it need not exist.
        least: the epoch is not below this.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    last, clean = _noted(path)
    epoch = max(least, last + 1)
    _note(path, epoch, clean)
    return epoch


def clean_epoch(path: Path) -> int:
    """Return the last epoch in this file for which nothing counts that was computed before it, 0 if there was none.

    Raises:
        FabricError: as in :func:`begin_epoch`.
    """
    return _noted(path)[1]


def note_epoch(path: Path, epoch: int, clean: int) -> None:
    """Keep an epoch that was begun because the scheduler said so, unless a greater one is kept there.

    Args:
        path: as in :func:`begin_epoch`; its folder is made if there is none.
        epoch: that was begun.
        clean: the last one for which nothing counts that was computed before it; 0 if there was none.

    Raises:
        FabricError: as in :func:`begin_epoch`.
    """
    last, cleared = _noted(path)
    if epoch > last or clean > cleared:
        _note(path, max(epoch, last), max(clean, cleared))


def _noted(path: Path) -> tuple[int, int]:
    """Return the last epoch, and the last one that kept nothing."""
    try:
        last, clean = ([int(word) for word in path.read_text().split()] + [0])[:2] if path.exists() else (-1, 0)
    except (OSError, ValueError) as error:
        raise _unkept(path, error) from error
    return last, clean


def _note(path: Path, epoch: int, clean: int) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w") as file:
            file.write(f"{epoch} {clean}\n" if clean else f"{epoch}\n")
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
