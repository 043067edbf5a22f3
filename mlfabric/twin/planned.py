"""The planner as the twin asks it, and what it plans as transfers in virtual time.

The planner knows the rates that its monitor has told it of; transfers run over those that the links really have. What
binds of a plan is its order, not its times, as in the fabric: a receiver grants what is offered in the plan's order, a
server begins to send in that order, and nobody is paced but where the plan splits a link.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.methods import all_reduce, policy_of
from mlfabric.methods.policy import NO_BOUND
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.network import LinkId, Network, Path, Profile, down_link, up_link
from mlfabric.planning import (
    Aggregator,
    Batch,
    Candidate,
    FabricState,
    GetCandidate,
    Plan,
    PlannerConfig,
    Timetable,
    Transfer,
    paced_rate,
    plan,
)
from mlfabric.planning.plan import Kind
from mlfabric.protocol import GetId, UpdateId
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.flow_kernel import CUT, INPUT, NEXT, Column
from mlfabric.twin.flows import Edge

__all__ = ["Legs", "Order", "Planner", "Way"]

GET_PATIENCE = 1.25
MANY_WORKERS, LEAST_HELPERS, OTHER_HELPERS = 200, 4, 32
"""With more workers who helps in an asynchronous plan is chosen before: the time that the planner takes for all of them
is the twin's, too. Synchronous plans are few; they are made as always."""


Row = tuple[float, ...]
"""Of the table that ``Flows.enter_table`` takes."""


class Legs(NamedTuple):
    """Transfers of a plan, as ``Flows.enter_table`` takes them; they may begin at 0 and wait for no release."""

    table: NDArray[np.float64]
    edges: NDArray[np.int64]


class Way(NamedTuple):
    """The links of a path that several transfers may use at a time; the numbers of its hosts, and of all its links."""

    shared: Path
    hosts: tuple[int, ...]
    links: tuple[int, ...]


