"""Gets are served shortest transfer first."""

from __future__ import annotations

from mlfabric.network import Network, down_link, up_link
from mlfabric.protocol import GetId
from mlfabric.scheduler.planning import GetCandidate
from mlfabric.scheduler.planning.gets import order_gets

MS = 10**6


def get(host: str) -> GetCandidate:
    return GetCandidate(get=GetId(host, 0, 0), destination=host, size_bytes=10**6, ready_ns=0)


def test_gets_are_served_shortest_first_and_those_without_a_way_come_last() -> None:
    network = Network.star(10**9)
    for host in ("s", "fast", "slow", "off"):
        network.add_host(host)
    network.set_rate(down_link("slow"), 10**8)
    network.set_rate(down_link("off"), 0)
    slots = order_gets([get("off"), get("slow"), get("fast"), get("s")], network, "s", now_ns=MS)
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
    network = Network.star(10**9)
    network.add_host("s")
    assert order_gets([], network, "s", now_ns=0) == ()
