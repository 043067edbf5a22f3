"""The server epochs of models, on disk beside their checkpoints.

A version is a server epoch and a number, and is never given twice. A server that dies before its next checkpoint and
begins again from the same one would give the same numbers again; so each epoch is written down before it begins.
"""

from __future__ import annotations

import os
from pathlib import Path

from mlfabric.errors import FabricError

__all__ = ["begin_epoch"]


def begin_epoch(path: Path, after: int) -> int:
    """Return an epoch that no server of this model has begun before, and keep it there.

    Args:
        path: of the file that the last epoch is kept in; it need not exist.
        after: the epoch of the checkpoint to go on from.

    Raises:
        FabricError: the file cannot be written (full disk, no right) or holds something else.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        epoch = max(after, int(path.read_text()) if path.exists() else 0) + 1
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
            f"the server epoch could not be kept in {path}: {error}; check its content, free space and rights"
        ) from error
    return epoch
