"""The paper's own algorithms on the paper's own examples."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.model.divergence import Lead, Limit, units_above
from mlfabric.network import Network, down_link, up_link
from mlfabric.planning import Aggregator, Candidate, Consistency
from mlfabric.planning.paper import Choice, aggregate, distribute, order_updates, replicate
from mlfabric.planning.paper_plan import plan_by_paper
from mlfabric.protocol import DropReason, UpdateId
from tests.planning.worlds import a_get, an_update, random_fabric
from tests.planning.worlds import star as star_of

MS = 10**6
MB = 10**6
SERVERS = ("s0", "s1")
HELPERS = (Aggregator(host="x"), Aggregator(host="y"))


def star(*hosts: str) -> Network:
    """Every link carries a megabyte in 8 ms."""
    return star_of([*hosts, *SERVERS])


def ends_ms(found: list[Choice]) -> list[tuple[str, list[float]]]:
    """Return when each part ends, by position."""
    return [(str(one.update.update), [profile.end_ns / MS for profile in one.profiles]) for one in found]


def in_parts(parts: dict[str, tuple[int, ...]]) -> Callable[[Candidate], tuple[int, ...]]:
    return lambda c: parts[str(c.update)]


def test_algorithm_1_sends_the_shortest_transfer_first() -> None:
    batch = [an_update("a", n, size) for n, size in enumerate((3 * MB, MB, 2 * MB))]
    found, left = order_updates(batch, star("a"), ["s0"], v_init=0, tau_max=None, now_ns=0)
    assert ends_ms(found) == [("a#1", [8.0]), ("a#2", [24.0]), ("a#0", [48.0])]
    assert not left


def test_algorithm_2_drops_an_update_that_is_due_if_the_next_would_end_before_it() -> None:
    """Figure 5: w1 has 10 of the 100 Mbit/s; g1 is due at 1, g2 at 5; both have 100 Mbit."""
    network = Network.star(100 * 10**6)
    for host, bps in (("s", 0), ("w1", 10**7), ("w2", 0)):
        network.add_host(host, bps)
    size_bytes = 100 * 10**6 // 8
    batch = [an_update("w1", 0, size_bytes), an_update("w2", 0, size_bytes, computed_from=4)]
    found, left = order_updates(batch, network, ["s"], v_init=0, tau_max=0, now_ns=0)
    assert ends_ms(found) == [("w2#0", [1000.0])]
    assert left == {UpdateId("w1", 0, 0): DropReason.NEXT_IS_FASTER}


def test_an_update_that_is_due_goes_before_a_shorter_one() -> None:
    batch = [an_update("a", 0), an_update("a", 1, MB // 10, computed_from=5)]
    parts = in_parts({"a#0": (MB, MB), "a#1": (MB // 10, MB // 10)})
    found, _ = order_updates(batch, star("a"), SERVERS, v_init=4, tau_max=4, now_ns=0, part_bytes=parts)
    assert ends_ms(found) == [("a#0", [8.0, 16.0]), ("a#1", [16.8, 17.6])]


def test_small_parts_of_a_later_update_do_not_go_before_large_ones_of_an_earlier() -> None:
    """Section 10.2: each part by itself, shortest first, would go in the order 1.s0, 2.s0, 1.s1, 2.s1."""
    batch = [an_update("a", n) for n in (1, 2)]
    parts = in_parts(dict.fromkeys(("a#1", "a#2"), (MB // 10, MB)))
    found, _ = order_updates(batch, star("a"), SERVERS, v_init=0, tau_max=9, now_ns=0, part_bytes=parts)
    assert ends_ms(found) == [("a#1", [0.8, 8.8]), ("a#2", [9.6, 17.6])]


def test_an_update_without_a_way_to_one_server_takes_nothing_of_the_others() -> None:
    network = star("a", "b")
    network.set_rate(down_link("s1"), 0)
    parts = in_parts({"a#0": (MB, 1), "b#0": (MB, 0)})
    batch = [an_update("a", 0), an_update("b", 0)]
    found, left = order_updates(batch, network, SERVERS, v_init=0, tau_max=9, now_ns=0, part_bytes=parts)
    assert ends_ms(found) == [("b#0", [8.0, 0.0])]
    assert left == {UpdateId("a", 0, 0): DropReason.NO_CAPACITY}


def figure_6() -> tuple[Network, list[Candidate]]:
    """Six updates; the last one has half the rate."""
    network = star("x", "y", *(f"w{n}" for n in range(1, 7)))
    network.set_rate(up_link("w6"), 5 * 10**8)
    return network, [an_update(f"w{n}", 0) for n in range(1, 7)]


def test_algorithm_3_fills_an_aggregator_while_the_server_receives_what_was_before() -> None:
    """Figure 6: two go directly or more; a group is closed before the update that would come too late."""
    network, order = figure_6()
    legs = aggregate(order, network, "s0", HELPERS, now_ns=0)
    to_server = [leg for leg in legs if leg.destination == "s0"]
    assert [update for leg in to_server for update in leg.members] == [one.update for one in order], "in the order"
    assert max(leg.profile.end_ns for leg in to_server) < 6 * 8 * MS, "sooner than all directly"
    busy_ns = 0
    for leg in to_server:
        assert leg.ready_ns <= busy_ns, "the server is never kept waiting"
        busy_ns = leg.profile.end_ns


def test_algorithm_3_needs_a_way_for_every_update() -> None:
    network, order = figure_6()
    network.set_rate(up_link("w1"), 0)
    with pytest.raises(UsageError, match="nothing passes from w1 to s0"):
        aggregate(order, network, "s0", [], now_ns=0)


def test_a_model_goes_to_the_last_distributor_first() -> None:
    """Section 10.3: the server serves the first group itself, last."""
    network = star("x", "y", *(f"w{n}" for n in range(6)))
    gets = [a_get(f"w{n}") for n in range(6)]
    groups = distribute(gets, network, "s0", HELPERS, now_ns=0)
    assert groups[-1][0] == "s0"
    assert [host for host, _ in groups[:-1]] == sorted((host for host, _ in groups[:-1]), reverse=True)
    assert sorted(get for _, group in groups for get in group) == sorted(get.get for get in gets)


def two_commits(norm: float) -> tuple[int, int, bool]:
    """Figure 3: two updates come to the server, and then to a replica whose lead may have ``norm``."""
    network = star("a", "b")
    order = [an_update("a", 0), an_update("b", 0)]
    to_server = aggregate(order, network, "s0", [], now_ns=0)
    lead = Lead([units_above(1.0), units_above(1.0)])
    network.set_rate(down_link("s1"), 5 * 10**8)
    found = replicate(order, to_server, network, "s1", [], limit=Limit.of(norm, None), lead=lead, now_ns=0)
    return found.frozen, found.last_from_ns // MS, len(found.legs) == found.frozen


def test_the_replica_gets_what_is_there_by_the_last_commit_and_the_rest_is_punted() -> None:
    assert two_commits(2.0) == (0, 0, True)


def test_the_last_update_waits_for_the_replica_if_the_bound_would_break() -> None:
    frozen, last_from_ms, is_prefix = two_commits(1.0)
    assert (frozen, is_prefix) == (1, True)
    assert last_from_ms > 16


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_a_whole_plan_keeps_its_promises(seed: int) -> None:
    fabric = random_fabric(
        Random(seed),
        consistencies=[Consistency.ASYNCHRONOUS, Consistency.SYNCHRONOUS],
        most=7,
    )
    found = plan_by_paper(fabric.batch, fabric.network, fabric.state, fabric.config)
    found.validate(fabric.network)
    assert found.explain(fabric.network)
