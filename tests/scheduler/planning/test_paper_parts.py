"""The paper's order of updates in parts (10.2): its example, drops, and algorithm 2 where there is one server."""

from __future__ import annotations

from mlfabric.network import Network, down_link, up_link
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.paper_parts import SentParts, SplitUpdate, order_parts

MS = 10**6
SERVERS = ("s0", "s1")
HOSTS = ("h0", "h1", "h2", "s0", "s1", "s2")


def star(*workers: str) -> Network:
    network = Network.star(10**9)
    for host in (*workers, *SERVERS):
        network.add_host(host)
    return network


def update(host: str, n: int, *part_bytes: int, computed_from: int = 0) -> SplitUpdate:
    return SplitUpdate(UpdateId(host, 0, n), host, part_bytes, 0, computed_from)


def ends_ms(found: list[SentParts]) -> list[tuple[str, list[float]]]:
    """Return when each part ends, by position."""
    return [(str(one.update.update), [profile.end_ns / MS for profile in one.profiles]) for one in found]


def test_the_papers_example_small_parts_of_a_later_update_do_not_go_before_large_ones_of_an_earlier() -> None:
    network = star("a")
    batch = [update("a", n, 10**5, 10**6) for n in (1, 2)]
    found = order_parts(batch, network, SERVERS, v_init=0, tau_max=9)
    # Each part by itself, shortest first, would go in the order 1.s0, 2.s0, 1.s1, 2.s1: 1 would end at 9.6 ms.
    assert ends_ms(found) == [("a#1", [0.8, 8.8]), ("a#2", [9.6, 17.6])]


def test_an_update_that_is_due_goes_before_a_shorter_one() -> None:
    batch = [update("a", 0, 10**6, 10**6), update("a", 1, 10**5, 10**5, computed_from=5)]
    found = order_parts(batch, star("a"), SERVERS, v_init=4, tau_max=4)
    assert ends_ms(found) == [("a#0", [8.0, 16.0]), ("a#1", [16.8, 17.6])]


def test_an_update_that_is_due_is_dropped_if_the_next_would_end_before_it() -> None:
    network = star("a", "b")
    network.set_rate(up_link("b"), 10**8)
    batch = [update("b", 0, 10**6, 10**6), update("a", 0, 10**6, 10**6, computed_from=5)]
    found = order_parts(batch, network, SERVERS, v_init=4, tau_max=4)
    assert ends_ms(found) == [("a#0", [8.0, 16.0])]


def test_an_update_without_a_way_to_one_server_takes_nothing_of_the_others() -> None:
    network = star("a", "b")
    network.set_rate(down_link("s1"), 0)
    found = order_parts([update("a", 0, 10**6, 1), update("b", 0, 10**6, 0)], network, SERVERS, v_init=0, tau_max=9)
    assert ends_ms(found) == [("b#0", [8.0, 0.0])]
