"""A round of AllReduce, as it was shaped, as transfers in virtual time, and what each worker hears of it and carries.

As in the fabric, each range of bytes has a tree into a root and one out of it; a ring is as many chains as it has
workers. What a worker has ready goes as fast as it can, all else is spread out, and nothing goes faster than it is held
to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.methods.all_reduce import Shaped
from mlfabric.methods.byte_trees import Trees
from mlfabric.model.chunking import chunk_bytes
from mlfabric.planning import Shape
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.flow_kernel import CUT, INPUT
from mlfabric.twin.flows import Edge, NewFlow

__all__ = ["RoundStreams", "round_streams"]

MOST_IN_CHAINS = 64
"""Of more workers the chains of a ring have too many streams to look at each."""


class RoundStreams(NamedTuple):
    """The transfers of a round, that may begin at 0, and what comes of them by worker.

    ``peers`` says how often other workers are named in what a worker is told, ``ready_bytes`` what it sends without
    waiting for others, ``coming_bytes`` what they send it to be summed, ``up_is_held`` and ``down_is_held`` whether any
    of that is held to shares of links. ``ring`` has the workers of a ring in turn, and
    there are no transfers, if chains would be too many.
    """

    shape: Shape
    without_stripes: bool
    table: NDArray[np.float64]
    edges: NDArray[np.int64]
    peers: NDArray[np.int64]
    ready_bytes: NDArray[np.int64]
    coming_bytes: NDArray[np.int64]
    up_is_held: NDArray[np.bool_]
    down_is_held: NDArray[np.bool_]
    ring: tuple[int, ...]


def round_streams(shaped: Shaped, cluster: Cluster) -> RoundStreams:
    """Return the transfers of a round; the last one, of nothing, ends when all of them have arrived."""
    return _Making(cluster).made(shaped)


class _Making:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._count = cluster, len(cluster.workers)
        self._number = {worker.name: number for number, worker in enumerate(cluster.workers)}
        self._peers, self._ready, self._coming = np.zeros((3, self._count), np.int64)
        self._up_is_held, self._down_is_held = np.zeros((2, self._count), np.bool_)
        self._flows: list[NewFlow] = []
        self._edges: list[Edge] = []

    def made(self, shaped: Shaped) -> RoundStreams:
        is_ring = shaped.shape is Shape.RING and self._count > MOST_IN_CHAINS
        for tree in () if is_ring else shaped.trees:
            self._add(tree, _children(tree))
        end = len(self._flows)
        self._edges += [(place, end, INPUT) for place in range(end)]
        self._flows.append(NewFlow(up=-1, down=-1, bits=0.0, ready_ns=0.0, told=True))
        return RoundStreams(
            shape=shaped.shape,
            without_stripes=shaped.without_stripes,
            table=np.array(self._flows, np.float64),
            edges=np.array(self._edges, np.int64).reshape(-1, 3),
            peers=self._peers,
            ready_bytes=self._ready,
            coming_bytes=self._coming,
            up_is_held=self._up_is_held,
            down_is_held=self._down_is_held,
            ring=tuple(self._number[worker] for worker in shaped.ring) if is_ring else (),
        )

    def _add(self, tree: Trees, children: Mapping[str, Sequence[str]]) -> None:
        """Add the transfers of one range of bytes."""
        self._note(tree, children)
        first, spread = len(self._flows), tree.rate_bps
        upward = {worker: first + place for place, worker in enumerate(tree.parents)}
        back = {worker: first + len(upward) + place for place, worker in enumerate(tree.sources)}
        for worker, parent in tree.parents.items():
            pace = _pace(spread if worker in children else 0, tree.sums_bps.get(worker, 0))
            self._stream(worker, parent, tree, pace)
            self._edges += [(upward[child], upward[worker], CUT) for child in children.get(worker, ())]
        for worker, source in tree.sources.items():
            self._stream(source, worker, tree, _pace(spread, tree.results_bps.get(worker, 0)))
            inputs = [back[source]] if source != tree.root else [upward[child] for child in children[source]]
            self._edges += [(early, back[worker], CUT) for early in inputs]

    def _note(self, tree: Trees, children: Mapping[str, Sequence[str]]) -> None:
        """Count what workers hear of and carry; both ends of a transfer are told of it."""
        size_bytes = tree.end - tree.start
        for source, destination in (*tree.parents.items(), *tree.sources.items()):
            self._peers[[self._number[source], self._number[destination]]] += 1
        for worker, parent in tree.parents.items():
            if worker not in children:
                self._ready[self._number[worker]] += size_bytes
                self._up_is_held[self._number[worker]] |= bool(tree.sums_bps.get(worker))
                self._down_is_held[self._number[parent]] |= bool(tree.sums_bps.get(worker))
        for parent, below in children.items():
            self._coming[self._number[parent]] += size_bytes * len(below)

    def _stream(self, source: str, destination: str, tree: Trees, pace: float) -> None:
        size_bytes = tree.end - tree.start
        self._flows.append(
            NewFlow(
                up=self._number[source],
                down=self._count + 1 + self._number[destination],
                bits=8.0 * size_bytes,
                ready_ns=0.0,
                pace=pace,
                chunk=8.0 * (self._cluster.chunk_bytes or chunk_bytes(size_bytes)),
                latency_ns=1e9 * self._cluster.latency_s,
                told=False,
            )
        )


def _pace(*bps: int) -> float:
    """Return the least of these rates that are not 0, in bits for each ns."""
    return min((rate / 1e9 for rate in bps if rate), default=np.inf)


def _children(tree: Trees) -> dict[str, list[str]]:
    """Return who sends to each worker that is sent to."""
    found: dict[str, list[str]] = {}
    for worker, parent in tree.parents.items():
        found.setdefault(parent, []).append(worker)
    return found
