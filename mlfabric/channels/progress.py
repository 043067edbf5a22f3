"""How much of a buffer is ready, and waiting for more of it.

Used inside one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Filling", "Progress", "ProgressOfPieces"]


class Progress:
    """How many bytes of a buffer, counted from its beginning, are ready; it only grows, or fails for good.

    Args:
        size_bytes: of the whole buffer, >= 0.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._ready_bytes = 0
        self._error: Exception | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def ready_bytes(self) -> int:
        """Bytes that are ready."""
        return self._ready_bytes

    @property
    def is_complete(self) -> bool:
        """Everything is ready, and nothing failed."""
        return self._ready_bytes == self.size_bytes and self._error is None

    def advance(self, to_bytes: int) -> None:
        """Say that the first ``to_bytes`` bytes are ready; without effect after a failure."""
        assert self._ready_bytes <= to_bytes <= self.size_bytes, (
            f"{self._ready_bytes} of {self.size_bytes} bytes were ready, told that {to_bytes} are"
        )
        if self._error is None and to_bytes > self._ready_bytes:
            self._ready_bytes = to_bytes
            self._wake()

    def fail(self, error: Exception) -> None:
        """Say that no more will come and that what came is void; the first error stays."""
        if self._error is None:
            self._error = error
            self._wake()

    def check(self) -> None:
        """Raise the error that it failed with, if any."""
        if self._error is not None:
            raise self._error

    async def reached(self, n_bytes: int) -> int:
        """Wait until at least ``n_bytes`` bytes are ready, and return how many are.

        Args:
            n_bytes: 0 to ``size_bytes``.

        Raises:
            Exception: what it failed with.
        """
        assert n_bytes <= self.size_bytes, f"waiting for {n_bytes} bytes of {self.size_bytes}"
        if self._ready_bytes < n_bytes and self._error is None:
            enough = asyncio.get_running_loop().create_future()

            def look() -> None:
                if not enough.done() and (self._ready_bytes >= n_bytes or self._error is not None):
                    enough.set_result(None)

            with self.listening(look):
                await enough
        self.check()
        return self._ready_bytes

    @contextmanager
    def listening(self, changed: Callable[[], None]) -> Iterator[None]:
        """Call ``changed``, which must not raise, whenever more is ready or it has failed."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)

    def _wake(self) -> None:
        for changed in self._listeners:
            changed()


class Filling(Protocol):
    """A buffer that is being filled from its beginning on."""

    @property
    def payload(self) -> memoryview:
        """The whole buffer; only what is ready may be read."""

    @property
    def progress(self) -> Progress:
        """How much of it is ready."""


class ProgressOfPieces:
    """How much of some pieces of a growing buffer is ready, one after the other.

    Args:
        whole: how much of the buffer is ready.
        pieces: the first byte of each, and the byte after the last; in their order in the buffer.
    """

    def __init__(self, whole: Progress, pieces: Sequence[tuple[int, int]]) -> None:
        self.progress = Progress(sum(end - start for start, end in pieces))
        self._whole, self._pieces = whole, pieces

    @contextmanager
    def following(self) -> Iterator[None]:
        """Be as ready as the buffer is until the block ends."""
        with self._whole.listening(self._look):
            self._look()
            yield

    def _look(self) -> None:
        ready = self._whole.ready_bytes
        self.progress.advance(sum(min(end, ready) - start for start, end in self._pieces if start < ready))