class Planner:
    """The planner, and what it knows of the network.

    Args:
        cluster: whose method, bounds and aggregators it plans for.

    Attributes:
        known_rates: of all links, in bit/s, as far as it knows.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.network = Network.star(10**10, latency_ns=round(1e9 * cluster.latency_s))
        for host in cluster.hosts:
            self.network.add_host(host.name, round(host.up_bps), round(host.down_bps))
        names = [host.name for host in cluster.hosts]
        self.links = (*map(up_link, names), *map(down_link, names))
        self.up = {name: number for number, name in enumerate(names)}
        self.down = {name: len(names) + number for number, name in enumerate(names)}
        self._link_number = {link: number for number, link in enumerate(self.links)}
        self.helpers = tuple(Aggregator(host=name, most_updates=cluster.most_updates) for name in cluster.aggregators)
        self._place = {helper.host: place for place, helper in enumerate(self.helpers)}
        self._places = np.array([self.up[helper.host] for helper in self.helpers], np.int64)
        self._busy = [0] * len(names)
        shared = {*cluster.aggregators, cluster.server.name} if cluster.in_flight == 1 else set(names)
        self._shared = {link for name in shared for link in (up_link(name), down_link(name))}
        self._ways: dict[Path, Way] = {}
        self.config = _config_of(cluster)
        self.has_many = len(cluster.workers) > MANY_WORKERS and cluster.method is not Method.SYNCHRONOUS
        self.tau_max = cluster.delay_bound if cluster.method is Method.ASYNCHRONOUS else NO_BOUND
        self.rates_bps = [self.network.rate_bps(link, 0) for link in self.links]
        self.known_rates = np.array(self.rates_bps, np.int64)

    def learn(self, rates: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Take in what a monitor has measured, in bits per ns; return which links have other rates now."""
        measured = np.rint(rates * 1e9).astype(np.int64)
        changed: NDArray[np.bool_] = measured != self.known_rates
        for number in np.flatnonzero(changed):
            self.network.set_rate(self.links[number], int(measured[number]))
        self.known_rates = measured
        self.rates_bps = measured.tolist()
        return changed

    def rate_bps(self, link: LinkId) -> int:
        """Return the rate of a link that the planner knows."""
        return self.rates_bps[self._link_number[link]]

    def plan_updates(
        self, updates: Sequence[Candidate], now_ns: int, v_init: int = 0, *, helps: bool = True, group_ns: int = 0
    ) -> Plan:
        """Plan updates as the scheduler does; nobody sums them unless aggregators help.

        Args:
            group_ns: what each group costs.
        """
        server = "" if self._cluster.method is Method.ALL_REDUCE else self._cluster.server.name
        aggregators: tuple[Aggregator, ...] = ()
        if server and helps:
            hosts = {update.source for update in updates}
            aggregators = self.helpers_of(hosts, max(LEAST_HELPERS, len(hosts) // 4))
        state = FabricState(now_ns=now_ns, v_init=v_init, server=server, aggregators=aggregators)
        config = replace(self.config, group_ns=group_ns) if aggregators and group_ns else self.config
        return plan(Batch(updates=tuple(updates)), self.network, state, config)

    def plan_gets(self, gets: Sequence[GetCandidate], now_ns: int) -> Plan:
        """Plan gets as the scheduler does."""
        others = OTHER_HELPERS if len(self.helpers) > MANY_WORKERS else len(self.helpers)
        state = FabricState(
            now_ns=now_ns,
            server=self._cluster.server.name,
            distributors=self.helpers_of({get.destination for get in gets}, others) if len(gets) > 1 else (),
        )
        return plan(Batch(gets=tuple(gets)), self.network, state, self.config)

    def reserve(self, key: tuple[str, int], transfer: Transfer) -> Way:
        """Take what a transfer is planned to use out of what is free on those of its links that others may use, too.

        A worker's own links carry one update of it, or one model, at a time if it takes turns.

        Returns:
            Its way, which ``release`` is to be given.
        """
        way = self._ways.get(transfer.path)
        if way is None:
            way = self._ways[transfer.path] = self._way(transfer)
        if way.shared:
            self.network.reserve(key, way.shared, transfer.profile)
        for host in way.hosts:
            self._busy[host] += 1
        return way

    def _way(self, transfer: Transfer) -> Way:
        if not transfer.path:
            return Way((), (), ())
        shared = tuple(link for link in transfer.path if link in self._shared)
        up = self.up[transfer.source]
        return Way(shared, (up, self.up[transfer.destination]), (up, self.down[transfer.destination]))

    def release(self, key: tuple[str, int], way: Way) -> None:
        """Give back what a transfer was to use."""
        if way.shared:
            self.network.release(key)
        for host in way.hosts:
            self._busy[host] -= 1

    def helpers_of(self, hosts: Collection[str], others: int) -> tuple[Aggregator, ...]:
        """Return who may help a batch: of many workers those on its own hosts, and some that are good at it.

        Good is who has the fastest links, each transfer that is under way there counted as an equal part of them.

        Args:
            others: how many who are good at it.
        """
        if not self.has_many or len(self.helpers) <= others:
            return self.helpers
        rates = np.minimum(self.known_rates[self._places], self.known_rates[self._places + len(self.up)])
        best = np.argsort(-rates / (1 + np.array(self._busy)[self._places]), kind="stable")[:others].tolist()
        own = (self._place[host] for host in hosts if host in self._place)
        return tuple([self.helpers[place] for place in sorted({*best, *own})])

    def candidate(
        self, worker: int, step: int, now_ns: int, computed_from: int, *, end_ns: int | None = None
    ) -> Candidate:
        """Return a worker's update as the planner is told of it.

        Args:
            end_ns: when it will be there, if it is on its way already.
        """
        name = self._cluster.workers[worker].name
        return Candidate(
            update=UpdateId(name, 1, step),
            source=name,
            size_bytes=self._cluster.model_bytes,
            ready_ns=now_ns,
            computed_from=computed_from,
            norm=1.0,
            clock=step,
            in_flight=None if end_ns is None else Profile(end_ns, end_ns, ()),
        )

    def get(self, worker: int, step: int, ready_ns: int) -> GetCandidate:
        """Return a worker's get as the planner is told of it."""
        name = self._cluster.workers[worker].name
        return GetCandidate(
            get=GetId(name, 1, step), destination=name, size_bytes=self._cluster.model_bytes, ready_ns=ready_ns
        )


def _config_of(cluster: Cluster) -> PlannerConfig:
    method = cluster.method
    if method is Method.ALL_REDUCE:
        fastest_bps = max(host.slowest_bps for host in cluster.workers)
        found = all_reduce.planner_config(cluster.model_bytes, int(8e9 * cluster.model_bytes / fastest_bps))
        return replace(found, chunk_bytes=cluster.chunk_bytes or found.chunk_bytes)
    spec = ModelSpec(
        name="model",
        layout=Layout(tensors=(TensorSpec(name="weights", shape=(1,), dtype="float32"),)),
        method=method,
        tau_max=cluster.delay_bound if method is Method.ASYNCHRONOUS else None,
        slack=cluster.slack if method is Method.STALE_SYNCHRONOUS else 0,
    )
    found = policy_of(spec).planner_config(len(cluster.workers))
    return replace(found, chunk_bytes=cluster.chunk)


class Order:
    """Who waits for whom where transfers are granted: at their receiver, or at the server that sends a model.

    Args:
        planner: whose network it goes by.
    """

    def __init__(self, planner: Planner, cluster: Cluster) -> None:
        self._planner = planner
        self._chunk_bits = 8.0 * cluster.chunk
        self._server_up = planner.up[cluster.server.name]
        self._table = Timetable[int]()
        self._count = 0
        self._granted: list[int] = []
        self._number: dict[int, int] = {}
        self._key: dict[int, int] = {}

    def legs(self, transfers: Sequence[Transfer], told: Container[int]) -> Legs:
        """Make transfers of what is planned; their places are those of the plan.

        Args:
            told: the places of those whose arrival somebody waits for.
        """
        rows = [self._row(transfer, place in told) for place, transfer in enumerate(transfers)]
        edges: list[Edge] = []
        for place, transfer in enumerate(transfers):
            kind = CUT if transfer.cut_through else INPUT
            for before in transfer.inputs:
                edges.append((before, place, kind))
        self._granted = []
        start_ns = [transfer.profile.start_ns for transfer in transfers]
        for place in sorted(range(len(transfers)), key=start_ns.__getitem__):
            self._grant(place, transfers[place], rows[place], edges)
        self._count += len(transfers)
        table = np.array(list(chain.from_iterable(rows)), np.float64).reshape(-1, len(Column))
        return Legs(table, np.array(edges, np.int64).reshape(-1, 3))

    def entered(self, numbers: Sequence[int]) -> None:
        """Note under which numbers the latest legs were entered."""
        base = self._count - len(numbers)
        for place in self._granted:
            self._number[base + place] = numbers[place]
            self._key[numbers[place]] = base + place

    def forget(self, number: int) -> None:
        """Forget a transfer that has arrived."""
        key = self._key.pop(number, None)
        if key is not None:
            self._table.remove(key)
            del self._number[key]

    def _grant(self, place: int, transfer: Transfer, row: Row, edges: list[Edge]) -> None:
        """Add the edges to what the plan ends before a transfer where that is granted, and enter it there.

        A model's order binds at its server, if it does not take so little of its link that it is let pass.
        """
        if transfer.kind is not Kind.MODEL:
            link = row[Column.DOWN]
        else:
            is_served = row[Column.UP] == self._server_up and row[Column.PATIENCE] < np.inf
            link = self._server_up if is_served else -1
        if link < 0:
            return
        for before in self._table.before((link,), transfer.profile.start_ns):
            edges.append((before - self._count if before >= self._count else ~self._number[before], place, NEXT))
        self._table.add(self._count + place, (link,), transfer.profile)
        self._granted.append(place)

    def _row(self, transfer: Transfer, told: bool) -> Row:
        """Return a transfer's row of the kernel's table."""
        planner, profile = self._planner, transfer.profile
        up = down = -1
        pace = patience_ns = np.inf
        if transfer.path:
            up, down = planner.up[transfer.source], planner.down[transfer.destination]
            pace = paced_rate(profile, transfer.path, planner.network) / 1e9 or np.inf
            span_ns = profile.end_ns - profile.start_ns
            planned = sum([bps * (end_ns - start_ns) for start_ns, end_ns, bps in profile.pieces])
            if transfer.kind is Kind.MODEL and 2 * planned >= planner.rates_bps[up] * span_ns:
                patience_ns = GET_PATIENCE * span_ns
        latency_ns = transfer.arrive_ns - profile.end_ns
        return up, down, 8.0 * transfer.size_bytes, pace, self._chunk_bits, 0.0, latency_ns, patience_ns, told, 0
