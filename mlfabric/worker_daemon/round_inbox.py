"""What has come to a worker of settled rounds, and waits until its training thread applies it. For both threads.

The daemon puts settled results in, in the order of their versions, and the state that a worker without the model has
fetched. The training thread takes them. It also gives the state to peers: a function that copies it, which the daemon
calls in a thread of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mlfabric.worker_daemon.dealt_bytes import put_in_order

__all__ = ["RoundInbox", "RoundResult", "StateImage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The sum that a settled round has made.

    Args:
        version: which version of the model it makes.
        workers: how many contributed.
        weight: the sum of their weights; see ``ReduceRequested``.
        rates: the means of their settings of each parameter group.
        total: its bytes as they travelled, in memory of its own; none if this worker has no part of it (gossip).
        ranges: the ranges of bytes in which they travelled; none if each byte is where it belongs.
    """

    version: int
    workers: int
    weight: int
    rates: tuple[float, ...]
    total: memoryview
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateImage:
    """Model and optimizer state of one version, as bytes; None if the worker's own goes on as that version."""

    version: int
    image: memoryview | None


class RoundInbox:
    """The inbox of one worker.

    Args:
        together: how many workers begin together, >= 1.
        copy_state: returns a copy of the present state; called in any thread.
        segments: over how many segments of a gradient each range of bytes is dealt out that travels (``dealt_bytes``).

    Attributes:
        news: called whenever something was put in, in the daemon's thread.
    """

    def __init__(self, together: int, copy_state: Callable[[], StateImage], segments: int = 1) -> None:
        self.together = together
        self.segments = segments
        self.copy_state = copy_state
        self.news: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._results: deque[RoundResult] = deque()
        self._spare: list[memoryview] = []
        self._state: Future[StateImage] | None = Future()

    # For the daemon

    def settled(self, result: RoundResult) -> None:
        """Put in the result of a settled round."""
        with self._lock:
            self._results.append(result)
        self.news()

    def state_begins(self) -> None:
        """Say that the state is fetched: results that wait are void. Who was told of one may still look at it."""
        with self._lock:
            self._results.clear()
            if self._state is None or self._state.done():
                self._state = Future()

    def state_came(self, state: StateImage) -> None:
        """Put in the state that was fetched, or the word that the worker's own goes on."""
        with self._lock:
            if self._state is not None and not self._state.done():
                self._state.set_result(state)

    def end(self, error: BaseException) -> None:
        """Say that nothing more will come."""
        with self._lock:
            if self._state is not None and not self._state.done():
                self._state.set_exception(error)

    # For both

    def buffer(self, size_bytes: int) -> memoryview:
        """Return memory of this size; whatever is in it."""
        with self._lock:
            for i, spare in enumerate(self._spare):
                if len(spare) == size_bytes:
                    return self._spare.pop(i)
        return memoryview(np.empty(size_bytes, dtype=np.uint8).data)

    @contextmanager
    def in_order(self, result: RoundResult) -> Iterator[memoryview]:
        """Give the bytes of a result, each where it belongs, while the block runs."""
        if self.segments == 1 or not result.ranges:
            yield result.total
            return
        ordered = self.buffer(len(result.total))
        put_in_order(result.total, ordered, result.ranges, self.segments)
        yield ordered
        self.give_back(ordered)

    def give_back(self, buffer: memoryview) -> None:
        """Take memory back that nobody uses any more."""
        with self._lock:
            self._spare.append(buffer)

    # For the training thread

    @property
    def is_empty(self) -> bool:
        """Whether no result and no state waits."""
        return not self._results and self._state is None

    def take(self) -> RoundResult | None:
        """Take the next result; None if none waits, or if a state is to be taken before."""
        with self._lock:
            return self._results.popleft() if self._results and self._state is None else None

    @property
    def coming(self) -> Future[StateImage] | None:
        """The state that is here or on its way; None if there is nothing to take."""
        return self._state

    def took(self, state: Future[StateImage]) -> None:
        """Say that a state that had come is taken."""
        with self._lock:
            if self._state is state:
                self._state = None
