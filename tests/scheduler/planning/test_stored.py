"""Algorithm 3 against full enumeration in plain Python, pruned search against unpruned, cases worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import HORIZON_NS, Network, Path, Profile
from mlfabric.network.draft import Draft
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning import stored
from mlfabric.scheduler.planning.fluid import stored_bounds, stored_kernel, stored_load, wide
from mlfabric.scheduler.planning.fluid.lines import Lines
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from mlfabric.scheduler.planning.profiles import Profiles

SEEDS = st.integers(0, 2**32)
SIZES = [0, 1, 3, 1000, 10**6, 10**6, 10**6, 2 * 10**6, 12_345_677, 2**50]
RATES = [0, 1, 7, 3_000_000, 10**9, 10**9, 10**9, 3 * 10**9, 10**10, 9_999_999_967, 2**43]
TIMES = [0, 0, 0, 1, 1000, 400_000, 800_000, 8_000_000, 8_000_001, 10**9]


@dataclass
class Case:
    """What ``forward_stored`` is asked for, before it is laid out as columns."""

    network: Network
    sources: list[str]
    sizes: list[int]
    ready_ns: list[int]
    aggregators: list[Aggregator]
    carried: int = 1
    now_ns: int = 0
    fixed: int = 0
    direct: list[Profile] | None = None
    planned: list[bool] = field(default_factory=list)
    tensors: list[int] | None = None

    def lot(self) -> Lot:
        updates = [UpdateId("w", 0, n) for n in range(len(self.sources))]
        direct = None if self.direct is None else Profiles.of(self.direct)
        planned = self.planned or [True] * len(updates)
        tensor_bits = None if self.tensors is None else np.array([8 * size for size in self.tensors], np.int64)
        bits, ready_ns = (np.array(column, np.int64) for column in ([8 * s for s in self.sizes], self.ready_ns))
        return Lot(updates, self.sources, bits, ready_ns, self.fixed, direct, planned, tensor_bits)

    def world(self) -> World:
        hosts = [a.host for a in self.aggregators]
        return World(self.network, sorted({*self.sources, *hosts}), list(dict.fromkeys(["s", *hosts])))

    def forward(self, objective: Objective) -> Forwarding:
        world = self.world()
        return stored.forward_stored(
            self.lot(),
            world,
            world.lines,
            "s",
            self.aggregators,
            now_ns=self.now_ns,
            objective=objective,
            carried=self.carried,
            toward=Toward.PRIMARY,
        )


@dataclass
class Sent:
    """One transfer of the brute force."""

    source: str
    destination: str
    size_bytes: int
    ready_ns: int
    profile: Profile
    arrive_ns: int
    members: tuple[int, ...]


@dataclass
class Tried:
    """One case of the brute force."""

    draft: Draft
    sent: list[Sent] = field(default_factory=list)
    groups: list[tuple[int, int]] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    arrive_ns: list[int] = field(default_factory=list)
    dry_ns: int = 0
    possible: bool = True
    shape: Shape = Shape.DIRECT


class Brute:
    """Every case of algorithm 3 as p_spec words it, over drafts of the network."""

    def __init__(self, case: Case, count: int, objective: Objective) -> None:
        self.case, self.count, self.objective = case, count, objective

    def best(self) -> Tried | None:
        found, least, count = None, None, self.count
        for n in range(self.case.fixed, count + 1):
            if not self.case.aggregators and n < count:
                continue
            tried = self.carry_out(n)
            if tried.possible and (least is None or self.cost(tried) <= least):
                found, least = tried, self.cost(tried)
        return found

    def cost(self, tried: Tried) -> int:
        reached, total = self.case.now_ns, 0
        for arrive_ns in tried.arrive_ns:
            reached = max(reached, arrive_ns)
            total += reached - self.case.now_ns
        return total if self.objective is Objective.MEAN_COMMIT else reached - self.case.now_ns

    def carry_out(self, n: int) -> Tried:
        case, tried = self.case, Tried(self.case.network.draft(), dry_ns=self.case.now_ns)
        for i in range(n):
            self.direct(tried, i, case.direct[i] if case.direct is not None else None)
        i, j, members, held = n, 0, list[int](), list[Sent]()
        while i < self.count:
            if j == len(case.aggregators):
                self.direct(tried, i, None)
                i += 1
                continue
            aggregator = case.aggregators[j]
            path = case.network.path(case.sources[i], aggregator.host)
            ready_ns = max(case.ready_ns[i], case.now_ns)
            profile = tried.draft.transfer(path, case.sizes[i], ready_ns)
            full = bool(aggregator.most_updates) and len(members) >= aggregator.most_updates
            in_time = profile is not None and (j + 1 == len(case.aggregators) or profile.end_ns <= tried.dry_ns)
            if profile is None or profile.end_ns >= HORIZON_NS or full or not in_time:
                self.close(tried, j, members, held)
                j, members, held = j + 1, [], []
                continue
            tried.draft.reserve(path, profile)
            arrive_ns = profile.end_ns + case.network.latency_ns(path)
            held.append(Sent(case.sources[i], aggregator.host, case.sizes[i], ready_ns, profile, arrive_ns, (i,)))
            members.append(i)
            i += 1
        if members:
            self.close(tried, j, members, held)
        return tried

    def direct(self, tried: Tried, i: int, given: Profile | None) -> None:
        case = self.case
        path, ready_ns = case.network.path(case.sources[i], "s"), max(case.ready_ns[i], case.now_ns)
        profile = given or tried.draft.transfer(path, case.sizes[i], ready_ns)
        reserved = given is not None and not case.planned[i]
        self.finish(tried, case.sources[i], path, case.sizes[i], ready_ns, profile, (i,), reserved)

    def close(self, tried: Tried, j: int, members: list[int], held: list[Sent]) -> None:
        if not members:
            return
        case, host, tried.shape = self.case, self.case.aggregators[j].host, Shape.STORED
        size = case.sizes[members[0]]
        if len(members) > 1:
            tensors = case.sizes if case.tensors is None else case.tensors
            size = case.carried * max(tensors[i] for i in members)
        tried.sent += held
        path, ready_ns = case.network.path(host, "s"), max(sent.arrive_ns for sent in held)
        profile = tried.draft.transfer(path, size, ready_ns)
        self.finish(tried, host, path, size, ready_ns, profile, tuple(members), False)

    def finish(
        self,
        tried: Tried,
        source: str,
        path: Path,
        size: int,
        ready_ns: int,
        profile: Profile | None,
        members: tuple[int, ...],
        reserved: bool,
    ) -> None:
        if profile is None or profile.end_ns >= HORIZON_NS:
            tried.possible = False
            return
        if not reserved:
            tried.draft.reserve(path, profile)
        arrive_ns = profile.end_ns + self.case.network.latency_ns(path)
        tried.last.append(len(tried.sent))
        tried.sent.append(Sent(source, "s", size, ready_ns, profile, arrive_ns, members))
        tried.groups.append((members[0], members[-1] + 1))
        tried.arrive_ns += [arrive_ns] * len(members)
        tried.dry_ns = max(tried.dry_ns, profile.end_ns)


def brute_force(case: Case, objective: Objective) -> tuple[int, Tried]:
    """The best case of the longest prefix for which there is one."""
    for count in range(len(case.sources), 0, -1):
        found = Brute(case, count, objective).best()
        if found is not None:
            return count, found
    return 0, Tried(case.network.draft())


def shown(transfers: Sequence[Transfer]) -> Iterator[Sent]:
    for transfer in transfers:
        yield Sent(
            transfer.source,
            transfer.destination,
            transfer.size_bytes,
            transfer.ready_ns,
            transfer.profile,
            transfer.arrive_ns,
            tuple(update.counter for update in transfer.members),
        )


def assert_free(lines: Lines, world: World, draft: Draft) -> None:
    """Assert that lines say what is free in a draft, from their heads on; nothing is free before."""
    for link, number in world.links.items():
        line = draft._own.get(link) or draft._base[link]
        found, node = [], int(lines.head[number])
        before = [max(0, bps) for at_ns, bps in zip(line.times, line.values, strict=False) if at_ns < lines.at_ns[node]]
        assert not any(before), f"{link}: {before} before the head"
        while node:
            found.append((int(lines.at_ns[node]), int(lines.bps[node])))
            node = int(lines.following[node])
        for at_ns, bps in found:
            assert bps == max(0, line.at(at_ns)), f"{link} at {at_ns}"
        for at_ns in line.times[:-1]:
            held = [bps for begin_ns, bps in found if begin_ns <= at_ns]
            assert not held or held[-1] == max(0, line.at(at_ns)), f"{link} at {at_ns}"


def assert_same(case: Case, objective: Objective) -> None:
    count, expected = brute_force(case, objective)
    found = case.forward(objective)
    assert found.arrive_ns.tolist() == expected.arrive_ns
    assert len(found.arrive_ns) == count
    assert list(found.groups) == expected.groups
    assert list(found.last) == expected.last
    sent = list(shown(found.transfers))
    for mine, theirs in zip(sent, expected.sent, strict=True):
        if not theirs.profile.pieces:
            theirs.profile = Profile(theirs.profile.end_ns, theirs.profile.end_ns, ())
        assert mine == theirs
    kinds = [Kind.SUM if len(one.members) > 1 else Kind.UPDATE for one in expected.sent]
    assert [transfer.kind for transfer in found.transfers] == kinds
    assert found.shape is expected.shape
    assert found.cost(objective, case.now_ns) == Brute(case, count, objective).cost(expected)
    assert_inputs(found.transfers)
    assert_free(found.lines, case.world(), expected.draft)


def assert_inputs(transfers: Sequence[Transfer]) -> None:
    """Assert that a sum carries on exactly what came to its source, and leaves when the last of it has arrived."""
    used: list[int] = []
    for transfer in transfers:
        inputs = [transfers[i] for i in transfer.inputs]
        used += transfer.inputs
        if inputs:
            assert transfer.members == tuple(update for one in inputs for update in one.members)
            assert {one.destination for one in inputs} == {transfer.source}
            assert transfer.ready_ns == max(one.arrive_ns for one in inputs)
    assert len(used) == len(set(used))
    assert {i for i, transfer in enumerate(transfers) if transfer.destination != "s"} <= set(used)


def graph(rng: random.Random, hosts: list[str]) -> Network:
    """Hosts behind one to three switches, some with a second cable; latencies differ."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    switches = [f"x{n}" for n in range(rng.randint(1, 3))]
    cables = [(host, rng.choice(switches)) for host in hosts]
    cables += list(pairwise(switches))
    cables += [(rng.choice(hosts), rng.choice(switches + hosts)) for _ in range(rng.randint(0, 4))]
    for tail, head in cables:
        if tail != head:
            latency_ns = rng.choice([0, 0, 1000, 10**6, 10**7])
            edges.add_edge(tail, head, capacity_bps=10**9, latency_ns=latency_ns)
            edges.add_edge(head, tail, capacity_bps=10**9, latency_ns=latency_ns)
    nx.set_node_attributes(edges, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(edges)


def leaf_spine(rng: random.Random, hosts: list[str]) -> Network:
    """Hosts in two to four racks, neighbours mostly in one, which one or two spines join."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    leaves = [f"leaf{n}" for n in range(rng.randint(2, 4))]
    cables = [(host, leaves[n * len(leaves) // len(hosts)]) for n, host in enumerate(hosts)]
    cables += [(leaf, f"spine{n}") for n in range(rng.randint(1, 2)) for leaf in leaves]
    for tail, head in cables:
        latency_ns = rng.choice([0, 1000])
        edges.add_edge(tail, head, capacity_bps=10**9, latency_ns=latency_ns)
        edges.add_edge(head, tail, capacity_bps=10**9, latency_ns=latency_ns)
    nx.set_node_attributes(edges, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(edges)


def star(rng: random.Random, hosts: list[str]) -> Network:
    network = Network.star(10**9, rng.choice([0, 0, 1000, 10**6, 10**7]))
    for host in hosts:
        network.add_host(host)
    return network


def disturb(rng: random.Random, network: Network, hosts: list[str], rates: Sequence[int], times: Sequence[int]) -> None:
    """Give links their rates, plan changes of some, and reserve some of what is free."""
    for link in network.links:
        network.set_rate(link, rng.choice(rates))
        for at_ns in sorted({rng.choice(times) for _ in range(rng.choice([0, 0, 0, 1, 2]))} - {0}):
            network.plan_rate_change(link, at_ns, rng.choice(rates))
    for n in range(rng.randint(0, 2)):
        path = network.path(rng.choice(hosts), rng.choice(hosts))
        profile = network.transfer(path, rng.choice([1000, 10**6]), rng.choice(times))
        if profile is not None:
            network.reserve(("before", n), path, profile)


def fly(case: Case, rng: random.Random) -> None:
    """Let some of the first updates be on their way already."""
    case.fixed = rng.choice([0, 0, 0, rng.randint(0, len(case.sources))])
    case.planned = [i >= case.fixed or rng.random() < 0.5 for i in range(len(case.sources))]


def plan_directly(case: Case, rng: random.Random) -> None:
    """Bring direct profiles, planned in another order than that of the commits; none if one cannot be sent."""
    found: dict[int, Profile | None] = {}
    fly(case, rng)
    for i, planned in enumerate(case.planned):
        if not planned:
            path = case.network.path(case.sources[i], "s")
            profile = found[i] = case.network.transfer(path, case.sizes[i], case.ready_ns[i])
            if profile is not None:
                case.network.reserve(("flying", i), path, profile)
    draft = case.network.draft()
    for i in rng.sample(range(len(case.sources)), len(case.sources)):
        if i not in found:
            path = case.network.path(case.sources[i], "s")
            profile = found[i] = draft.transfer(path, case.sizes[i], max(case.now_ns, case.ready_ns[i]))
            if profile is not None:
                draft.reserve(path, profile)
    profiles = [found[i] for i in range(len(case.sources))]
    sent = [profile for profile in profiles if profile is not None]
    if len(sent) == len(profiles):
        case.direct = sent
    else:
        case.fixed, case.planned = 0, []


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    hosts = ["s", *(f"h{n}" for n in range(rng.randint(1, 6)))]
    network = rng.choice([star, graph, leaf_spine])(rng, hosts)
    rates = rng.choice([RATES, [10**9], [10**9, 2 * 10**9], [10**9, 10**10, 0]])
    disturb(rng, network, hosts, rates, TIMES)
    count, sizes = rng.randint(0, 9), rng.choice([SIZES, [10**6], [10**6, 2 * 10**6], [0, 10**6]])
    likely = [host for host in hosts if host != "s" or rng.random() < 0.2]
    places = rng.sample(likely, min(len(likely), rng.randint(0, 4)))
    case = Case(
        network=network,
        sources=[rng.choice(likely) for _ in range(count)],
        sizes=[rng.choice(sizes) for _ in range(count)],
        ready_ns=[rng.choice(TIMES if rng.random() < 0.4 else [0]) for _ in range(count)],
        aggregators=[Aggregator(host=host, most_updates=rng.choice([0, 0, 0, 1, 2, 3])) for host in places],
        carried=rng.choice([1, 1, 2]),
        now_ns=rng.choice([0, 0, 1000, 800_000]),
    )
    if rng.random() < 0.2 and case.carried == 2:
        case.tensors = [size // rng.choice([1, 2]) for size in case.sizes]
    if rng.random() < 0.6:
        plan_directly(case, rng)
    return case


@settings(max_examples=400)
@given(seed=SEEDS, objective=st.sampled_from(Objective))
def test_the_best_case_is_that_of_full_enumeration_in_plain_python(seed: int, objective: Objective) -> None:
    assert_same(random_case(seed), objective)


def large_case(seed: int) -> Case:
    """60 to 200 updates on links that are alike or not."""
    rng = random.Random(seed)
    count = rng.randint(60, 200)
    hosts = ["s", *(f"h{n}" for n in range(rng.randint(3, count // 2)))]
    network = rng.choice([star, graph, leaf_spine])(rng, hosts)
    rates = rng.choice([[10**9], [10**9, 10**9, 3 * 10**9], range(10**9, 10**10), [10**9, 10**9, 10**9, 0]])
    disturb(rng, network, hosts, rates, [0, 0, 0, 10**7, 10**8])
    sizes = rng.choice([[10**6], [10**6, 10**6 + 1, 2 * 10**6], range(10**5, 2 * 10**6)])
    times = rng.choice([[0], [0], [0, 10**7], range(10**9)])
    places = rng.sample(hosts[1:], min(len(hosts) - 1, rng.randint(1, 8)))
    case = Case(
        network=network,
        sources=[rng.choice(hosts[1:]) for _ in range(count)],
        sizes=[rng.choice(sizes) for _ in range(count)],
        ready_ns=[rng.choice(times) for _ in range(count)],
        aggregators=[Aggregator(host=host, most_updates=rng.choice([0, 0, 0, count // 10])) for host in places],
        carried=rng.choice([1, 2]),
    )
    if rng.random() < 0.5:
        plan_directly(case, rng)
    return case


def rack_case(seed: int) -> Case:
    """60 to 120 updates between racks whose uplinks are scarce; the aggregators are neighbours, mostly in one rack."""
    rng = random.Random(seed)
    count, hosts = rng.randint(60, 120), ["s", *(f"h{n}" for n in range(rng.randint(16, 40)))]
    rng.shuffle(hosts)
    network = leaf_spine(rng, hosts)
    disturb(rng, network, hosts, rng.choice([[10**9], [10**9, 2 * 10**9]]), [0, 10**7])
    hosts.remove("s")
    k = rng.randint(2, 8)
    first, sizes = rng.randint(0, len(hosts) - k), rng.choice([[10**6], range(10**5, 2 * 10**6)])
    case = Case(
        network=network,
        sources=[rng.choice(hosts) for _ in range(count)],
        sizes=[rng.choice(sizes) for _ in range(count)],
        ready_ns=[0] * count,
        aggregators=[Aggregator(host=host) for host in hosts[first : first + k]],
        carried=rng.choice([1, 2]),
    )
    if rng.random() < 0.5:
        plan_directly(case, rng)
    return case


def searched(case: Case, objective: Objective, prune: bool) -> tuple[Any, int]:
    """What the kernel finds, as plain values; how many cases it tried."""
    world, lot = case.world(), case.lot()
    load = stored._load(lot, world, "s", case.aggregators, case.now_ns, case.carried)
    solo = stored._solo(load, lot, world, world.lines, len(case.sources))
    mean = objective is Objective.MEAN_COMMIT
    n, sheet, tried = stored_kernel.search(world.lines, world.routes, load, solo, mean, prune)
    sends, pieces = sheet.used.tolist() if n >= 0 else (0, 0)
    return (n, sheet.sends[:sends].tolist(), sheet.pieces[:pieces].tolist()), tried


@settings(max_examples=60)
@given(seed=SEEDS, objective=st.sampled_from(Objective), make=st.sampled_from([large_case, rack_case]))
def test_pruning_changes_nothing(seed: int, objective: Objective, make: Callable[[int], Case]) -> None:
    case = make(seed)
    assert searched(case, objective, True)[0] == searched(case, objective, False)[0]


@settings(max_examples=40)
@given(seed=SEEDS, objective=st.sampled_from(Objective), make=st.sampled_from([large_case, rack_case]))
def test_no_case_costs_less_than_its_lower_bound(seed: int, objective: Objective, make: Callable[[int], Case]) -> None:
    case = make(seed)
    world, lot, mean = case.world(), case.lot(), objective is Objective.MEAN_COMMIT
    load = stored._load(lot, world, "s", case.aggregators, case.now_ns, case.carried)
    solo = stored._solo(load, lot, world, world.lines, len(case.sources))
    part = stored_kernel.direct_part(world.routes, load, solo, mean)
    bounds = stored_load.prepare(world.lines, world.routes, load, solo.planned, int(part.dry_ns[-1]))
    job = stored_kernel.Job(world.lines, world.routes, load, solo, bounds, part, mean)
    sheet = stored_kernel.new_sheet(world.lines, load, 256 * len(case.sources))
    high, low = np.zeros((2, min(len(part.dry_ns), len(case.sources))), np.int64)
    stored_bounds.survey(world.routes, load, bounds, part, mean, high, low)
    for n in range(case.fixed, len(high)):
        how, cost = stored_kernel.try_on(job, sheet, n, wide.ENDLESS)
        assert how != stored_kernel.CROWDED
        least = stored_bounds.sums_bound(world.routes, load, bounds, stored_bounds.state_of(part, n), mean)
        assert how == stored_kernel.NEVER or max((high[n], low[n]), least) <= cost, f"case {n}"


def equal(count: int, hosts: int, k: int, **more: Any) -> Case:
    """Updates of 1 ms wire time each, several per host."""
    network = Network.star(8 * 10**9)
    for host in ["s", *(f"h{n}" for n in range(hosts))]:
        network.add_host(host)
    case = Case(
        network=network,
        sources=[f"h{n % hosts}" for n in range(count)],
        sizes=[10**6] * count,
        ready_ns=[0] * count,
        aggregators=[Aggregator(host=f"h{n}") for n in range(k)],
        **more,
    )
    plan_in_turn(case)
    return case


def racks_of_16(count: int) -> Case:
    """Updates of 1 ms wire time each from four racks with uplinks for two hosts; all aggregators are in one."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    racks = {f"h{n}": f"leaf{n // 16}" for n in range(64)} | {"s": "leaf1"}
    cables = [(host, leaf, 8 * 10**9) for host, leaf in racks.items()]
    cables += [(f"leaf{n}", "spine", 16 * 10**9) for n in range(4)]
    for tail, head, bps in cables:
        edges.add_edge(tail, head, capacity_bps=bps, latency_ns=0)
        edges.add_edge(head, tail, capacity_bps=bps, latency_ns=0)
    nx.set_node_attributes(edges, dict.fromkeys(racks, True), "host")
    aggregators = [Aggregator(host=f"h{n}") for n in range(8)]
    sources = [f"h{n % 64}" for n in range(count)]
    case = Case(Network.from_graph(edges), sources, [10**6] * count, [0] * count, aggregators)
    plan_in_turn(case)
    return case


def plan_in_turn(case: Case) -> None:
    draft, case.direct = case.network.draft(), []
    for source, size in zip(case.sources, case.sizes, strict=True):
        path = case.network.path(source, "s")
        profile = draft.transfer(path, size, 0)
        assert profile is not None
        draft.reserve(path, profile)
        case.direct.append(profile)
    case.planned = [True] * len(case.sources)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("updates", [500, 1000])
def test_on_equal_links_few_cases_are_carried_out(updates: int, objective: Objective) -> None:
    assert searched(equal(updates, updates // 2, 8), objective, True)[1] <= 5


@pytest.mark.parametrize(("objective", "most"), [(Objective.MEAN_COMMIT, 30), (Objective.LAST_COMMIT, 4)])
def test_between_oversubscribed_racks_few_cases_are_carried_out(objective: Objective, most: int) -> None:
    assert searched(racks_of_16(320), objective, True)[1] <= most


def test_groups_fill_the_time_in_which_the_servers_ingress_is_busy() -> None:
    found = equal(13, 13, 2).forward(Objective.LAST_COMMIT)
    # 4 directly, in 4 ms; meanwhile 4 reach the first aggregator, and 5 the second until that sum has been sent too.
    assert list(found.groups) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8), (8, 13)]
    assert found.arrive_ns.tolist() == [1_000_000, 2_000_000, 3_000_000, 4_000_000] + [5_000_000] * 4 + [6_000_000] * 5


def test_of_equal_cases_the_one_with_most_direct_transfers_wins() -> None:
    case = equal(2, 2, 1)
    # h0 aggregates: both at 1 ms there, at 2 ms at the server; directly the last one ends at 2 ms too.
    assert Brute(case, 2, Objective.LAST_COMMIT).cost(Brute(case, 2, Objective.LAST_COMMIT).carry_out(0)) == 2_000_000
    found = case.forward(Objective.LAST_COMMIT)
    assert found.shape is Shape.DIRECT
    assert list(found.groups) == [(0, 1), (1, 2)]


def test_a_sum_leaves_when_its_last_member_has_arrived() -> None:
    network = Network.star(8 * 10**9, 250_000)
    for host in "sabcd":
        network.add_host(host)
    case = Case(network, list("bcdb"), [10**6] * 4, [0] * 4, [Aggregator(host="a")])
    plan_in_turn(case)
    transfers = case.forward(Objective.LAST_COMMIT).transfers
    assert [transfer.arrive_ns for transfer in transfers] == [1_250_000, 2_250_000, 1_250_000, 2_250_000, 3_500_000]
    assert transfers[4].ready_ns == 2_250_000
    assert transfers[4].inputs == (2, 3)


def test_without_aggregators_everything_goes_directly() -> None:
    found = equal(3, 3, 0).forward(Objective.MEAN_COMMIT)
    assert found.shape is Shape.DIRECT
    assert found.arrive_ns.tolist() == [1_000_000, 2_000_000, 3_000_000]


def test_what_is_stuck_and_what_follows_it_is_left_out() -> None:
    case = equal(5, 5, 1)
    case.direct = None
    for link in case.network.path("h2", "s")[:1]:
        case.network.set_rate(link, 0)
    assert_same(case, Objective.LAST_COMMIT)
    assert len(case.forward(Objective.LAST_COMMIT).arrive_ns) == 2


def test_no_updates_need_no_transfers() -> None:
    found = equal(0, 2, 1).forward(Objective.LAST_COMMIT)
    assert (len(found.arrive_ns), len(found.transfers), len(found.groups)) == (0, 0, 0)


def test_a_transfer_is_made_only_when_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def make(**values: object) -> object:
        made.append(values)
        return values

    monkeypatch.setattr(stored, "Transfer", make)
    found = equal(40, 20, 3).forward(Objective.MEAN_COMMIT)
    assert len(found.transfers) > 40
    assert not made
    assert found.transfers[-1]
    assert len(made) == 1


def test_what_was_free_before_stays_as_it_is() -> None:
    case = equal(40, 20, 3)
    world = case.world()
    before = [column.copy() for column in world.lines]
    stored.forward_stored(
        case.lot(),
        world,
        world.lines,
        "s",
        case.aggregators,
        now_ns=0,
        objective=Objective.MEAN_COMMIT,
        carried=1,
        toward=Toward.REPLICA,
    )
    assert all((a == b).all() for a, b in zip(before, world.lines, strict=True))
