"""mlfabric's AllReduce in virtual time: begun, shaped, judged and learnt from by the live scheduler's own functions.

A round begins when the scheduler has heard of all workers, or of so many that the others are late. Nothing else is
under way, so there is one plan for each set of known rates and of late workers. Unless it is told of all rates, the
scheduler knows of links what rounds have shown (``mlfabric/scheduler/rounds/round_links.py``), and what probes show
while workers compute (``mlfabric/scheduler/rounds/probe_plans.py``): each of these comes, at the rate that its links
have when it is begun. The scheduler handles one message after the other, and what it says to workers goes over one
link, that of the server's host.

Streams that meet on a link do not get equal shares of it: so the sums of different ranges are not ready together, and
what slow links have to hand on comes late.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from mlfabric.methods.all_reduce import Shaped, shape_round
from mlfabric.planning import Shape
from mlfabric.protocol import LinkProbed, RoundId
from mlfabric.scheduler.rounds.probe_plans import Probing
from mlfabric.scheduler.rounds.rhythm import Rhythm
from mlfabric.scheduler.rounds.round_links import Carried, RoundLinks
from mlfabric.scheduler.rounds.trust import Made, Trust
from mlfabric.twin.cluster import Monitoring
from mlfabric.twin.flow_kernel import Column
from mlfabric.twin.monitoring import LARGE
from mlfabric.twin.round_meter import RoundMeter
from mlfabric.twin.round_streams import RoundStreams, round_streams
from mlfabric.twin.rounds import Rounds, Times, around
from mlfabric.twin.run_world import RunWorld

__all__ = ["FabricRounds"]

MOST_PLANS = 64
PLAN_NS = 0.07e6
"""What each worker adds to the time that a round's plan takes (measured with 30)."""
MESSAGE_NS = 0.16e6
"""What a message keeps the scheduler busy (``mlfabric bench control``: 6,300 decisions per second)."""
MESSAGE_BYTES, PEER_BYTES = 250, 33
"""Of a message on the wire with all its headers, and of each worker that is named in it (measured)."""
SHARE_DEVIATION = 0.3
"""Of the logarithms of the shares that streams get of a link. No measurement: chosen so that rounds take about as long
as on the testbed (N1 and N2)."""
MOST_UNEQUAL = 1.4
"""How far such a logarithm is from the middle at most."""


