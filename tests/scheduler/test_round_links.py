"""What a round tells of links: full ones are set to what they carried, others raised only, and tried again at last."""

from __future__ import annotations

from mlfabric.network import Network, down_link, up_link
from mlfabric.protocol import Peer, ReduceId, ReduceOp, ReducePart, ReduceRequested, RoundId
from mlfabric.scheduler.round_links import RoundLinks
from mlfabric.scheduler.running_round import RunningRound

SIZE = 1024
FULL_BPS = 1000
PEER = Peer("x", "x:1", bytes(16))


def part(start: int, end: int, *, inputs: int = 0, parent: bool = True) -> ReducePart:
    above = PEER if parent else None
    return ReducePart(start=start, end=end, inputs=(PEER,) * inputs, parent=above, source=above, takers=())


LEAF = (part(0, 512), part(512, 1024))
INNER = (part(0, 512, inputs=2), part(512, 1024))
ROOT = (part(0, 512, inputs=1, parent=False), part(512, 1024, inputs=1))


def network(*hosts: str) -> Network:
    star = Network.star(FULL_BPS)
    for host in hosts:
        star.add_host(host)
    return star


def learn(star: Network, links: RoundLinks, hosts: dict[str, str], **workers) -> None:
    """Let a round end; by worker its parts and what its link carried."""
    asked = {
        worker: ReduceRequested(
            reduce=ReduceId(worker, 1, 0), model="net", size_bytes=SIZE, dtype="float32", op=ReduceOp.SUM
        )
        for worker in workers
    }
    running = RunningRound(
        id=RoundId(1, 1), members=asked, parts={w: parts for w, (parts, *_) in workers.items()}, reason="", reserved=()
    )
    running.measured.update({worker: (up, down) for worker, (_, up, down) in workers.items()})
    links.learn(star, running, hosts)


def rates(star: Network, host: str) -> tuple[int, int]:
    return star.rate_bps(up_link(host), 0), star.rate_bps(down_link(host), 0)


def test_who_sends_all_it_has_shows_its_way_up_and_who_sums_for_others_its_way_down() -> None:
    star = network("a", "b", "c")
    hosts = {"wa": "a", "wb": "b", "wc": "c"}
    learn(star, RoundLinks(), hosts, wa=(LEAF, 400, 300), wb=(INNER, 500, 250), wc=(ROOT, 100, 90))
    assert rates(star, "a") == (400, FULL_BPS)
    assert rates(star, "b") == (500, 250)
    assert rates(star, "c") == (FULL_BPS, 90)


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


def test_workers_that_share_a_host_and_what_was_not_measured_change_nothing() -> None:
    star = network("a", "b")
    hosts = {"wa": "a", "wb": "b", "wc": "b"}
    learn(star, RoundLinks(), hosts, wa=(LEAF, 0, 0), wb=(LEAF, 5, 5), wc=(LEAF, 5, 5))
    assert rates(star, "a") == rates(star, "b") == (FULL_BPS, FULL_BPS)
