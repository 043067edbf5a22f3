"""How a worker's updates and models are cut for the servers that hold them: names, byte ranges, views.

A model on one server is one part. Part i of the push (or get) p of n parts has the counter p * n + i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, UpdateId
from mlfabric.worker_daemon.data_attempts import Parcel

__all__ = ["Shards"]

NameT = TypeVar("NameT", UpdateId, GetId)


class Shards:
    """The parts of one model.

    Args:
        spec: of the whole model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        parts = [spec.of_shard(i) for i in range(spec.shards)] if spec.shards > 1 else [spec]
        self.names = tuple(part.name for part in parts)
        self.digests = tuple(part.layout.digest for part in parts)
        size_bytes, start = spec.layout.size_bytes, spec.layout.rates_start
        self._ranges = spec.layout.ranges(spec.shards) if spec.shards > 1 else ((0, size_bytes),)
        self._rates = (start, size_bytes) if spec.shards > 1 else (size_bytes, size_bytes)

    def whole(self, name: NameT) -> tuple[NameT, int]:
        """Return the name of the whole that a push or get is part of, its first part's; and which part it is."""
        part = name.counter % len(self.names)
        return name._replace(counter=name.counter - part), part

    def parcels(self, parcel: Parcel) -> tuple[Parcel, ...]:
        """Cut an update, whose rates go with every part; nothing is copied."""
        if len(self.names) == 1:
            return (parcel,)
        cuts = zip(self._ranges, self.digests, strict=True)
        rates = parcel.within(*self._rates, parcel.digest).pieces
        parts = (parcel.within(start, end, digest) for (start, end), digest in cuts)
        return tuple(replace(part, pieces=(*part.pieces, *rates)) for part in parts)

    def buffers(self, image: memoryview) -> tuple[tuple[memoryview, ...], ...]:
        """Cut the memory that a model is received in; where all parts bring rates, all of them go to one place."""
        start, end = self._rates
        rates = (image[start:end],) if start < end else ()
        return tuple((image[first:last], *rates) for first, last in self._ranges)
