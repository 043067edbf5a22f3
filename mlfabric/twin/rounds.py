"""AllReduce in virtual time: mlfabric's own, a ring, and a static binary tree, which have no server.

Every worker computes, all tensors are summed, every worker goes on with the sum. mlfabric's rounds are planned when the
scheduler has heard of all workers, or of so many that the others are late, over the rates that it knows then; nothing
else is under way, so there is one plan for each set of rates and of late workers. The baselines know neither scheduler
nor rates.

*Ring*: 2 (N - 1) steps; in each a worker sends an N-th of the tensor to the next one, once it has received that in the
step before, has done with its own former send, and has computed. A link's rate holds for the whole of a step.
*Tree*: worker r sums for 2 r + 1 and 2 r + 2, chunk by chunk in both directions, which overlap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.scheduler.modes.all_reduce import spread_bps
from mlfabric.scheduler.planning import Plan, Shape
from mlfabric.scheduler.rhythm import Rhythm
from mlfabric.twin.flow_field import CUT, INPUT, Column
from mlfabric.twin.flows import Edge, NewFlow
from mlfabric.twin.outcome import Outcome
from mlfabric.twin.run_world import Progress, RunWorld

__all__ = ["run_fabric_rounds", "run_ring", "run_tree"]

MOST_PLANS = 64
TREE_CHUNKS = 32

Times = NDArray[np.float64]
"""Instants in ns, one for each worker."""


class _Rounds(ABC):
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


class _Planned(NamedTuple):
    """A plan's transfers that may begin at 0; ``ring`` has the workers of a ring in turn, and is empty for none."""

    shape: Shape
    table: NDArray[np.float64]
    edges: NDArray[np.int64]
    ring: tuple[int, ...]


class _FabricRounds(_Rounds):
    """Rounds that mlfabric plans; nobody goes on before all have the sum.

    A round may begin before the last have asked for it, by the live scheduler's rule.
    """

    def __init__(self, world: RunWorld) -> None:
        super().__init__(world)
        self._plans: dict[tuple[bytes, bytes], _Planned] = {}
        self._rhythm = Rhythm()

    def reduce(self, computed_ns: Times) -> Times:
        world = self._world
        asked_ns = computed_ns + world.control_ns
        begin_ns = self._begin_ns(asked_ns)
        world.run_to(begin_ns)
        world.learn()
        planned = self._planned(asked_ns > begin_ns)
        if begin_ns < asked_ns.max() and planned.shape is not Shape.STRIPES:
            world.run_to(float(asked_ns.max()))
            world.learn()
            planned = self._planned(np.zeros(self._count, np.bool_))
        ready_ns = np.maximum(asked_ns, world.now_ns) + world.control_ns + 2 * world.latency_ns
        if planned.ring:
            ended_ns = float(_around(world, np.full(self._count, ready_ns.max()), planned.ring).max())
            world.run_to(ended_ns)
        else:
            ended_ns = self._through_trees(planned, ready_ns)
        self._rhythm.settled(round(ended_ns + world.control_ns))
        return np.full(self._count, ended_ns + 2 * world.control_ns)

    def _begin_ns(self, asked_ns: Times) -> float:
        """Return when a round is planned: when all have asked for it, or so many that the others are late."""
        in_turn = np.argsort(asked_ns, kind="stable").tolist()
        everyone = [str(worker) for worker in in_turn]
        for worker, following in pairwise(in_turn):
            self._rhythm.asked(str(worker), round(asked_ns[worker]))
            early_ns = self._rhythm.early_ns(everyone)
            if early_ns is not None and max(early_ns, asked_ns[worker]) < asked_ns[following]:
                return float(max(early_ns, asked_ns[worker]))
        return float(asked_ns.max())

    def _through_trees(self, planned: _Planned, ready_ns: Times) -> float:
        """Carry out transfers; neither end of one may begin before it is told to, nor before its worker has asked."""
        table = planned.table.copy()
        links = table[:-1, (Column.UP, Column.DOWN)].astype(np.int64) - (0, self._count + 1)
        table[:-1, Column.READY] = ready_ns[links].max(axis=1)
        numbers = self._world.flows.enter_table(table, planned.edges)
        while (last := self._world.run(np.inf)) is None:
            pass
        ended_ns = self._world.flows.span_ns(last)[1]
        self._world.flows.arrived()
        self._world.flows.free(numbers)
        return ended_ns

    def _planned(self, late: NDArray[np.bool_]) -> _Planned:
        planner = self._world.planner
        key = planner.known_rates.tobytes(), late.tobytes()
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            candidates = [planner.candidate(worker, 0, 0, 0) for worker in range(self._count)]
            self._plans[key] = self._prepare(planner.plan_round(candidates, np.flatnonzero(late).tolist()))
        return self._plans[key]

    def _prepare(self, found: Plan) -> _Planned:
        planner, transfers = self._world.planner, list(found.transfers)
        if found.shape is Shape.RING:
            ring = tuple(planner.up[transfer.source] for transfer in transfers)
            return _Planned(found.shape, np.zeros((0, len(Column))), np.zeros((0, 3), np.int64), ring)
        chunk, pace = 8.0 * planner.config.chunk_bytes, (spread_bps(found.shape, transfers) or np.inf) / 1e9
        flows = [
            NewFlow(
                up=planner.up[transfer.source],
                down=planner.down[transfer.destination],
                bits=8.0 * transfer.size_bytes,
                ready_ns=0.0,
                pace=pace,
                chunk=chunk,
                latency_ns=self._world.latency_ns,
                told=False,
            )
            for transfer in transfers
        ]
        edges: list[Edge] = []
        for place, transfer in enumerate(transfers):
            edges += [(early, place, CUT if transfer.cut_through else INPUT) for early in transfer.inputs]
        edges += [(place, len(flows), INPUT) for place in range(len(flows))]
        flows.append(NewFlow(up=-1, down=-1, bits=0.0, ready_ns=0.0, told=True))
        table = np.array([flow.row() for flow in flows], np.float64)
        return _Planned(found.shape, table, np.array(edges, np.int64).reshape(-1, 3), ())


