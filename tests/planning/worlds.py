"""Random networks with batches.

Everything is drawn from a ``Random``: hypothesis' own in tests, so that it can shrink; a seeded one in long hunts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import networkx as nx
from hypothesis import strategies as st

from mlfabric.network import Network, down_link, up_link
from mlfabric.planning import Candidate
from mlfabric.planning.ordering import order
from mlfabric.planning.plan import Plan
from mlfabric.planning.plan_values import GetCandidate, Ordering
from mlfabric.planning.planner import plan
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    Consistency,
    DivergenceBound,
    FabricState,
    Objective,
    Pending,
    PlannerConfig,
    Replica,
    Shape,
)
from mlfabric.protocol import GetId, UpdateId

SERVER = "s"
WITH_SERVER = tuple(c for c in Consistency if c is not Consistency.ALL_REDUCE)
GBPS = 10**9
# Few values, so that ties are common; odd ones, so that nothing divides; 0 and the limits. At 3 Mbit/s one transfer of
# 2**50 bytes ends before the horizon, and a second one does not.
WILD_RATES = [0, 1, 7, 3_000_000, GBPS, GBPS, 3 * GBPS, 10 * GBPS, 10 * GBPS, 9_999_999_967, 2**43]
WILD_SIZES = [0, 1, 3, 1000, 10**6, 10**6, 10**6, 2 * 10**6, 12_345_677, 2**50]
TAME_RATES = [GBPS, GBPS, GBPS, GBPS // 2, GBPS // 4, GBPS // 10, 2 * GBPS, 333_333_331, 0]
TAME_SIZES = [10**6, 10**6, 10**6, 2 * 10**6, 10**5, 1_234_567, 0]
NARROW_RATES = [GBPS, GBPS, GBPS // 2, 999_999_990]
NARROW_SIZES = [10**6, 10**6, 10**6, 2 * 10**6, 1_234_567]
KINDS = {
    "wild": (WILD_RATES, WILD_SIZES),
    "tame": (TAME_RATES, TAME_SIZES),
    "narrow": (NARROW_RATES, NARROW_SIZES),
    "even": ([GBPS], [10**6]),
}
TIMES = [0, 0, 1, 1000, 400_000, 800_000, 8_000_000, 8_000_001, 10**9]
LATENCIES = [0, 0, 1, 1000, 1_000_000]


@dataclass
class World:
    """A network, and one batch to be ordered."""

    network: Network
    candidates: list[Candidate]
    v_init: int
    tau_max: int | None
    now_ns: int

    def plan(self) -> Ordering:
        return order(
            self.candidates,
            self.network,
            SERVER,
            v_init=self.v_init,
            tau_max=self.tau_max,
            now_ns=self.now_ns,
        )


@dataclass
class Fabric:
    """A network, and all that a plan is made for."""

    network: Network
    batch: Batch
    state: FabricState
    config: PlannerConfig

    def plan(self, **changes: object) -> Plan:
        """Plan with some settings changed, and let the plan check itself."""
        found = plan(self.batch, self.network, self.state, replace(self.config, **changes))  # type: ignore[arg-type]
        found.validate(self.network)
        return found


def an_update(worker: str, n: int = 0, size_bytes: int = 10**6, **more: Any) -> Candidate:
    """Return an update of a worker on a host of its own, ready at 0, unless told."""
    usual = {"source": worker, "ready_ns": 0, "computed_from": 0}
    return Candidate(update=UpdateId(worker, 0, n), size_bytes=size_bytes, **{**usual, **more})


def a_get(worker: str, n: int = 0, size_bytes: int = 10**6, **more: Any) -> GetCandidate:
    """Return a get of a worker on a host of its own, ready at 0, unless told."""
    usual = {"destination": worker, "ready_ns": 0}
    return GetCandidate(get=GetId(worker, 0, n), size_bytes=size_bytes, **{**usual, **more})


def helpers(hosts: Iterable[str], most_updates: int = 0) -> tuple[Aggregator, ...]:
    return tuple(Aggregator(host=host, most_updates=most_updates) for host in hosts)


def names(count: int) -> list[str]:
    return [f"w{n:03}" for n in range(count)]


def star(hosts: Sequence[str], latency_ns: int = 0, bps: int = GBPS) -> Network:
    network = Network.star(bps, latency_ns)
    for host in hosts:
        network.add_host(host)
    return network


def set_host_rates(network: Network, host: str, up_bps: int, down_bps: int) -> None:
    network.set_rate(up_link(host), up_bps)
    network.set_rate(down_link(host), down_bps)


def from_cables(cables: Sequence[tuple[str, str]], hosts: Sequence[str], latency_ns: int = 0) -> Network:
    """Make a graph of two-way cables; what is no host is a switch."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    for tail, head in cables:
        for pair in ((tail, head), (head, tail)):
            edges.add_edge(*pair, capacity_bps=GBPS, latency_ns=latency_ns)
    nx.set_node_attributes(edges, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(edges)


def leaf_spine(hosts: Sequence[str], leaves: int = 2, spines: int = 1, latency_ns: int = 0) -> Network:
    """Two tiers: host n hangs at leaf n modulo ``leaves``; all hosts of a leaf share its few cables upwards."""
    down = [(host, f"leaf{n % leaves}") for n, host in enumerate(hosts)]
    up = [(f"leaf{leaf}", f"spine{spine}") for leaf in range(leaves) for spine in range(spines)]
    return from_cables(down + up, hosts, latency_ns)


def wan_mesh(hosts: Sequence[str], sites: int = 3, latency_ns: int = 0) -> Network:
    """Sites in a full mesh, hosts spread over them."""
    between = [(f"site{a}", f"site{b}") for a in range(sites) for b in range(a)]
    return from_cables([(host, f"site{n % sites}") for n, host in enumerate(hosts)] + between, hosts, latency_ns)


def two_nics(hosts: Sequence[str], latency_ns: int = 0) -> Network:
    """Each host has a cable to a left and one to a right switch; some hosts have a third to each other."""
    cables = [(host, switch) for host in hosts for switch in ("left", "right")]
    pairs = list(zip(hosts[1::2], hosts[2::2], strict=False))
    return from_cables([*cables, ("left", "right"), *pairs], hosts, latency_ns)


def shared_nics(hosts: Sequence[str], latency_ns: int = 0) -> Network:
    """GPUs in threes behind one NIC each, the NICs at one switch."""
    cables = [(host, f"nic{n // 3}") for n, host in enumerate(hosts)]
    return from_cables(cables + [(f"nic{n}", "switch") for n in range((len(hosts) + 2) // 3)], hosts, latency_ns)


def tangle(rng: Random, hosts: Sequence[str]) -> Network:
    """Hosts and two switches: a cable from each host to a switch, one between the switches, some more."""
    cables = {("x", "y")} | {(host, rng.choice("xy")) for host in hosts}
    cables |= {(rng.choice(hosts), rng.choice([*hosts, "x", "y"])) for _ in range(rng.randint(0, 3))}
    return from_cables(sorted((tail, head) for tail, head in cables if tail != head), hosts)


def worlds(most: int = 7, graphs: bool = False) -> st.SearchStrategy[World]:
    return st.randoms(use_true_random=False).map(lambda rng: random_world(rng, most, graphs))


def random_world(rng: Random, most: int, graphs: bool) -> World:
    hosts = [SERVER, *(f"h{n}" for n in range(rng.randint(1, 4)))]
    network = tangle(rng, hosts) if graphs else star(hosts)
    set_rates(rng, network, WILD_RATES)
    v_init, tau_max, now_ns = rng.randint(0, 20), rng.randint(0, 8), rng.choice(TIMES)
    reserve_some(rng, network, hosts, WILD_SIZES)
    count = rng.randint(0, most)
    updates = [random_update(rng, network, SERVER, v_init, hosts, n, WILD_SIZES) for n in range(count)]
    return World(network, updates, v_init, tau_max, now_ns)


def random_network(rng: Random, hosts: Sequence[str], kind: str) -> Network:
    """Make a star or a tangle with rates of one of the ``KINDS``; reserve something there."""
    rates, sizes = KINDS[kind]
    network = tangle(rng, hosts) if rng.random() < 0.5 else star(hosts, rng.choice(LATENCIES))
    set_rates(rng, network, rates)
    reserve_some(rng, network, hosts, sizes)
    return network


def set_rates(rng: Random, network: Network, rates: Sequence[int], slow: str | None = None) -> None:
    """Give each link a rate and up to two changes of it that are known in advance.

    Args:
        slow: a host whose links have a tenth of what they would have.
    """
    for link in network.links:
        share = 10 if slow in (link.tail, link.head) else 1
        instants = sorted({rng.choice(TIMES[2:]) for _ in range(rng.choice([0, 0, 1, 2]))})
        network.set_rate(link, rng.choice(rates) // share)
        for at_ns in instants:
            network.plan_rate_change(link, at_ns, rng.choice(rates) // share)


def reserve_some(rng: Random, network: Network, hosts: Sequence[str], sizes: Sequence[int]) -> None:
    for n in range(rng.randint(0, 2)):
        path = network.path(rng.choice(hosts), rng.choice(hosts))
        profile = network.transfer(path, rng.choice(sizes), rng.choice(TIMES))
        if profile is not None:
            network.reserve(("before", n), path, profile)


def random_update(
    rng: Random, network: Network, server: str, v_init: int, hosts: Sequence[str], n: int, sizes: Sequence[int]
) -> Candidate:
    """Draw an update; some are on their way already, if they can be sent at all."""
    candidate = Candidate(
        update=UpdateId(rng.choice("abc"), 0, n),
        source=rng.choice(hosts),
        size_bytes=rng.choice(sizes),
        ready_ns=rng.choice(TIMES),
        computed_from=v_init - rng.choice([0, 0, 0, 1, 2, 3, 5, 10]),
        norm=rng.choice([0.0, 0.5, 1.0, 1.0, 2.0]),
        clock=rng.randint(0, 2),
    )
    path = network.path(candidate.source, server)
    profile = None if rng.randint(0, 4) else network.transfer(path, candidate.size_bytes, candidate.ready_ns)
    if profile is not None:
        network.reserve(candidate.update, path, profile)
    return replace(candidate, in_flight=profile)


TOPOLOGIES: dict[str, Callable[[Sequence[str], int], Network]] = {
    "star": star,
    "leaf-spine": lambda hosts, latency_ns: leaf_spine(hosts, latency_ns=latency_ns),
    "two spines": lambda hosts, latency_ns: leaf_spine(hosts, leaves=3, spines=2, latency_ns=latency_ns),
    "wan": lambda hosts, latency_ns: wan_mesh(hosts, latency_ns=latency_ns),
    "two nics": two_nics,
    "shared nics": shared_nics,
}
BY_THEMSELVES = frozenset({Shape.DIRECT})


def fabrics(
    consistencies: Sequence[Consistency] = (Consistency.ASYNCHRONOUS,), shapes: frozenset[Shape] = BY_THEMSELVES
) -> st.SearchStrategy[Fabric]:
    return st.randoms(use_true_random=False).map(lambda rng: random_fabric(rng, consistencies, shapes))


def random_fabric(
    rng: Random,
    consistencies: Sequence[Consistency] = (Consistency.ASYNCHRONOUS,),
    shapes: frozenset[Shape] = BY_THEMSELVES,
    most: int = 8,
    kinds: Sequence[str] = tuple(KINDS),
    times: int = 1,
    topologies: Sequence[str] = tuple(TOPOLOGIES),
    most_hosts: int = 8,
) -> Fabric:
    """Draw everything that a plan depends on.

    Args:
        most: updates.
        kinds: rates and sizes at the limits, such as there are, slow links where all transfers end, or all the same.
        times: what rates and sizes are multiplied by.
        most_hosts: beside one, which may be the server's.
    """
    kind = rng.choice(kinds)
    rates, sizes = KINDS[kind]
    rates, sizes = [times * bps for bps in rates], [times * size_bytes for size_bytes in sizes]
    hosts = [SERVER, *(f"h{n}" for n in range(rng.randint(2 if kind == "narrow" else 1, most_hosts)))]
    network = TOPOLOGIES[rng.choice(topologies)](hosts, rng.choice(LATENCIES))
    server = rng.choice(hosts)
    set_rates(rng, network, rates, slow=server if kind == "narrow" else None)
    consistency = rng.choice(consistencies)
    v_init, now_ns = rng.randint(0, 20), rng.choice(TIMES)
    reserve_some(rng, network, hosts, sizes)
    if consistency is Consistency.ALL_REDUCE:
        return Fabric(network, *all_reduce(rng, FabricState(now_ns=now_ns, v_init=v_init), hosts, sizes, shapes))
    updates = [random_update(rng, network, server, v_init, hosts, n, sizes) for n in range(rng.randint(0, most))]
    aggregators = random_helpers(rng, hosts)
    replica = random_replica(rng, hosts, sizes)
    state = FabricState(
        now_ns=now_ns,
        v_init=v_init,
        server=server,
        aggregators=aggregators,
        distributors=random_helpers(rng, hosts),
        replica=replica,
        slowest_clock=rng.randint(0, 2),
    )
    config = random_config(rng, consistency, shapes, replica)
    batch = Batch(updates=tuple(updates), gets=random_gets(rng, hosts, rng.choice(sizes)))
    return Fabric(network, batch, state, config)


def all_reduce(
    rng: Random,
    state: FabricState,
    hosts: Sequence[str],
    sizes: Sequence[int],
    shapes: frozenset[Shape],
) -> tuple[Batch, FabricState, PlannerConfig]:
    """Draw updates of one size, mostly from different hosts."""
    size_bytes = rng.choice(sizes)
    count = rng.randint(1, len(hosts))
    sources = rng.sample(hosts, count) if rng.randint(0, 2) else rng.choices(hosts, k=count)
    updates = [
        an_update(source, n, size_bytes, ready_ns=rng.choice(TIMES), computed_from=state.v_init)
        for n, source in enumerate(sources)
    ]
    config = random_config(rng, Consistency.ALL_REDUCE, shapes, None)
    return Batch(updates=tuple(updates)), replace(state, aggregators=random_helpers(rng, hosts)), config


def random_helpers(rng: Random, hosts: Sequence[str]) -> tuple[Aggregator, ...]:
    chosen = rng.sample(hosts, min(rng.choice([0, 1, 2, 3, len(hosts)]), len(hosts)))
    return tuple(Aggregator(host=host, most_updates=rng.choice([0, 0, 1, 2, 3])) for host in chosen)


def random_replica(rng: Random, hosts: Sequence[str], sizes: Sequence[int]) -> Replica | None:
    if rng.randint(0, 2) == 0:
        return None
    pending = [
        Pending(
            update=UpdateId(rng.choice("abd"), 0, 1000 + n),
            source=rng.choice(hosts),
            size_bytes=rng.choice(sizes),
            step_norm=rng.choice([0.0, 0.25, 1.0, 3.0]),
        )
        for n in range(rng.randint(0, 4))
    ]
    return Replica(
        host=rng.choice(hosts),
        pending=tuple(pending),
        history_norm=rng.choice([0.0, 0.0, 1.0, 2.5]),
    )


def random_config(
    rng: Random, consistency: Consistency, shapes: frozenset[Shape], replica: Replica | None
) -> PlannerConfig:
    bound = DivergenceBound(
        norm=rng.choice([0.0, 0.5, 1.0, 2.0, 4.0, 10.0, float("inf")]),
        updates=rng.choice([None, None, 0, 1, 2, 3, 6]),
    )
    asynchronous = consistency is Consistency.ASYNCHRONOUS
    return PlannerConfig(
        consistency=consistency,
        objective=rng.choice([*Objective]),
        tau_max=rng.choice([None, *range(13)]) if asynchronous else None,
        shapes=shapes,
        gamma=rng.choice([0.0, 0.0, 0.5, 0.75]),
        chunk_bytes=rng.choice([64_000, 1, 10**6]),
        div_max=bound if replica and rng.randint(0, 3) else None,
        replicate_from=rng.choice([0.0, 0.5, 1.0]),
        slack=rng.randint(0, 2),
    )


def random_gets(rng: Random, hosts: Sequence[str], size_bytes: int) -> tuple[GetCandidate, ...]:
    together_ns = rng.choice(TIMES)
    return tuple(
        GetCandidate(
            get=GetId(rng.choice("abc"), 0, n),
            destination=rng.choice(hosts),
            size_bytes=size_bytes,
            ready_ns=rng.choice([together_ns, together_ns, together_ns, rng.choice(TIMES)]),
            clock=rng.randint(0, 3),
        )
        for n in range(rng.randint(0, 10))
    )
