"""AllReduce in virtual time without a fabric: a ring and a static binary tree.

Every worker computes, all tensors are summed, every worker goes on with the sum. There is neither a server nor a
scheduler, and nobody knows any rates. mlfabric's own rounds are played by ``mlfabric/lab``.

*Ring*: 2 (N - 1) steps; in each a worker sends an N-th of the tensor to the next one, once it has received that in the
step before, has done with its own former send, and has computed. A link's rate holds for the whole of a step.
*Tree*: worker r sums for 2 r + 1 and 2 r + 2, chunk by chunk in both directions, which overlap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlfabric.twin.flow_kernel import CUT, INPUT
from mlfabric.twin.flows import Edge, NewFlow
from mlfabric.twin.run_world import Progress, RunWorld

__all__ = ["Ring", "Rounds", "Tree"]

TREE_CHUNKS = 32

Times = NDArray[np.float64]
"""Instants in ns, one for each worker."""


class Rounds(ABC):
    """Rounds in which all workers take part."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._count = len(world.cluster.workers)
        self._bits = 8.0 * world.cluster.model_bytes

    @abstractmethod
    def reduce(self, computed_ns: Times) -> Times:
        """Sum tensors that are ready at these instants; return when each worker has the sum."""

    def run(self, progress: Progress | None) -> None:
        """Make all steps."""
        record, times, steps = self._world.record, self._world.times, self._world.cluster.iterations
        began_ns = np.zeros(self._count)
        for step in range(steps):
            computed_ns = began_ns + np.array([times.of(worker, step) for worker in range(self._count)])
            ended_ns = self.reduce(computed_ns) if self._count > 1 else computed_ns
            record.pushed += 1
            record.commit(float(ended_ns.min()), 0, self._count)
            record.ended_ns[:, step] = ended_ns
            if record.wants_spans(float(began_ns.min())):
                self._note(began_ns, computed_ns, ended_ns)
            began_ns = ended_ns
            if progress is not None:
                progress((step + 1) * self._count, steps * self._count)

    def _note(self, began_ns: Times, computed_ns: Times, ended_ns: Times) -> None:
        for worker in range(self._count):
            self._world.record.span(worker, "compute", began_ns[worker], computed_ns[worker])
            self._world.record.span(worker, "send", computed_ns[worker], ended_ns[worker])

    def _transfer(self, flows: Sequence[NewFlow], edges: Sequence[Edge]) -> tuple[Times, Times]:
        """Carry out transfers; return when each began and arrived."""
        end = len(flows)
        marks = [(place, end, INPUT) for place in range(end)]
        done = NewFlow(up=-1, down=-1, bits=0.0, ready_ns=self._world.now_ns, told=True)
        numbers = self._world.flows.enter([*flows, done], [*edges, *marks])
        while self._world.run(np.inf) is None:
            pass
        began_ns, arrived_ns = self._world.flows.spans_ns(numbers)
        self._world.flows.arrived()
        self._world.flows.free(numbers)
        return np.array(began_ns[:-1]), np.array(arrived_ns[:-1])

    def _flow(self, source: int, destination: int, ready_ns: float, bits: float, chunk: float) -> NewFlow:
        return NewFlow(
            up=source,
            down=self._count + 1 + destination,
            bits=bits,
            ready_ns=ready_ns,
            chunk=chunk,
            latency_ns=self._world.latency_ns,
            told=False,
        )


class Ring(Rounds):
    """The ring that DistributedDataParallel makes with gloo, in the order of ranks."""

    def reduce(self, computed_ns: Times) -> Times:
        world, count, hosts = self._world, self._count, len(self._world.cluster.hosts)
        bits = self._bits / count
        ready_ns, received_ns = computed_ns, computed_ns * 0.0
        changes_ns = -1.0
        slowest = np.ones(count)
        for _ in range(2 * (count - 1)):
            at_ns = float(ready_ns.mean())
            if at_ns >= changes_ns:
                rates, changes_ns = world.weather.rates(at_ns), world.weather.next_change_ns(at_ns)
                slowest = np.minimum(np.roll(rates[:count], 1), rates[hosts : hosts + count])
            received_ns = np.maximum(np.roll(ready_ns, 1), received_ns) + bits / slowest
            ready_ns = np.maximum(np.maximum(ready_ns, received_ns + world.latency_ns), np.roll(received_ns, -1))
        carried = 2 * (count - 1) * bits
        world.flows.carried_bits[:count] += carried
        world.flows.carried_bits[hosts : hosts + count] += carried
        world.run_to(float(ready_ns.max()))
        return ready_ns


class Tree(Rounds):
    """A static binary tree over ranks."""

    def reduce(self, computed_ns: Times) -> Times:
        self._world.run_to(float(computed_ns.min()))
        bits, chunk, below = self._bits, self._bits / TREE_CHUNKS, range(1, self._count)
        up = [self._flow(rank, (rank - 1) // 2, computed_ns[rank], bits, chunk) for rank in below]
        down = [self._flow((rank - 1) // 2, rank, computed_ns[0], bits, chunk) for rank in below]
        edges: list[Edge] = []
        for rank in below:
            above = (rank - 1) // 2
            own, back = rank - 1, len(up) + rank - 1
            if above:
                edges.append((own, above - 1, CUT))
                edges.append((len(up) + above - 1, back, CUT))
            else:
                edges += [(child - 1, back, CUT) for child in (1, 2) if child < self._count]
        _, arrived_ns = self._transfer([*up, *down], edges)
        ended_ns = np.empty(self._count)
        ended_ns[1:] = arrived_ns[len(up) :]
        ended_ns[0] = max(arrived_ns[child - 1] for child in (1, 2) if child < self._count)
        return ended_ns
