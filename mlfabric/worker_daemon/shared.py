"""Memory that a training process and the daemon beside it share: files in memory, mapped by both.

The training process makes segments, all of one family, and removes them; the daemon removes the family when that
process died before it could, including those that it was never told of.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import secrets
from pathlib import Path
from typing import Self

from mlfabric.errors import UnavailableError

__all__ = ["Segment"]

_DIRECTORY = Path("/dev/shm")
_PREFIX = "mlfabric-"


class Segment:
    """A mapped piece of shared memory."""

    def __init__(self, path: Path, mapping: mmap.mmap, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.buffer = memoryview(mapping)[:size_bytes]

    @classmethod
    def create(cls, size_bytes: int, family: str) -> Self:
        """Make a segment that no other process of this user's knows yet.

        Args:
            size_bytes: of the buffer; 0 is allowed.
            family: from :meth:`new_family`; those who know one segment can remove all of it.

        Raises:
            UnavailableError: there is no shared memory, or not that much.
        """
        path = _DIRECTORY / f"{_PREFIX}{family}.{secrets.token_hex(4)}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, max(1, size_bytes))
                return cls(path, mmap.mmap(descriptor, max(1, size_bytes)), size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UnavailableError(
                f"no {size_bytes} bytes of shared memory at {_DIRECTORY}: {error.strerror}"
            ) from error

    @classmethod
    def attach(cls, path: str, size_bytes: int) -> Self:
        """Map a segment that another process made.

        Raises:
            UnavailableError: it is not there, too small, or not a segment of ours.
        """
        where = Path(path)
        if where.parent != _DIRECTORY or "\0" in path or not where.name.startswith(_PREFIX):
            raise UnavailableError(f"{path!r} is no shared memory of mlfabric's; allowed: {_DIRECTORY}/{_PREFIX}...")
        try:
            descriptor = os.open(where, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_size < size_bytes:
                    raise UnavailableError(f"{path} is smaller than the {size_bytes} bytes announced")
                return cls(where, mmap.mmap(descriptor, max(1, size_bytes)), size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnavailableError(f"cannot map {path}: {error.strerror}") from error

    @staticmethod
    def new_family() -> str:
        """Return a name that no other family has."""
        return f"{os.getpid()}-{secrets.token_hex(8)}"

    def remove_family(self) -> None:
        """Remove the names of this segment and of all others of its family."""
        family = self.path.name.partition(".")[0]
        for path in _DIRECTORY.glob(f"{glob.escape(family)}.*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the name; the memory goes when nobody has it mapped any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
