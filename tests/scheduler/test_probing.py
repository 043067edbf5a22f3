"""Who probes whose links after a round, and what the next round knows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from mlfabric.network import LinkId, down_link, up_link
from mlfabric.protocol import (
    Instruction,
    LinkProbed,
    MemberLeft,
    Probe,
    Reduce,
    ReducePart,
    ReduceSettled,
    RoundArrived,
    RoundId,
    RoundSlow,
)
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.rounds.probe_plans import _SHARE
from mlfabric.scheduler.status import describe
from mlfabric.telemetry import SchedulerMetrics

from .stage import GIGABIT, MS
from .test_rounds import BIG, JOB, Team, asks, told

SLOW = GIGABIT // 2
PROBE_BYTES = BIG // _SHARE
PAUSE_MS = 4 * PROBE_BYTES * 8 / GIGABIT * 1000
"""As long as four probes take, and no longer than that."""
SHORTEST_MS = 4 * 12
"""As long as four of the shortest probes take."""


class Computing(Team):
    """A job whose workers compute for a while between rounds, then all ask at once."""

    def __init__(self, names: Iterable[str] = "abcdef", hosts: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.names = list(names)
        self.done = 0
        for name in self.names:
            self.worker(name, spec=JOB, address=f"{name}:1", host=(hosts or {}).get(name, f"h-{name}"))

    def round(
        self, pause_ms: float = PAUSE_MS, size_bytes: int = BIG, measured: Mapping[str, tuple[int, int]] | None = None
    ) -> list[Probe]:
        """Compute and do a round; return the probes that come after all are settled."""
        self.compute(pause_ms, size_bytes)
        return self.settle(measured or {})

    def compute(self, pause_ms: float = PAUSE_MS, size_bytes: int = BIG) -> list[Reduce]:
        """Compute and ask for a round."""
        self.wait(pause_ms)
        found: list[Instruction] = []
        for name in self.names:
            found += self.ask(asks(name, self.done, size_bytes=size_bytes))
        return [one for one in found if isinstance(one, Reduce)]

    def settle(self, measured: Mapping[str, tuple[int, int]]) -> list[Probe]:
        """Let all have the result; some say what their links carried at best."""
        self.done += 1
        last: list[Instruction] = []
        for name in self.names:
            assert last == []
            up_bps, down_bps = measured.get(name, (0, 0))
            arrived = RoundArrived(
                worker=name, model="net", round=RoundId(1, self.done), up_bps=up_bps, down_bps=down_bps
            )
            last = self.ask(arrived)
        over, probes = last[: len(self.names)], last[len(self.names) :]
        assert all(isinstance(one, ReduceSettled) for one in over)
        assert all(isinstance(one, Probe) for one in probes), told(probes)
        return [one for one in probes if isinstance(one, Probe)]

    def carries(self, link: LinkId) -> int:
        return self.state.context.network.rate_bps(link, 0)

    def came(self, probes: Iterable[Probe], slow: Iterable[LinkId] = ()) -> None:
        """Let all probes come, at 1 Gbit/s but for those over slow links."""
        slow = set(slow)
        for probe in probes:
            for peer in probe.sources:
                is_slow = slow & {up_link(f"h-{peer.worker}"), down_link(f"h-{probe.to}")}
                self.show(probe.to, peer.worker, probe.round, SLOW if is_slow else GIGABIT)

    def show(self, worker: str, source: str, after: RoundId, bps: int) -> None:
        assert self.ask(LinkProbed(worker=worker, model="net", round=after, source=source, bps=bps)) == []


@pytest.fixture
def computing() -> Computing:
    """A job that has done a round."""
    job = Computing()
    assert job.round() == []
    return job


def pairs(probes: Iterable[Probe]) -> dict[str, list[str]]:
    """Return to whom each worker sends."""
    return {probe.to: [peer.worker for peer in probe.targets] for probe in probes}


def test_after_a_round_every_worker_probes_two_others_and_expects_two(computing) -> None:
    probes = computing.round()
    assert sorted(probe.to for probe in probes) == computing.names
    sent = {(p.to, peer.worker, peer.ticket) for p in probes for peer in p.targets}
    expected = {(peer.worker, p.to, peer.ticket) for p in probes for peer in p.sources}
    assert sent == expected
    assert len({ticket for *_, ticket in sent}) == 12
    for probe in probes:
        assert len({peer.worker for peer in probe.targets} - {probe.to}) == 2
        assert len({peer.worker for peer in probe.sources} - {probe.to}) == 2
        assert all(peer.address == f"{peer.worker}:1" for peer in probe.targets)
        assert not any(peer.address for peer in probe.sources)
        assert not any(peer.most_bps for peer in (*probe.targets, *probe.sources))
        assert (probe.model, probe.round, probe.size_bytes) == ("net", RoundId(1, 2), PROBE_BYTES)
        assert probe.slot_ns == round(0.45 * PAUSE_MS * MS)


def test_others_are_probed_after_each_round(computing) -> None:
    assert len({frozenset(map(str, pairs(computing.round()).items())) for _ in range(5)}) == 5


def test_in_the_first_pause_nobody_knows_how_long_it_will_be() -> None:
    assert Computing().round() == []


def test_in_a_short_pause_probes_are_smaller_and_one_too_short_for_any_is_not_used(computing) -> None:
    assert {probe.size_bytes for probe in computing.round(pause_ms=PAUSE_MS / 2)} == {PROBE_BYTES // 2}
    assert len(computing.round(pause_ms=SHORTEST_MS)) == 6
    assert computing.round(pause_ms=SHORTEST_MS - 0.01) == []
    assert computing.round(pause_ms=0) == []


@pytest.mark.parametrize(("size_bytes", "count"), [(1_500_000 * _SHARE, 6), (1_500_000 * _SHARE - 16, 0)])
def test_what_is_over_before_it_can_be_timed_is_not_sent(computing, size_bytes, count) -> None:
    assert len(computing.round(size_bytes=size_bytes)) == count


def test_a_slow_round_is_begun_anew_after_probes_but_not_while_somebody_is_late(computing) -> None:
    slow = RoundSlow(worker="b", model="net", round=RoundId(1, 2), left_ns=10**12, usual_ns=1)
    computing.wait(PAUSE_MS)
    for name in "abcde":
        computing.ask(asks(name, 1, size_bytes=BIG))
    computing.wait(PAUSE_MS)
    assert [one.to for one in computing.tick() if isinstance(one, Reduce)] == list("abcde")
    assert computing.ask(slow) == []
    computing.ask(asks("f", 1, size_bytes=BIG))
    kinds = Counter(type(one).__name__ for one in computing.ask(slow))
    assert kinds == {"CancelReduce": 6}
    computing.wait(1000)
    assert {one.to for one in computing.tick() if isinstance(one, Probe)} == set("abcdef")
    computing.wait(1000)
    assert {one.to for one in computing.tick() if isinstance(one, Reduce)} == set("abcdef")


def test_three_workers_do_not_probe_and_four_do() -> None:
    for names, count in (("abc", 0), ("abcd", 4)):
        job = Computing(names)
        job.round()
        assert len(job.round()) == count


def test_after_a_round_that_went_to_one_worker_directly_nothing_is_probed(computing) -> None:
    assert computing.round(size_bytes=1000) == []


def test_links_of_hosts_with_several_workers_are_not_probed() -> None:
    job = Computing("abcdef", hosts={"e": "shared", "f": "shared"})
    job.round()
    assert sorted(pairs(job.round())) == ["a", "b", "c", "d"]
    few = Computing("abcde", hosts={"d": "shared", "e": "shared"})
    few.round()
    assert few.round() == []


def test_who_has_asked_for_the_next_round_already_has_no_time_for_probes(computing) -> None:
    computing.compute()
    computing.ask(asks("b", 2, size_bytes=BIG))
    assert sorted(pairs(computing.settle({}))) == ["a", "c", "d", "e", "f"]


@pytest.mark.parametrize("link", [up_link("h-c"), down_link("h-c")])
def test_a_link_that_has_become_slow_is_known_when_the_next_round_begins_and_not_before(computing, link) -> None:
    network = computing.state.context.network
    before = {each: computing.carries(each) for each in network.links}
    computing.came(computing.round(), slow=[link])
    assert {each: computing.carries(each) for each in network.links} == before
    computing.compute()
    assert {each: computing.carries(each) for each in network.links} == {**before, link: SLOW}


def test_a_link_was_seen_when_it_was_probed_if_a_probe_has_shown_what_it_carries(computing) -> None:
    network, slow = computing.state.context.network, up_link("h-c")
    probes, probed_ns = computing.round(), computing.now_ns
    shown = [(probe, peer) for probe in probes for peer in probe.sources if "d" not in (probe.to, peer.worker)]
    for probe, peer in shown:
        bps = SLOW if up_link(f"h-{peer.worker}") == slow else GIGABIT
        computing.show(probe.to, peer.worker, probe.round, bps)
    computing.compute()
    seen = {link for link in network.links if network.seen_ns(link) == probed_ns}
    assert slow in seen
    assert not seen & {up_link("h-d"), down_link("h-d")}
    assert len(seen) > 4


def test_a_link_that_has_become_fast_again_is_known_too(computing) -> None:
    computing.state.context.network.set_rate(up_link("h-c"), GIGABIT // 10)
    computing.came(computing.round())
    computing.compute()
    assert computing.carries(up_link("h-c")) == GIGABIT


def test_nothing_is_raised_at_once_to_more_than_the_fastest_has_and_twice_what_it_had(computing) -> None:
    for probe in computing.round():
        for peer in probe.sources:
            computing.show(probe.to, peer.worker, probe.round, 3 * GIGABIT)
    computing.compute()
    assert {computing.carries(link) for link in computing.state.context.network.links} == {2 * GIGABIT}


def test_how_long_probes_take_is_told_by_what_the_fastest_link_has_carried(computing) -> None:
    computing.came(computing.round())
    faster = computing.round(pause_ms=PAUSE_MS / 2, measured={"a": (2 * GIGABIT, 0)})
    assert {probe.size_bytes for probe in faster} == {PROBE_BYTES}


@pytest.mark.parametrize(("heard", "rate"), [(2, SLOW), (1, GIGABIT)])
def test_a_probe_of_which_nothing_is_heard_counts_as_the_slowest_of_the_others_if_some_are(
    computing, heard, rate
) -> None:
    probes = computing.round()
    (other,) = pairs(probes)["a"][:1]
    ways = [(probe.to, peer.worker) for probe in probes for peer in probe.sources]
    ways.sort(key=lambda way: (other not in way, "a" in way))
    for n, (worker, source) in enumerate(ways[:heard]):
        computing.show(worker, source, probes[0].round, SLOW if n == 0 else GIGABIT)
    computing.compute()
    unheard = {link for worker, source in ways[heard:] for link in (up_link(f"h-{source}"), down_link(f"h-{worker}"))}
    unheard -= {link for worker, source in ways[:heard] for link in (up_link(f"h-{source}"), down_link(f"h-{worker}"))}
    assert unheard
    assert {computing.carries(link) for link in unheard} == {rate}


def test_a_probe_shows_no_link_to_be_slower_than_a_sixteenth_of_the_fastest(computing) -> None:
    for probe in computing.round():
        for peer in probe.sources:
            computing.show(probe.to, peer.worker, probe.round, 1 if peer.worker == "c" else GIGABIT)
    computing.compute()
    assert computing.carries(up_link("h-c")) == GIGABIT // 16


@pytest.mark.parametrize("comes", ["after the next round", "while that goes on"])
def test_probes_that_come_too_late_show_nothing(computing, comes) -> None:
    probes = computing.round()
    computing.compute()
    if comes == "while that goes on":
        computing.came(probes, slow=[up_link("h-c")])
    computing.settle({})
    if comes == "after the next round":
        computing.came(probes, slow=[up_link("h-c")])
    computing.compute()
    assert computing.carries(up_link("h-c")) == GIGABIT


def test_a_probe_that_nobody_asked_for_shows_nothing(computing) -> None:
    probes = computing.round()
    after, targets = probes[0].round, pairs(probes)
    for source in [*computing.names, "nobody"]:
        for worker in computing.names:
            if worker not in targets.get(source, ()):
                computing.show(worker, source, after, SLOW)
    computing.compute()
    assert all(computing.carries(link) == GIGABIT for link in computing.state.context.network.links)


def test_what_a_worker_that_is_gone_has_shown_does_no_harm(computing) -> None:
    computing.came(computing.round(), slow=[up_link("h-c")])
    computing.ask(MemberLeft(name="c", incarnation=1, detail="done"))
    computing.names.remove("c")
    assert len(computing.compute()) == 5
    assert computing.carries(up_link("h-a")) == GIGABIT


def test_streams_over_a_link_that_probes_have_shown_to_be_slow_are_held(computing) -> None:
    computing.came(computing.round(), slow=[up_link("h-c")])
    (mine,) = (told.parts for told in computing.compute() if told.to == "c")
    sums = [part.parent.most_bps for part in mine if part.parent is not None]
    results = [peer.most_bps for part in mine for peer in part.takers]
    assert all(sums + results)
    assert SLOW < sum(sums + results) <= 1.1 * 1.05 * SLOW + len(sums + results)
    assert not any(map(is_limited_at_the_receiver, mine))


def is_limited_at_the_receiver(part: ReducePart) -> bool:
    return any(peer.most_bps for peer in (*part.inputs, *([part.source] if part.source else [])))


def probed_after(job: Computing, rounds: int, slow: Iterable[LinkId] = ()) -> list[int]:
    """Do rounds; return after which of them there were probes."""
    found = []
    for _ in range(rounds):
        probes = job.round()
        job.came(probes, slow)
        if probes:
            found.append(job.done)
    return found


def test_while_probes_show_nothing_new_they_become_rarer_down_to_every_eighth_round(computing) -> None:
    each, second, fourth, eighth = range(2, 10), range(11, 26, 2), range(29, 58, 4), range(65, 122, 8)
    assert probed_after(computing, 120) == [*each, *second, *fourth, *eighth]
    assert probed_after(computing, 16) == [129, 137]


def test_once_they_show_something_new_there_are_probes_after_each_round_again(computing) -> None:
    assert probed_after(computing, 11)[-2:] == [9, 11]
    assert probed_after(computing, 2, slow=[up_link("h-c")]) == [13, 14]
    assert probed_after(computing, 9, slow=[up_link("h-c")]) == [*range(15, 22), 23]


def counted(job: Computing) -> tuple[int, int, int]:
    probes = job.rounds.probes
    return probes.asked, probes.answered, probes.changed


def test_probes_are_counted_when_asked_for_and_when_they_come_and_links_once_the_next_round_begins(computing) -> None:
    assert counted(computing) == (0, 0, 0)
    probes = computing.round()
    assert counted(computing) == (12, 0, 0)
    computing.came(probes, slow=[up_link("h-c")])
    assert counted(computing) == (12, 12, 0)
    computing.compute()
    assert counted(computing) == (12, 12, 1)


def test_what_comes_too_late_or_twice_or_was_not_asked_for_is_no_answer(computing) -> None:
    probes = computing.round()
    for _ in range(2):
        computing.came(probes[:1])
    computing.show("a", "nobody", probes[0].round, SLOW)
    assert counted(computing) == (12, 2, 0)
    computing.compute()
    computing.came(probes)
    assert counted(computing) == (12, 2, 0)


def test_counts_are_shown_as_metrics_once_and_on_the_status(computing) -> None:
    meter = Meter(SchedulerMetrics(), "0")

    def shown() -> list[float | None]:
        names = ("probes", "probes_answered", "probed_links_changed")
        return [meter.metrics.registry.get_sample_value(f"mlfabric_{n}_total", {"model": "net"}) for n in names]

    computing.came(computing.round(), slow=[up_link("h-c")])
    computing.compute()
    for _ in range(2):
        meter.survey(computing.state)
        assert shown() == [12, 12, 1]
    (model,) = describe(computing.state, meter, computing.now_ns).models
    assert (model.probes.asked, model.probes.answered, model.probes.changed) == (12, 12, 1)
