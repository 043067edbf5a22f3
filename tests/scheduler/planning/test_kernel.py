"""The compiled kernel against plain Python on batches that are too large for the twin; gets; loading."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import Network, up_link
from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning import Candidate, GetCandidate, order, order_gets, reserving, warm_up
from mlfabric.scheduler.planning.compiled import kernel_reserver
from mlfabric.scheduler.planning.shortest import Demand, PythonReserver

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module", autouse=True)
def _kernel() -> None:
    warm_up(lambda line: None)


def few_rates(rng: random.Random) -> int:
    return int(rng.choice([1, 2.5, 3.3, 5, 10]) * 10**9)


def any_rate(rng: random.Random) -> int:
    return rng.randint(10**9, 10**10)


def close_rates(rng: random.Random) -> int:
    """So close that many transfers end within the same nanosecond."""
    return 3 * 10**9 + rng.randint(0, 50)


def a_star(rng: random.Random, hosts: int, rate: Callable[[random.Random], int]) -> Network:
    network = Network.star(10**10)
    network.add_host("s", up_bps=8 * 10**9)
    for n in range(hosts):
        network.add_host(f"h{n}", rate(rng), rate(rng))
    for link in rng.sample(network.links, k=rng.randint(0, 4)):
        network.plan_rate_change(link, rng.randint(1, 10**9), rng.choice([0, rate(rng)]))
    for n in range(rng.randint(0, 8)):
        path = network.path(f"h{rng.randrange(hosts)}", "s")
        profile = network.transfer(path, rng.randint(1, 10**8), rng.randint(0, 10**8))
        if profile is not None:
            network.reserve(n, path, profile)
    return network


def both(monkeypatch: pytest.MonkeyPatch, plan: Callable[[], object]) -> tuple[object, object]:
    monkeypatch.setattr(reserving, "KERNEL_FROM", 0)
    fast = plan()
    monkeypatch.setattr(reserving, "KERNEL_FROM", 10**9)
    return fast, plan()


@pytest.mark.parametrize("rate", [few_rates, any_rate, close_rates])
@settings(max_examples=25)
@given(seed=SEEDS)
def test_kernel_and_python_order_large_batches_alike(rate: Callable[[random.Random], int], seed: int) -> None:
    rng = random.Random(seed)
    hosts, count = rng.randint(1, 20), rng.randint(10, 60)
    network = a_star(rng, hosts, rate)
    sizes = rng.choice([[10**8], [10**7, 10**8], [10**8, 10**8 + 1, 5], [rng.randint(1, 10**8) for _ in range(9)]])
    candidates = [
        Candidate(
            update=UpdateId(f"w{n}", 0, 0),
            source=rng.choice([f"h{n % hosts}", "s", f"h{rng.randrange(hosts)}"]),
            size_bytes=rng.choice(sizes),
            ready_ns=rng.choice([0, 0, rng.randint(0, 10**9)]),
            computed_from=rng.choice([rng.randint(1, 2 * count), 10**6]),
        )
        for n in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        fast, slow = both(patch, lambda: order(candidates, network, "s", v_init=1, tau_max=0, now_ns=1000))
    assert fast == slow


@settings(max_examples=25)
@given(seed=SEEDS)
def test_kernel_and_python_order_gets_alike(seed: int) -> None:
    rng = random.Random(seed)
    network = a_star(rng, 10, rng.choice([few_rates, any_rate, close_rates]))
    requests = [
        GetCandidate(
            get=GetId(f"w{n}", 0, 0),
            destination=rng.choice([f"h{rng.randrange(10)}", "s"]),
            size_bytes=rng.choice([0, 10**7, 10**8]),
            ready_ns=rng.choice([0, rng.randint(0, 10**8)]),
        )
        for n in range(rng.randint(1, 40))
    ]
    with pytest.MonkeyPatch.context() as patch:
        fast, slow = both(patch, lambda: order_gets(requests, network, "s", now_ns=0))
    assert fast == slow


def test_the_kernel_takes_only_demands_that_share_one_of_two_hops() -> None:
    network = a_star(random.Random(1), 3, few_rates)
    to_server = [Demand(network.path(f"h{n}", "s"), 1, 0) for n in range(3)]
    across = Demand(network.path("h0", "h1"), 1, 0)
    assert kernel_reserver(to_server, network) is not None
    assert kernel_reserver([*to_server, Demand((), 1, 0)], network) is not None
    assert kernel_reserver([*to_server, across], network) is None
    assert kernel_reserver([Demand((up_link("h0"),), 1, 0)], network) is None
    assert kernel_reserver([Demand((), 1, 0)], network) is None


def test_a_small_batch_is_planned_in_python_and_a_large_one_by_the_kernel() -> None:
    network = a_star(random.Random(1), 3, few_rates)
    demand = Demand(network.path("h0", "s"), 1, 0)
    assert isinstance(reserving.reserver_for([demand], network), PythonReserver)
    assert isinstance(reserving.reserver_for([Demand((), 0, 0)] * reserving.KERNEL_FROM, network), PythonReserver)
    assert not isinstance(reserving.reserver_for([demand] * reserving.KERNEL_FROM, network), PythonReserver)


def test_warming_up_tells_what_it_waits_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "_loaded", [])
    lines: list[str] = []
    warm_up(lines.append)
    warm_up(lines.append)
    assert lines == ["loaded the planner's kernel"]
