"""What a round tells of links: full ones are set to what they carried, others raised only, and tried again at last."""

from __future__ import annotations

from mlfabric.network import Network, down_link, up_link
from mlfabric.planning import Shape
from mlfabric.protocol import Peer, ReduceId, ReduceOp, ReducePart, ReduceRequested, RoundId
from mlfabric.scheduler.rounds.round_links import RoundLinks
from mlfabric.scheduler.rounds.running_round import RunningRound

SIZE = 1024
FULL_BPS = 1000
PEER = Peer("x", "x:1", bytes(16))


def part(start: int, end: int, *, inputs: int = 0, parent: bool = True, to: Peer = PEER) -> ReducePart:
    above = to if parent else None
    return ReducePart(start=start, end=end, inputs=(PEER,) * inputs, parent=above, source=above, takers=())


LEAF = (part(0, 512), part(512, 1024))
INNER = (part(0, 512, inputs=2), part(512, 1024))
HELD = (part(0, 512, to=PEER._replace(most_bps=9)), part(512, 1024))
TO_B = (part(0, 512, to=Peer("wb", "wb:1", bytes(16), most_bps=9)), part(512, 1024))
ROOT = (part(0, 512, inputs=1, parent=False), part(512, 1024, inputs=1))


def network(*hosts: str) -> Network:
    star = Network.star(FULL_BPS)
    for host in hosts:
        star.add_host(host)
    return star


def learn(star: Network, links: RoundLinks, hosts: dict[str, str], shape: Shape = Shape.STRIPES, **workers) -> None:
    """Let a round end; by worker its parts and what its link carried."""
    asked = {
        worker: ReduceRequested(
            reduce=ReduceId(worker, 1, 0), model="net", size_bytes=SIZE, dtype="float32", op=ReduceOp.SUM
        )
        for worker in workers
    }
    running = RunningRound(
        id=RoundId(1, 1),
        members=asked,
        parts={w: parts for w, (parts, *_) in workers.items()},
        reason="",
        reserved=(),
        shape=shape,
    )
    running.measured.update({worker: (up, down) for worker, (_, up, down) in workers.items()})
    links.learn(star, running, hosts, now_ns=1)


def rates(star: Network, host: str) -> tuple[int, int]:
    return star.rate_bps(up_link(host), 0), star.rate_bps(down_link(host), 0)


def test_who_sends_all_it_has_shows_its_way_up_and_who_sums_for_others_its_way_down() -> None:
    star = network("a", "b", "c")
    hosts = {"wa": "a", "wb": "b", "wc": "c"}
    learn(star, RoundLinks(), hosts, wa=(LEAF, 400, 300), wb=(INNER, 500, 250), wc=(ROOT, 100, 90))
    assert rates(star, "a") == (400, FULL_BPS)
    assert rates(star, "b") == (500, 250)
    assert rates(star, "c") == (FULL_BPS, 90)


def test_what_a_round_has_shown_or_confirmed_is_noted_with_its_time() -> None:
    star, links = network("a"), RoundLinks()
    learn(star, links, {"wa": "a"}, wa=(LEAF, 400, 300))
    assert (star.seen_ns(up_link("a")), star.seen_ns(down_link("a"))) == (1, None)
    star.set_rate(down_link("a"), 310)
    learn(star, links, {"wa": "a"}, wa=(LEAF, 400, 300))
    assert star.seen_ns(down_link("a")) == 1


def test_a_link_that_was_not_full_is_only_raised() -> None:
    star, links = network("a"), RoundLinks()
    star.set_rate(down_link("a"), 100)
    learn(star, links, {"wa": "a"}, wa=(LEAF, 400, 90))
    assert rates(star, "a") == (400, 100)
    learn(star, links, {"wa": "a"}, wa=(LEAF, 300, 150))
    assert rates(star, "a") == (300, 150)


def test_one_that_was_not_seen_full_for_long_is_tried_again_at_its_best() -> None:
    star, links = network("a"), RoundLinks()
    learn(star, links, {"wa": "a"}, wa=(INNER, 400, 900))
    learn(star, links, {"wa": "a"}, wa=(INNER, 400, 100))
    for _ in range(8):
        learn(star, links, {"wa": "a"}, wa=(LEAF, 400, 90))
        assert rates(star, "a")[1] == 100
    learn(star, links, {"wa": "a"}, wa=(LEAF, 400, 90))
    assert rates(star, "a")[1] == 900


def test_a_way_up_whose_streams_are_held_to_what_is_known_shows_only_that_it_carries_more_or_less() -> None:
    star, links = network("a"), RoundLinks()
    for carried, rate in ((FULL_BPS, FULL_BPS), (900, FULL_BPS), (1100, 1100), (1000, 1100), (980, 980), (700, 700)):
        learn(star, links, {"wa": "a"}, wa=(HELD, carried, 0))
        assert rates(star, "a")[0] == rate, f"{carried} of it were carried"


def test_a_way_down_whose_streams_are_held_to_what_is_known_shows_only_that_it_carries_more_or_less() -> None:
    star, links = network("a", "b"), RoundLinks()
    for carried, rate in ((900, FULL_BPS), (1100, 1100), (980, 980)):
        learn(star, links, {"wa": "a", "wb": "b"}, wa=(TO_B, 0, 0), wb=(INNER, 0, carried))
        assert rates(star, "b")[1] == rate, f"{carried} of it were carried"


def test_what_others_are_sent_at_shares_of_their_links_tells_nothing_of_who_sends_freely() -> None:
    star = network("a", "b")
    learn(star, RoundLinks(), {"wa": "a", "wb": "b"}, wa=(TO_B, 950, 950), wb=(INNER, 950, 950))
    assert rates(star, "a") == (FULL_BPS, FULL_BPS)
    assert rates(star, "b") == (950, FULL_BPS)


def test_one_that_was_only_seen_held_for_long_is_tried_again_at_its_best() -> None:
    star, links = network("a"), RoundLinks()
    learn(star, links, {"wa": "a"}, wa=(LEAF, 900, 0))
    learn(star, links, {"wa": "a"}, wa=(LEAF, 100, 0))
    for _ in range(8):
        learn(star, links, {"wa": "a"}, wa=(HELD, 95, 0))
        assert rates(star, "a")[0] == 100
    learn(star, links, {"wa": "a"}, wa=(HELD, 95, 0))
    assert rates(star, "a")[0] == 900


def test_a_ring_fills_no_link_but_its_slowest_and_raises_what_it_shows() -> None:
    star, links = network("a"), RoundLinks()
    star.set_rate(down_link("a"), 100)
    learn(star, links, {"wa": "a"}, shape=Shape.RING, wa=(INNER, 400, 250))
    assert rates(star, "a") == (FULL_BPS, 250)


def test_workers_that_share_a_host_and_what_was_not_measured_change_nothing() -> None:
    star = network("a", "b")
    hosts = {"wa": "a", "wb": "b", "wc": "b"}
    learn(star, RoundLinks(), hosts, wa=(LEAF, 0, 0), wb=(LEAF, 5, 5), wc=(LEAF, 5, 5))
    assert rates(star, "a") == rates(star, "b") == (FULL_BPS, FULL_BPS)