class _Ring(_Rounds):
    """The ring that DistributedDataParallel makes with gloo, in the order of ranks."""

    def reduce(self, computed_ns: Times) -> Times:
        ended_ns = _around(self._world, computed_ns, range(self._count))
        self._world.run_to(float(ended_ns.max()))
        return ended_ns


def _around(world: RunWorld, computed_ns: Times, ring: Sequence[int]) -> Times:
    """Sum around a ring of workers; return when each has the sum."""
    count, order = len(ring), np.array(ring)
    hosts = len(world.cluster.hosts)
    bits = 8.0 * world.cluster.model_bytes / count
    ready_ns, received_ns = computed_ns[order], computed_ns[order] * 0.0
    changes_ns = -1.0
    slowest = np.ones(count)
    for _ in range(2 * (count - 1)):
        at_ns = float(ready_ns.mean())
        if at_ns >= changes_ns:
            rates, changes_ns = world.weather.rates(at_ns), world.weather.next_change_ns(at_ns)
            slowest = np.minimum(rates[np.roll(order, 1)], rates[hosts + order])
        received_ns = np.maximum(np.roll(ready_ns, 1), received_ns) + bits / slowest
        ready_ns = np.maximum(np.maximum(ready_ns, received_ns + world.latency_ns), np.roll(received_ns, -1))
    carried = 2 * (count - 1) * bits
    world.flows.carried_bits[order] += carried
    world.flows.carried_bits[hosts + order] += carried
    ended_ns = computed_ns.copy()
    ended_ns[order] = ready_ns
    return ended_ns


class _Tree(_Rounds):
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


def run_fabric_rounds(world: RunWorld, progress: Progress | None = None) -> Outcome:
    """Run AllReduce as mlfabric does it."""
    _FabricRounds(world).run(progress)
    return world.outcome("all-reduce")


def run_ring(world: RunWorld, progress: Progress | None = None) -> Outcome:
    """Run the baseline of a ring."""
    _Ring(world).run(progress)
    return world.outcome("ring")


def run_tree(world: RunWorld, progress: Progress | None = None) -> Outcome:
    """Run the baseline of a static binary tree."""
    _Tree(world).run(progress)
    return world.outcome("tree")
