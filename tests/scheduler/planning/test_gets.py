"""Gets are served shortest transfer first."""

from __future__ import annotations

from mlfabric.network import down_link, up_link
from mlfabric.scheduler.planning.gets import order_gets
from tests.scheduler.planning.worlds import a_get, star

MS = 10**6


def test_gets_are_served_shortest_first_and_those_without_a_way_come_last() -> None:
    network = star(["s", "fast", "slow", "off"])
    network.set_rate(down_link("slow"), 10**8)
    network.set_rate(down_link("off"), 0)
    slots = order_gets([a_get(host) for host in ("off", "slow", "fast", "s")], network, "s", now_ns=MS)
    assert [(s.get.worker, s.profile and s.profile.end_ns) for s in slots] == [
        ("s", MS),
        ("fast", 9 * MS),
        ("slow", 89 * MS),
        ("off", None),
    ]
    assert [s.reason for s in slots[1:]] == [
        "shortest transfer first: 8.0 ms",
        "shortest transfer first: 88.0 ms",
        "a link on its path has no capacity",
    ]
    assert network.free_line(up_link("s")).at(MS) == 10**9


def test_no_gets_make_no_slots() -> None:
    assert order_gets([], star("s"), "s", now_ns=0) == ()
