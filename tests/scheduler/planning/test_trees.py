"""Cut-through trees: every forest keeps the laws of fluid networks, and good ones are found."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np
import pytest

from mlfabric.network import Network, down_link, up_link
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid.lines import Lines
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from mlfabric.scheduler.planning.profiles import Profiles
from mlfabric.scheduler.planning.trees import MOST_UPDATES, forward_trees
from tests.scheduler.planning.curves import Curve, overtakes

MS = 1_000_000
SERVER = "s"


def star(count: int, bps: int = 10**9, latency_ns: int = MS // 10) -> Network:
    network = Network.star(bps, latency_ns)
    for host in [*hosts(count), SERVER]:
        network.add_host(host)
    return network


def slow(network: Network, host: str, up: int, down: int) -> None:
    network.set_rate(up_link(host), up)
    network.set_rate(down_link(host), down)


def leaf_spine(racks: int, each: int) -> Network:
    """Each host's link as fast as its rack's; the server in the first rack."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    cables = [(f"r{r}", "core") for r in range(racks)] + [(SERVER, "r0")]
    cables += [(f"w{n:03}", f"r{n % racks}") for n in range(racks * each)]
    for one, two in cables:
        graph.add_edge(one, two, capacity_bps=10**9, latency_ns=MS // 50)
        graph.add_edge(two, one, capacity_bps=10**9, latency_ns=MS // 50)
    nx.set_node_attributes(graph, {name: name[0] in "ws" for name in graph.nodes}, "host")
    return Network.from_graph(graph)


def hosts(count: int) -> list[str]:
    return [f"w{n:03}" for n in range(count)]


def lot_of(sources: list[str], sizes: int | list[int], ready_ns: list[int] | None = None) -> Lot:
    count = len(sources)
    size_bytes = np.full(count, sizes, np.int64) if isinstance(sizes, int) else np.array(sizes, np.int64)
    updates = [UpdateId(source, 0, n) for n, source in enumerate(sources)]
    ready = np.array(ready_ns or [0] * count, np.int64)
    return Lot(updates, sources, 8 * size_bytes, ready, 0, None, [True] * count)


def forward(
    network: Network,
    lot: Lot,
    aggregators: list[Aggregator] | None = None,
    *,
    objective: Objective = Objective.LAST_COMMIT,
    carried: int = 1,
    chunk_bytes: int = 64_000,
    now_ns: int = 0,
) -> Forwarding | None:
    """Forward a lot to the server, by default with every source's host as an aggregator; check what was found."""
    helpers = [Aggregator(host=host) for host in dict.fromkeys(lot.sources)] if aggregators is None else aggregators
    names = [helper.host for helper in helpers]
    world = World(network, list(dict.fromkeys([*lot.sources, *names])), list(dict.fromkeys([*names, SERVER])))
    found = forward_trees(
        lot,
        world,
        world.lines,
        SERVER,
        helpers,
        now_ns=now_ns,
        objective=objective,
        carried=carried,
        chunk_bytes=chunk_bytes,
        toward=Toward.PRIMARY,
    )
    if found is not None:
        check(network, lot, helpers, found, carried, 8 * chunk_bytes, now_ns)
        check_fits(network, world, found)
    return found


def check(
    network: Network,
    lot: Lot,
    helpers: list[Aggregator],
    found: Forwarding,
    carried: int,
    chunk_bits: int,
    now_ns: int,
) -> None:
    assert found.shape is (Shape.TREE if len(found.groups) < len(lot.updates) else Shape.DIRECT)
    transfers = list(found.transfers)
    place = {update: n for n, update in enumerate(lot.updates)}
    for transfer in transfers:
        check_one(network, lot, place, transfers, transfer, carried, now_ns)
        for k in transfer.inputs:
            given = transfers[k]
            latency_ns = network.latency_ns(given.path)
            sent = Curve(transfer.profile, transfer.size_bytes, 0)
            assert not overtakes(sent, Curve(given.profile, given.size_bytes, latency_ns), given.arrive_ns, chunk_bits)
    check_groups(lot, found, transfers)
    check_helpers(helpers, found, transfers)


def check_fits(network: Network, world: World, found: Forwarding) -> None:
    """The network itself refuses what does not fit, and has left free what the lines say."""
    copy = network.copy()
    for n, transfer in enumerate(found.transfers):
        if transfer.planned:
            copy.reserve(("tree", n), transfer.path, transfer.profile)
    copy.validate()
    for link, number in world.links.items():
        line = copy.free_line(link)
        for at_ns in line.times[:-1]:
            assert free_at(found.lines, number, at_ns) == max(0, line.at(at_ns))


def free_at(lines: Lines, link: int, at_ns: int) -> int:
    node, bps = int(lines.head[link]), 0
    while node and lines.at_ns[node] <= at_ns:
        node, bps = int(lines.following[node]), int(lines.bps[node])
    return bps


def check_one(
    network: Network,
    lot: Lot,
    place: dict[UpdateId, int],
    transfers: list[Transfer],
    transfer: Transfer,
    carried: int,
    now_ns: int,
) -> None:
    profile, members = transfer.profile, [place[update] for update in transfer.members]
    assert transfer.path == network.path(transfer.source, transfer.destination)
    assert transfer.arrive_ns == profile.end_ns + network.latency_ns(transfer.path)
    assert not transfer.planned or profile.start_ns >= max(transfer.ready_ns, now_ns)
    brought = [update for k in transfer.inputs for update in transfers[k].members]
    own = [n for n in members if lot.updates[n] not in brought]
    assert sorted([*own, *(place[update] for update in brought)]) == members
    assert all(lot.sources[n] == transfer.source for n in own)
    assert not transfer.planned or all(profile.start_ns >= lot.ready_ns[n] for n in own)
    assert all(transfers[k].destination == transfer.source for k in transfer.inputs)
    assert transfer.cut_through == bool(transfer.inputs)
    assert transfer.kind is (Kind.UPDATE if len(members) == 1 else Kind.SUM)
    bits = max(int(lot.bits[n]) for n in members) * (carried if len(members) > 1 else 1)
    assert 8 * transfer.size_bytes == bits
    if transfer.path and bits:
        sent = sum(bps * (b - a) for a, b, bps in profile.pieces)
        assert 0 <= sent - bits * 10**9 < profile.pieces[-1].bps


def check_groups(lot: Lot, found: Forwarding, transfers: list[Transfer]) -> None:
    assert [n for first, end in found.groups for n in range(first, end)] == list(range(len(lot.updates)))
    used = {k for transfer in transfers for k in transfer.inputs}
    assert sorted([*used, *found.last]) == list(range(len(transfers)))
    for (first, end), last in zip(found.groups, found.last, strict=True):
        assert transfers[last].destination == SERVER
        assert transfers[last].members == tuple(lot.updates[first:end])
        assert found.arrive_ns[first:end].tolist() == [transfers[last].arrive_ns] * (end - first)


def check_helpers(helpers: list[Aggregator], found: Forwarding, transfers: list[Transfer]) -> None:
    """Only aggregators sum, each for one group, and no more than they may."""
    most = {helper.host: helper.most_updates for helper in helpers}
    passing = [transfer for transfer in transfers if transfer.inputs]
    assert len({transfer.source for transfer in passing}) == len(passing)
    for transfer in passing:
        assert most[transfer.source] in (0, *range(len(transfer.members), 1000))


def last_ms(found: Forwarding | None) -> float:
    assert found is not None
    return float(found.arrive_ns.max()) / MS


class TestEqualHosts:
    @pytest.mark.parametrize("objective", Objective)
    def test_thirty_updates_take_little_more_than_two_wire_times(self, objective: Objective) -> None:
        network = star(30, 200_000_000, MS)
        found = forward(network, lot_of(hosts(30), 2_000_000), objective=objective)
        assert last_ms(found) <= 2.2 * 80

    def test_two_tensors_take_twice_as_long(self) -> None:
        network = star(30, 200_000_000, MS)
        assert last_ms(forward(network, lot_of(hosts(30), 2_000_000), carried=2)) <= 2.2 * 160

    def test_a_few_aggregators_share_the_work(self) -> None:
        """Five and the server: six ways in for 30 updates, so at least five wire times; stored, it is nine."""
        found = forward(star(30), lot_of(hosts(30), 5_000_000), [Aggregator(host=host) for host in hosts(5)])
        assert last_ms(found) <= 6.5 * 40

    def test_aggregators_without_an_update_help(self) -> None:
        network = star(24)
        found = forward(network, lot_of(hosts(20), 5_000_000), [Aggregator(host=host) for host in hosts(24)[20:]])
        assert last_ms(found) <= 6 * 40

    def test_tiny_updates_make_shallow_trees(self) -> None:
        """With 10 us of wire time a hop costs ten updates: a chain would take 30 hops, all directly 30 wire times."""
        found = forward(star(30), lot_of(hosts(30), 1250))
        assert last_ms(found) <= 0.1 + 0.3


class TestUnevenHosts:
    def test_a_slow_host_delays_the_last_commit_no_more_than_alone(self) -> None:
        network = star(20)
        slow(network, "w007", 10**8, 10**8)
        order = [host for host in hosts(20) if host != "w007"] + ["w007"]
        assert last_ms(forward(network, lot_of(order, 5_000_000))) <= 400 + 10

    def test_slow_hosts_pass_nothing_on(self) -> None:
        network = star(20)
        for host in ("w003", "w011", "w012"):
            slow(network, host, 10**9, 10**7)
        found = forward(network, lot_of(hosts(20), 5_000_000))
        assert found is not None
        assert not {transfer.destination for transfer in found.transfers} & {"w003", "w011", "w012"}
        assert last_ms(found) <= 2.5 * 40

    def test_a_late_update_delays_nobody_else_s_sum(self) -> None:
        ready_ns = [0] * 19 + [200 * MS]
        assert last_ms(forward(star(20), lot_of(hosts(20), 5_000_000, ready_ns))) <= 200 + 40 + 2

    def test_racks_with_one_uplink_each_are_summed_before_they_are_left(self) -> None:
        network = leaf_spine(4, 6)
        found = forward(network, lot_of(hosts(24), 5_000_000))
        assert last_ms(found) <= 3.5 * 40


class TestWhoMayTakePart:
    def test_an_aggregator_sums_no_more_than_it_may(self) -> None:
        helpers = [Aggregator(host=host, most_updates=3) for host in hosts(12)]
        found = forward(star(12), lot_of(hosts(12), 5_000_000), helpers)
        assert found is not None
        assert max(end - first for first, end in found.groups) <= 3

    def test_fixed_updates_go_directly_as_planned_before(self) -> None:
        network = star(6)
        path = network.path("w000", SERVER)
        flying = network.transfer(path, 5_000_000, 0)
        assert flying is not None
        network.reserve("flying", path, flying)
        second = network.transfer(network.path("w001", SERVER), 5_000_000, 0)
        assert second is not None
        profiles = Profiles.of([flying, second])
        lot = lot_of(hosts(6), 5_000_000)._replace(
            fixed=2, direct=profiles, planned=[False, True, True, True, True, True]
        )
        found = forward(network, lot)
        assert found is not None
        assert found.groups[:2] == [(0, 1), (1, 2)]
        assert [found.transfers[i].profile for i in (0, 1)] == [flying, second]
        assert [found.transfers[i].planned for i in (0, 1, 2)] == [False, True, True]

    @pytest.mark.parametrize("able", [8, 4 * MOST_UPDATES])
    def test_a_large_lot_is_planned_in_parts_that_share_the_aggregators(self, able: int) -> None:
        count = 4 * MOST_UPDATES
        found = forward(star(count), lot_of(hosts(count), 5_000_000), [Aggregator(host=h) for h in hosts(able)])
        assert found is not None
        assert [place for group in found.groups for place in range(*group)] == list(range(count))
        sums = [t for t in found.transfers if t.inputs]
        assert all(found.transfers[i].destination == t.source for t in sums for i in t.inputs)
        brought = [update for i in found.last for update in found.transfers[i].members]
        assert sorted(brought) == sorted(UpdateId(host, 0, n) for n, host in enumerate(hosts(count)))
        assert last_ms(found) <= count * 40 / (able + 1) * 1.6 + 500

    def test_nothing_is_found_where_nothing_can_be_summed(self) -> None:
        network = star(3)
        assert forward(network, lot_of(["w000"], 1000)) is None
        assert forward(network, lot_of(hosts(3), 1000), []) is None
        assert forward(network, lot_of(hosts(3), 1000), [Aggregator(host=SERVER)]) is None
        network.set_rate(down_link(SERVER), 0)
        assert forward(network, lot_of(hosts(3), 1000)) is None


RATES = [0, 10**6, 10**8, 10**9, 10**9, 10**9, 999_999_937, 10**10]
SIZES = [0, 1, 1000, 10**6, 10**6, 1_234_567, 10**7]
TIMES = [0, 0, 0, 1, 400_000, 8 * MS, 100 * MS]


@pytest.mark.parametrize("seed", range(120))
def test_every_forest_keeps_the_laws(seed: int) -> None:
    rng = Random(seed)
    network = leaf_spine(3, 4) if seed % 3 == 0 else star(12, latency_ns=rng.choice([0, 1000, MS]))
    for link in network.links:
        if rng.random() < 0.3:
            network.set_rate(link, rng.choice(RATES))
        if rng.random() < 0.2:
            network.plan_rate_change(link, rng.choice(TIMES[4:]), rng.choice(RATES))
    reserve_some(rng, network)
    count = rng.randint(2, 24)
    sources = [rng.choice([*hosts(12), SERVER]) for _ in range(count)]
    lot = lot_of(sources, [rng.choice(SIZES) for _ in range(count)], [rng.choice(TIMES) for _ in range(count)])
    helpers = [
        Aggregator(host=host, most_updates=rng.choice([0, 0, 1, 2, 5]))
        for host in rng.sample([*hosts(12), SERVER], rng.choice([1, 3, 12]))
    ]
    objective, carried = rng.choice(list(Objective)), rng.choice([1, 2])
    chunk_bytes, now_ns = rng.choice([1, 1000, 64_000]), rng.choice(TIMES)
    found, again = (
        forward(network, lot, helpers, objective=objective, carried=carried, chunk_bytes=chunk_bytes, now_ns=now_ns)
        for _ in range(2)
    )
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert list(found.transfers) == list(again.transfers)


def reserve_some(rng: Random, network: Network) -> None:
    for n in range(rng.randint(0, 3)):
        path = network.path(rng.choice(hosts(12)), rng.choice([SERVER, "w000"]))
        profile = network.transfer(path, rng.choice(SIZES), rng.choice(TIMES))
        if profile is not None:
            network.reserve(n, path, profile)
