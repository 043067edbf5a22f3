"""A stand-in for a server's parameter store and receive buffers: plain integers, and a strict eye on who may touch it.

The weights are one integer, an update's step another that no other update has; so the weights at the end tell which
updates are in them, each how often. The rules are the real store's: buffers are few, a pinned one is never written, a
step goes into the current buffer if nobody reads it, else into a free one.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import UpdateId

__all__ = ["Held", "ReceiveBuffers", "StoreDouble"]


@dataclass(slots=True, eq=False)
class _Buffer:
    value: int | None
    pins: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A pinned version, and what it was when it was pinned."""

    version: int
    value: int
    buffer: _Buffer


class StoreDouble:
    """The weights of one model; at most ``limit`` copies of them.

    Args:
        limit: copies that may be held.
    """

    def __init__(self, limit: int) -> None:
        self.version = 0
        self.log: list[UpdateId] = []
        self._limit = limit
        self._current: _Buffer | None = None
        self._buffers: list[_Buffer] = []
        self._step: tuple[UpdateId, _Buffer, int] | None = None

    @property
    def value(self) -> int:
        """The weights."""
        assert self._current is not None, "the model has no weights"
        assert self._current.value is not None, "the weights were looked at while a step was made in place"
        return self._current.value

    @property
    def pins(self) -> int:
        """How many gets hold a version."""
        return sum(buffer.pins for buffer in self._buffers)

    def initialise(self, value: int) -> None:
        """Take the first weights."""
        assert self._current is None, "the model was given weights twice"
        self._current = _Buffer(value)
        self._buffers.append(self._current)

    def begin(self, update: UpdateId, step: int) -> None:
        """Begin to apply an update."""
        assert self._step is None, f"{update} begun while {self._step} is applied"
        value, source = self.value, self._current
        assert source is not None, "the model has no weights"
        target = source if not source.pins else self._free(source)
        assert not target.pins, f"{update} would be written over a version that is being read"
        target.value = None
        self._step = (update, target, value + step)

    def _free(self, source: _Buffer) -> _Buffer:
        for buffer in self._buffers:
            if buffer is not source and not buffer.pins:
                return buffer
        assert len(self._buffers) < self._limit, f"all {self._limit} copies are pinned and a step was begun"
        self._buffers.append(_Buffer(None))
        return self._buffers[-1]

    def finish(self) -> UpdateId:
        """End the step that was begun: the next version is there."""
        assert self._step is not None, "no step was begun"
        update, target, value = self._step
        assert not target.pins, f"{update} was written over a version that was pinned meanwhile"
        target.value, self._current, self._step = value, target, None
        self.version += 1
        self.log.append(update)
        return update

    def acquire(self) -> Held:
        """Pin the current version."""
        value = self.value
        buffer = self._current
        assert buffer is not None, "the model has no weights"
        buffer.pins += 1
        return Held(version=self.version, value=value, buffer=buffer)

    def release(self, held: Held) -> None:
        """Unpin a version, which must be what it was."""
        assert held.buffer.value == held.value, f"version {held.version} was changed while it was read"
        held.buffer.pins -= 1
        assert held.buffer.pins >= 0, f"version {held.version} was released twice"


class ReceiveBuffers:
    """The buffers of updates on their way; each is filled by one connection and belongs to one update."""

    def __init__(self) -> None:
        self._filled_by: dict[UpdateId, int] = {}
        self._steps: dict[UpdateId, int | None] = {}

    def __contains__(self, update: UpdateId) -> bool:
        return update in self._filled_by

    def __len__(self) -> int:
        return len(self._filled_by)

    def reserve(self, update: UpdateId, connection: int) -> None:
        """Reserve a buffer for what this connection will bring."""
        assert update not in self._filled_by, f"{update} was granted a second buffer, the first is lost"
        self._filled_by[update] = connection

    def fill(self, update: UpdateId, connection: int, step: int | None) -> None:
        """Note that an update is complete; None stands for one that is not finite."""
        by = self._filled_by.get(update)
        assert by == connection, f"connection {connection} wrote {update} into a buffer that belongs to {by}"
        self._steps[update] = step

    def step(self, update: UpdateId) -> int | None:
        """Return what a complete update adds to the weights."""
        assert update in self._steps, f"{update} is applied before it is complete"
        return self._steps[update]

    def forget(self, update: UpdateId) -> int | None:
        """Free a buffer; return the connection that was still filling it, None if it was complete."""
        assert update in self._filled_by, f"{update} has no buffer to forget"
        is_complete = update in self._steps
        self._steps.pop(update, None)
        connection = self._filled_by.pop(update)
        return None if is_complete else connection
