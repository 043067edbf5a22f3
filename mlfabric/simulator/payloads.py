"""Payloads on their way: chunk by chunk, sent on while they fill, torn in the middle. Stand-ins for ``streaming/``.

A payload is a row of chunks; each is there or not. What feeds on it sends every chunk as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial

from mlfabric.protocol import Sum, SumId
from mlfabric.simulator.exact import PRIME, Image, cut, exact
from mlfabric.simulator.simulated_connections import Connection, End
from mlfabric.values import dataclass

__all__ = ["CHUNKS", "Adding", "Feed", "Payload"]

CHUNKS = 3


class Payload:
    """Chunks that are there or not yet; None stands for one that is not finite.

    Args:
        size_bytes: of all of it.
        count: of chunks.
    """

    def __init__(self, size_bytes: int, count: int) -> None:
        self.size_bytes = size_bytes
        self.count = count
        self.chunks: dict[int, Image | None] = {}
        self.feeds: list[Feed] = []

    @classmethod
    def whole(cls, image: Image | None, size_bytes: int, count: int) -> Payload:
        """Return a payload of which everything is there; None stands for one that is not finite."""
        payload = cls(size_bytes, count)
        chunks = [None] * count if image is None else cut(image, count)
        payload.chunks = dict(enumerate(chunks))
        return payload

    @property
    def is_complete(self) -> bool:
        """All of it is there."""
        return len(self.chunks) == self.count

    def put(self, place: int, chunk: Image | None) -> None:
        """Take in a chunk; whoever feeds on it goes on."""
        assert place == len(self.chunks), f"chunk {place} came after {sorted(self.chunks)}"
        self.chunks[place] = chunk
        for feed in list(self.feeds):
            feed.go_on()


class Feed:
    """Sends a payload over a connection, each chunk as soon as it is there.

    Args:
        towards: the end to which it goes.
        pace_bps: how fast it goes at most; 0 for as fast as it can.
        arrived: called at the other end with each chunk.
        sent: called at this end once all of it has left.
    """

    def __init__(
        self,
        connection: Connection,
        towards: End,
        pace_bps: int,
        payload: Payload,
        arrived: Callable[[int, Image | None], None],
        sent: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._towards = towards
        self._pace_bps = pace_bps
        self._payload = payload
        self._arrived = arrived
        self._sent = sent
        self._next = 0
        self._is_moving = False
        payload.feeds.append(self)
        self.go_on()

    def go_on(self) -> None:
        """Send the next chunk if it is there and none is on its way."""
        payload = self._payload
        if self._is_moving or self._next not in payload.chunks or not self._connection.is_open:
            return
        self._is_moving = True
        moved = partial(self._moved, payload.chunks[self._next])
        self._connection.move(self._towards, payload.size_bytes // payload.count, self._pace_bps, moved)

    def _moved(self, chunk: Image | None) -> None:
        self._connection.send(self._towards, "PAYLOAD", partial(self._arrived, self._next, chunk))
        self._is_moving = False
        self._next += 1
        if self._next == self._payload.count:
            self._payload.feeds.remove(self)
            self._sent()
        else:
            self.go_on()


@dataclass(slots=True)
class Adding:
    """A sum that is being made; ``payload`` gets each chunk once every input has brought its own.

    Args:
        plan: of the sum.
        chunks: that each payload is cut into.
    """

    plan: Sum
    payload: Payload
    chunks: int
    _totals: list[list[int]] = field(init=False)
    _come: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._totals = [[0] * self.plan.images for _ in range(self.chunks)]
        self._come = [0] * len(self.plan.inputs)

    def add(self, index: int, place: int, chunk: Image) -> None:
        """Add a chunk of an input."""
        one = self.plan.inputs[index]
        assert place == self._come[index], f"{one.transfer}: chunk {place} came after {self._come[index]} of them"
        self._come[index] += 1
        weighted = (exact(one.first) * chunk[0], exact(one.second) * chunk[0])
        added = chunk if isinstance(one.transfer, SumId) else weighted
        totals = self._totals[place]
        for image in range(self.plan.images):
            totals[image] = (totals[image] + added[image]) % PRIME
        while self._is_ready(len(self.payload.chunks)):
            self.payload.put(len(self.payload.chunks), tuple(self._totals[len(self.payload.chunks)]))

    def _is_ready(self, place: int) -> bool:
        return place < self.chunks and all(come > place for come in self._come)

    def is_in(self, index: int) -> bool:
        """Tell whether all of an input has been added."""
        return self._come[index] == self.chunks
