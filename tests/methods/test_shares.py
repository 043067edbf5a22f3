"""At most at which rate the streams of stripes go: exact rates, at links that are narrow and at links that are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mlfabric.methods.all_reduce import Shaped, shape_round
from mlfabric.methods.byte_trees import Trees
from mlfabric.methods.shares import held_to_shares
from mlfabric.network import Network, down_link, up_link
from mlfabric.planning import Shape
from mlfabric.protocol import RoundId

FAST = 1000
HOSTS = {"a": "ha", "b": "hb", "c": "hc"}
STARS = tuple(
    Trees(
        start=50 * n,
        end=50 * (n + 1),
        root=root,
        parents=dict.fromkeys(others, root),
        sources=dict.fromkeys(others, root),
        rate_bps=350,
    )
    for n, (root, others) in enumerate((("a", "bc"), ("b", "ac")))
)
"""Two stripes of half of the bytes each: links of a and b carry three halves each way, those of c two."""


def star(**rates_bps: tuple[int, int]) -> Network:
    """Links that carry FAST, but for those of some hosts: up and down."""
    network = Network.star(FAST)
    for host in HOSTS.values():
        network.add_host(host, *rates_bps.get(host, (FAST, FAST)))
    return network


Held = dict[str, int]


def held(network: Network, hosts: dict[str, str] = HOSTS, trees: tuple[Trees, ...] = STARS) -> list[tuple[Held, Held]]:
    """Return, by stripe, the streams that are held: those of the sums by sender, those of the results by receiver."""
    found = held_to_shares(trees, network, hosts, 0)
    for tree in found:
        assert sorted(tree.sums_bps) == sorted(tree.parents)
        assert sorted(tree.results_bps) == sorted(tree.sources)
    return [(that_are_held(tree.sums_bps), that_are_held(tree.results_bps)) for tree in found]


def that_are_held(rates: Mapping[str, int]) -> Held:
    return {worker: bps for worker, bps in rates.items() if bps}


def test_where_links_carry_more_than_comes_nothing_is_held() -> None:
    assert held(star()) == [({}, {}), ({}, {})]


def test_what_is_spread_out_at_more_than_its_share_is_held_where_all_links_are_alike() -> None:
    third = round(1.1 * (FAST // 3))
    assert held(star(), trees=tuple(replace(tree, rate_bps=500) for tree in STARS)) == [
        ({"b": third, "c": third}, {"b": third, "c": third}),
        ({"a": third, "c": third}, {"a": third, "c": third}),
    ]


def test_streams_over_a_slow_way_up_are_held_to_shares_of_it_with_a_tenth_more() -> None:
    assert held(star(ha=(300, FAST))) == [({}, {"b": 110, "c": 110}), ({"a": 110}, {})]
    assert held(star(hc=(200, FAST))) == [({"c": 110}, {}), ({"c": 110}, {})]


def test_streams_over_a_slow_way_down_are_held_to_shares_of_it_with_a_tenth_more() -> None:
    assert held(star(ha=(FAST, 300))) == [({"b": 110, "c": 110}, {}), ({}, {"a": 110})]
    assert held(star(hc=(FAST, 200))) == [({}, {"c": 110}), ({}, {"c": 110})]


def test_the_slower_of_a_streams_two_links_counts() -> None:
    assert held(star(ha=(FAST, 300), hc=(100, FAST))) == [({"b": 110, "c": 55}, {}), ({"c": 55}, {"a": 110})]


def test_a_stream_has_as_much_of_a_link_as_it_has_bytes_to_carry() -> None:
    small, large = (
        Trees(start=s, end=e, root=r, parents={"c": r}, sources={"c": r}, rate_bps=200)
        for s, e, r in ((0, 20, "a"), (20, 100, "b"))
    )
    assert held(star(hc=(200, FAST)), trees=(small, large)) == [({"c": 44}, {}), ({"c": 176}, {})]


def test_streams_may_make_up_for_what_the_first_and_last_hops_of_a_round_take() -> None:
    (one, *_) = held_to_shares(STARS, star(hc=(200, FAST)), HOSTS, 0, over_span=1.5)
    assert that_are_held(one.sums_bps) == {"c": 165}


def test_what_stays_on_a_host_loads_no_link_and_is_not_held() -> None:
    beside = tuple(replace(t, parents={**t.parents, "d": "a"}, sources={**t.sources, "d": "a"}) for t in STARS)
    hosts = {**HOSTS, "d": "ha"}
    assert held(star(ha=(300, FAST)), hosts, beside) == held(star(ha=(300, FAST)))


def test_links_of_hosts_that_the_network_does_not_know_hold_nothing() -> None:
    unknown = {**HOSTS, "a": "elsewhere"}
    assert held(star(ha=(1, 1)), unknown) == [({}, {}), ({}, {})]
    assert held(star(hc=(200, FAST)), unknown) == [({"c": 110}, {}), ({"c": 110}, {})]


FULL = 1_000_000_000
SIX = {f"w{n}": f"h{n}" for n in range(6)}


def shaped(up_bps: int, down_bps: int, without: frozenset[Shape] = frozenset()) -> tuple[Network, Shaped]:
    """Plan a round of six, one of which has a link that carries so much."""
    network = Network.star(100 * FULL)
    for host in SIX.values():
        network.add_host(host, *((up_bps, down_bps) if host == "h5" else (FULL, FULL)))
    found = shape_round(network, SIX, 25_000_000, RoundId(1, 1), 0, (), without)
    assert isinstance(found, Shaped), found
    return network, found


@pytest.mark.parametrize(("up_bps", "down_bps"), [(FULL // 2, FULL), (FULL, FULL // 2)])
def test_all_streams_of_a_link_together_have_little_more_than_a_tenth_more_than_it_carries(up_bps, down_bps) -> None:
    """As much as first chunks take of a round, which is little of a long tensor."""
    network, found = shaped(up_bps, down_bps)
    assert found.shape is Shape.STRIPES
    for worker, host in SIX.items():
        up = [tree.sums_bps[worker] for tree in found.trees if worker in tree.parents]
        up += [tree.results_bps[w] for tree in found.trees for w, source in tree.sources.items() if source == worker]
        down = [tree.results_bps[worker] for tree in found.trees if worker in tree.sources]
        down += [tree.sums_bps[w] for tree in found.trees for w, parent in tree.parents.items() if parent == worker]
        for link, rates in ((up_link(host), up), (down_link(host), down)):
            assert all(rates)
            assert sum(rates) <= 1.1 * 1.05 * network.rate_bps(link, 0) + len(rates)


def test_nothing_is_held_in_a_ring() -> None:
    _, found = shaped(FULL, FULL, frozenset(Shape) - {Shape.RING})
    assert found.shape is Shape.RING
    assert not any(tree.sums_bps or tree.results_bps for tree in found.trees)
