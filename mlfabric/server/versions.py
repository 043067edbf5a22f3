"""The weights of one model as versions that readers pin: which buffer holds which, and where the next one goes.

Readers pin the current version and a pinned buffer is never written. A commit whose buffer nobody pins is made in
place, else in a free buffer, which becomes current. Buffers are allocated when first needed. A few are kept for the
next commits; those beyond are given back as soon as nobody reads them: there is never one more than the versions that
are read and the next one need. How many may be read at once is decided elsewhere
(:mod:`mlfabric.server.served_models`).

The lock is never held for long, so an event loop may acquire and release while a step runs in another thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from mlfabric.model.specs import ModelSpec
from mlfabric.server.model_images import Image

__all__ = ["Held", "Versions"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A pinned version of the weights: bit for bit the same until it is released, not to be used after that.

    Args:
        version: its number.
        image: its bytes, read-only.
    """

    version: int
    image: memoryview
    buffer: Image = field(repr=False)


class Versions:
    """The weight buffers of one model.

    Args:
        spec: of the model.
        kept: buffers that are kept once allocated, >= 2.
    """

    def __init__(self, spec: ModelSpec, kept: int) -> None:
        self.number = 0
        self.current: Image | None = None
        self._kept = kept
        self._name = spec.name
        self._layout = spec.layout
        self._buffers: list[Image] = []
        self._held: set[Held] = set()
        self._target: Image | None = None
        self._lock = threading.Lock()

    def install(self, weights: Image, number: int) -> None:
        """Begin with these weights."""
        with self._lock:
            self._buffers.append(weights)
            self.number, self.current = number, weights

    def acquire(self) -> Held | None:
        """Pin the current version, or return None while :meth:`can_acquire` is false."""
        with self._lock:
            current = self.current
            if current is None or not self._can_pin():
                return None
            current.pins += 1
            held = Held(version=self.number, image=current.data.toreadonly(), buffer=current)
            self._held.add(held)
            return held

    def release(self, held: Held) -> None:
        """Unpin a version; its image must not be read any more."""
        with self._lock:
            assert held in self._held, f"{self._name}: version {held.version} was released twice"
            self._held.remove(held)
            held.buffer.pins -= 1
            self._give_back()

    def _can_pin(self) -> bool:
        return self.current is not None and self._target is not self.current

    def _needed(self) -> int:
        """Return how many buffers the versions that are read and the next one need."""
        return max(self._kept, 1 + sum(1 for b in self._buffers if b.pins))

    def _give_back(self) -> None:
        """Let go of buffers that are neither kept nor needed."""
        idle = [b for b in self._buffers if not b.pins and b is not self.current and b is not self._target]
        for buffer in idle[: max(0, len(self._buffers) - self._needed())]:
            self._buffers.remove(buffer)

    def begin_commit(self) -> tuple[Image, Image]:
        """Return the current buffer, and that of the next version: the same if nobody reads it, else a free one."""
        with self._lock:
            source = self.current
            assert source is not None, f"{self._name}: a commit without weights"
            if not source.pins:
                self._target = source
                return source, source
            free = next((b for b in self._buffers if b is not source and not b.pins), None)
            if free is None:
                free = Image.zeros(self._layout)
                self._buffers.append(free)
            self._target = free
            return source, free

    def end_commit(self, target: Image, number: int) -> None:
        """Make what was written to ``target`` the current version."""
        with self._lock:
            self.current, self.number, self._target = target, number, None
            self._give_back()

    def allocated(self) -> tuple[int, int]:
        """Return how many buffers there are, and how many of them are beyond those that are kept."""
        with self._lock:
            return len(self._buffers), max(0, len(self._buffers) - self._kept)

    def needed(self) -> int:
        """Return how many buffers there may be now: those that are kept, and one for each further version."""
        with self._lock:
            return self._needed()