class FabricRounds(Rounds):
    """Rounds that mlfabric plans; nobody goes on before all have the sum."""

    def __init__(self, world: RunWorld) -> None:
        super().__init__(world)
        cluster = world.cluster
        self._hosts = {worker.name: worker.name for worker in cluster.workers}
        self._learns = cluster.monitoring is Monitoring.ESTIMATES and self._count <= LARGE
        self._shaped, self._numbers = lru_cache(MOST_PLANS)(self._shape), count()
        self._rhythm, self._links, self._trust = Rhythm(), RoundLinks(), Trust()
        self._probing = Probing(world.planner.network)
        self._number = {worker.name: number for number, worker in enumerate(cluster.workers)}
        self._settled = 0
        self._generator = np.random.default_rng(cluster.seed)
        self._bytes_per_ns = cluster.server.up_bps / 8e9

    def reduce(self, computed_ns: Times) -> Times:
        """Sum tensors that are ready at these instants; return when each worker has the sum."""
        world = self._world
        asked_ns = self._in_turn(computed_ns + world.control_ns)
        begin_ns, last_ns = self._begin_ns(asked_ns), float(asked_ns.max())
        streams = self._planned(begin_ns, asked_ns > begin_ns)
        if begin_ns < last_ns and streams.shape is not Shape.STRIPES:
            begin_ns, streams = last_ns, self._planned(last_ns, np.zeros(self._count, np.bool_))
        told_ns = self._told_ns(streams, asked_ns, begin_ns)
        settled_ns = float(self._in_turn(self._carry_out(streams, told_ns) + world.control_ns).max())
        for worker, at_ns in zip(self._hosts, asked_ns.tolist(), strict=True):
            self._rhythm.asked(worker, round(at_ns))
        self._rhythm.settled(round(settled_ns))
        made = Made(streams.shape, streams.without_stripes, world.cluster.model_bytes, settled_ns - last_ns)
        self._trust.judge(made, world.planner.network, self._hosts, round(settled_ns))
        if self._learns and not self._trust.is_lost and streams.shape is not Shape.DIRECT:
            self._probe(settled_ns)
        return self._in_turn(np.full(self._count, settled_ns)) + world.control_ns

    def _in_turn(self, at_ns: Times, peers: NDArray[np.int64] | int = 0) -> Times:
        """Return when the scheduler and its link are through with each worker's message; they come at these instants.

        Args:
            peers: how many workers are named in each.
        """
        takes_ns = np.maximum(MESSAGE_NS, (MESSAGE_BYTES + PEER_BYTES * peers) / self._bytes_per_ns + 0.0 * at_ns)
        through_ns, free_ns = np.empty(self._count), 0.0
        for worker in np.argsort(at_ns, kind="stable").tolist():
            through_ns[worker] = free_ns = max(free_ns, at_ns[worker]) + takes_ns[worker]
        return through_ns

    def _begin_ns(self, asked_ns: Times) -> float:
        """Return when a round is planned: when all have asked for it, or so many that the others are late."""
        if self._trust.is_lost:
            return float(asked_ns.max())
        in_turn = np.argsort(asked_ns, kind="stable").tolist()
        names = list(self._hosts)
        for worker, following in pairwise(in_turn):
            self._rhythm.asked(names[worker], round(asked_ns[worker]))
            early_ns = self._rhythm.early_ns(names)
            if early_ns is not None and max(early_ns, asked_ns[worker]) < asked_ns[following]:
                return float(max(early_ns, asked_ns[worker]))
        return float(asked_ns.max())

    def _planned(self, at_ns: float, late: NDArray[np.bool_]) -> RoundStreams:
        """Plan a round at an instant, with what is known by then."""
        world, network = self._world, self._world.planner.network
        world.run_to(at_ns)
        self._links.probed(self._probing)
        if not self._learns:
            world.learn()
        rates_bps = tuple([network.rate_bps(link, 0) for link in world.planner.links])
        return self._shaped(rates_bps, tuple(late.tolist()), self._trust.is_lost)

    def _shape(self, rates_bps: tuple[int, ...], late: tuple[bool, ...], is_trust_lost: bool) -> RoundStreams:
        """Shape a round of now, which depends on the rates that are known, the late and the trust in stripes alone."""
        missing = [name for name, is_late in zip(self._hosts, late, strict=True) if is_late]
        world, without = self._world, self._trust.without
        size_bytes, number, now_ns = world.cluster.model_bytes, RoundId(1, next(self._numbers)), round(world.now_ns)
        shaped = shape_round(world.planner.network, self._hosts, size_bytes, number, now_ns, missing, without)
        assert isinstance(shaped, Shaped), f"every link carries something, and there is no way: {shaped}"
        return round_streams(shaped, world.cluster)

    def _told_ns(self, streams: RoundStreams, asked_ns: Times, begin_ns: float) -> Times:
        """Return when each worker is told its part: once that is planned, and it has asked."""
        planned_ns = np.maximum(asked_ns, begin_ns + self._count * PLAN_NS)
        return self._in_turn(planned_ns, streams.peers) + self._world.control_ns

    def _carry_out(self, streams: RoundStreams, told_ns: Times) -> Times:
        """Carry out a round's transfers; return when each worker has the sum, and learn what links carried."""
        world = self._world
        if streams.ring:
            ended_ns = around(world, np.full(self._count, told_ns.max()), streams.ring)
            world.run_to(float(ended_ns.max()))
            return ended_ns
        meter = RoundMeter(told_ns, world.cluster.model_bytes) if self._learns else None
        ended_ns = np.full(self._count, self._send(streams, told_ns, meter))
        if meter is not None:
            for carried in self._carried(streams, meter):
                self._links.carried(world.planner.network, carried)
        return ended_ns

    def _send(self, streams: RoundStreams, told_ns: Times, meter: RoundMeter | None) -> float:
        """Carry out transfers; neither end of one begins before it is told to. Return when all have arrived."""
        world, table = self._world, streams.table.copy()
        ends = table[:-1, (Column.UP, Column.DOWN)].astype(np.int64) - (0, self._count + 1)
        table[:-1, Column.READY] = told_ns[ends].max(axis=1) + 2 * world.latency_ns
        numbers, last = world.flows.enter_table(table, streams.edges), None
        world.flows.weigh(numbers, self._weights(len(numbers)))
        while last is None:
            last = world.run(np.inf if meter is None else meter.next_ns)
            if meter is not None and (last is not None or world.now_ns >= meter.next_ns):
                meter.look(world.now_ns, world.flows.carried_by_now())
        ended_ns = world.flows.span_ns(last)[1]
        world.flows.arrived()
        world.flows.free(numbers)
        return ended_ns

    def _weights(self, count: int) -> NDArray[np.float64]:
        """Draw which shares of links streams get."""
        drawn = SHARE_DEVIATION * self._generator.standard_normal(count)
        weights: NDArray[np.float64] = np.exp(MOST_UNEQUAL + np.clip(drawn, -MOST_UNEQUAL, MOST_UNEQUAL))
        return weights

    def _carried(self, streams: RoundStreams, meter: RoundMeter) -> Iterator[Carried]:
        """Yield what each host's link has shown."""
        cluster = self._world.cluster
        held = zip(streams.up_is_held.tolist(), streams.down_is_held.tolist(), strict=True)
        loads = zip(streams.ready_bytes.tolist(), streams.coming_bytes.tolist(), held, strict=True)
        for host, load, peaks in zip(self._hosts, loads, meter.peaks_bps(len(cluster.hosts)), strict=True):
            yield Carried(host, streams.shape, cluster.model_bytes, *load, *peaks)

    def _probe(self, settled_ns: float) -> None:
        """Have links probed after a round; what that shows counts from the next plan on."""
        world, number = self._world, self._number
        self._settled += 1
        after, pause_ns, best_bps = RoundId(1, self._settled), self._rhythm.pause_ns, self._links.best_bps
        probings = self._probing.begin(after, world.cluster.model_bytes, self._hosts, pause_ns, best_bps)
        if probings is None:
            return
        begin_ns, hosts = settled_ns + world.control_ns, len(world.cluster.hosts)
        for slot, sent in enumerate(zip(*probings.targets.values(), strict=True)):
            rates = world.weather.rates(begin_ns + slot * probings.slot_ns)
            for source, worker in zip(probings.targets, sent, strict=True):
                bps = round(1e9 * min(rates[number[source]], rates[hosts + number[worker]]))
                self._probing.probed(LinkProbed(worker=worker, model="", round=after, source=source, bps=bps))
