"""Epochs of schedulers and servers, kept on disk: none is ever begun twice.

A version is a server epoch and a number; a transfer's place in the order begins with the scheduler's epoch. Neither may
be given twice, also not by a process that dies before it has done anything else. So each epoch is written down, to
outlive a crash of the host, before it begins.
"""

from __future__ import annotations

import os
from pathlib import Path

from mlfabric.errors import FabricError

__all__ = ["begin_epoch"]


def begin_epoch(path: Path, least: int) -> int:
    """Return an epoch that was never begun with this file, and keep it there.

    Args:
        path: of the file that the last epoch is kept in; it need not exist.
        least: the epoch is not below this.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        epoch = max(least, int(path.read_text()) + 1 if path.exists() else 0)
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
    except (OSError, ValueError) as error:
        raise FabricError(
            f"the epoch could not be kept in {path}: {error}; check its content, free space and rights"
        ) from error
    return epoch
