"""Transfers that run late: what is planned after them is counted from what has come, not from what was planned."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from statistics import mean

import pytest

from mlfabric.protocol import GetId, Instruction, Serve, SumId, TransferEnd, TransferId
from tests.scheduler.stage import GIGABIT, LAYOUT, MS, Stage, committed, committed_together, ended, get, push, update
from tests.scheduler.test_batches import WIDE

LEAD_MS = 2 + 1
"""How long before it is to begin a get is planned after one that was late on an idle link."""


def served(told: list[Instruction]) -> list[str]:
    return [i.get.worker for i in told if isinstance(i, Serve)]


def arrive(stage: Stage, worker: str, number: int) -> list[Instruction]:
    """Let an update be there now, and in the model."""
    stage.tell(ended(update(worker), TransferEnd.RECEIVED))
    return stage.ask(committed(update(worker), number))


def expected_ms(stage: Stage, *workers: str, since_ms: float = 1000) -> list[float]:
    """Return when updates are to be in the model."""
    expected = stage.pushes.expected_ns(stage.now_ns)
    return [expected[update(worker)] / MS - since_ms for worker in workers]


@pytest.fixture
def pushing() -> Stage:
    """Three workers whose updates of 8 ms follow one another, and two that have nothing to push."""
    stage = Stage().trained("a", "b", "c", "d", "e")
    stage.ask_all(*map(push, "abc"))
    return stage


# Commits


def test_commits_behind_a_late_one_are_expected_when_they_could_be_there_after_it(pushing: Stage) -> None:
    for wait_ms, expected in ((0, [8, 16, 24]), (8, [8, 16, 24]), (12, [8, 28, 36])):
        pushing.wait(wait_ms)
        assert expected_ms(pushing, "a", "b", "c") == expected
    arrive(pushing, "a", 1)
    assert expected_ms(pushing, "b", "c") == [20 + 8, 20 + 16]


def test_what_is_there_and_waits_for_nobody_is_to_be_committed_now_and_else_with_what_is_before_it(
    pushing: Stage,
) -> None:
    pushing.wait(20)
    pushing.tell(ended(update("b"), TransferEnd.RECEIVED))
    assert expected_ms(pushing, "a", "b") == [20 + 8, 20 + 8]
    pushing.tell(ended(update("a"), TransferEnd.RECEIVED))
    assert expected_ms(pushing, "a", "b", since_ms=0) == [0, 0]


# Gets


def test_a_get_is_not_planned_for_a_commit_that_is_planned_and_cannot_be_there(pushing: Stage) -> None:
    pushing.tell(get("a", after=update("a")))
    pushing.wait(6)
    assert served(pushing.tick()) == ["a"]
    pushing.tell(get("b", after=update("b")))
    pushing.wait(8)  # b's commit is planned for 16, a's was for 8
    assert served(pushing.tick()) == []
    pushing.wait(6)
    assert served(arrive(pushing, "a", 1)) == []
    assert pushing.due_ms() == 8 - 2


def test_a_stuck_update_holds_up_no_get_that_follows_none(pushing: Stage) -> None:
    for worker in "bc":
        pushing.tell(get(worker, after=update(worker)))
    pushing.tick()
    pushing.wait(20)
    for number, worker in enumerate("de"):
        assert served(pushing.ask(get(worker))) == [worker]
        pushing.wait(20)
        pushing.tell(ended(get(worker).get, TransferEnd.SERVED))
        waiting = pushing.state.models["net"].gets.waiting
        assert {name.worker for name in waiting} == {"b", "c"}, number


def test_gets_gather_until_the_server_has_really_sent_what_is_before_them() -> None:
    stage = Stage().trained("a", "b", "c", "d")
    for worker in "abc":
        stage.ask(get(worker))
    stage.wait(6)
    assert served(stage.tick()) == ["b", "c"]  # of 8 ms each, to be sent until 24
    stage.wait(6)
    stage.tell(ended(get("a").get, TransferEnd.SERVED))  # 4 ms late
    assert served(stage.ask(get("d"))) == []
    assert stage.due_ms() == 2 * 8 - LEAD_MS


@pytest.mark.parametrize("stuck", [1, 2, 5])
def test_gets_that_are_stuck_hold_up_the_gets_of_others_for_a_while_only(stuck: int) -> None:
    names = "abcde"[:stuck]
    stage = Stage().trained(*names, "x")
    for worker in names:
        stage.ask(get(worker))
    ticks_within(stage, 8 * stuck + 50)
    assert len(stage.state.models["net"].gets.planned) == stuck
    for counter in range(3):
        assert served(stage.ask(get("x", counter))) == ["x"]
        stage.wait(8)
        stage.tell(ended(get("x", counter).get, TransferEnd.SERVED))


# Queues


@dataclass
class LateLink:
    """A server behind a link on which every transfer takes longer than it should.

    Workers push again ``step_ms`` after their update is in the model. Aggregators take no time.

    Attributes:
        depths: how many transfers were on their way or were told to follow, whenever one was over.
    """

    stage: Stage
    step_ms: float
    takes_ms: float
    version: int = 0
    depths: list[int] = field(default_factory=list)
    _pushes: list[tuple[int, str]] = field(default_factory=list)
    _steps: dict[str, Iterator[int]] = field(default_factory=dict)
    _over_ns: int = 0

    def run(self, workers: str, transfers: int) -> None:
        for place, worker in enumerate(workers):
            self._steps[worker] = count()
            heapq.heappush(self._pushes, (self.stage.now_ns + place * 5 * MS, worker))
        while len(self.depths) < transfers:
            self._next()

    def _out(self) -> list[TransferId]:
        return list(dict.fromkeys(planned.transfer for planned in self.stage.pushes.planned.values()))

    def _next(self) -> None:
        """Go to what happens next and let it happen."""
        stage, out = self.stage, self._out()
        self._over_ns = (self._over_ns or stage.now_ns + round(self.takes_ms * MS)) if out else 0
        due_ns = stage.state.next_wakeup_ns(stage.now_ns)
        times = [at for at in (due_ns, self._over_ns, self._pushes[0][0] if self._pushes else 0) if at]
        stage.now_ns = max(stage.now_ns, min(times))
        if self._over_ns and stage.now_ns >= self._over_ns:
            self._arrive(out)
        while self._pushes and self._pushes[0][0] <= stage.now_ns:
            worker = heapq.heappop(self._pushes)[1]
            stage.tell(push(worker, next(self._steps[worker]), self.version))
        stage.tick()

    def _arrive(self, out: list[TransferId]) -> None:
        self.depths.append(len(out))
        first, self._over_ns = out[0], 0
        members = self.stage.pushes.sums.whole(first).members if isinstance(first, SumId) else (first,)
        self.stage.tell(ended(first, TransferEnd.RECEIVED))
        self.version += len(members)
        self.stage.tell(committed_together(*members, number=self.version))
        for member in members:
            assert not isinstance(member, GetId)
            heapq.heappush(self._pushes, (self.stage.now_ns + round(self.step_ms * MS), member.worker))


@pytest.mark.parametrize("takes_ms", [100, 160])
@pytest.mark.usefixtures("compiled_planner")
def test_a_link_on_which_all_are_late_gets_larger_batches_and_no_longer_queue(takes_ms: int) -> None:
    stage = Stage()
    stage.server(down_bps=GIGABIT // 10)  # 80 ms an update
    stage.aggregator("adder")
    stage.trained(*"abcdefghijkl", spec=WIDE, server=False)
    link = LateLink(stage, step_ms=50, takes_ms=takes_ms)
    link.run("abcdefghijkl", transfers=50)
    assert mean(link.depths[10:]) < 2.6, link.depths


def ticks_within(stage: Stage, ms: float) -> int:
    """Let the time pass, ticking as the shell does; return how often that was."""
    until_ns, ticks = stage.now_ns + round(ms * MS), 0
    while (due_ns := stage.state.next_wakeup_ns(stage.now_ns)) is not None and due_ns < until_ns:
        stage.now_ns = max(stage.now_ns, due_ns)
        stage.tick()
        ticks += 1
    stage.now_ns = until_ns
    return ticks


@pytest.mark.usefixtures("compiled_planner")
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("takes_ns", [2_000_001, 2_003_000, 2_100_000])
def test_who_waits_for_a_late_one_on_a_link_as_fast_as_plans_are_early_does_not_keep_the_scheduler_busy(
    takes_ns: int, sums: bool
) -> None:
    stage = Stage(batch_window_ns=50 * MS)
    stage.server(down_bps=LAYOUT.size_bytes * 8 * 10**9 // takes_ns)
    for worker in "abc":
        stage.worker(worker, up_bps=10 * GIGABIT)
    if sums:
        stage.aggregator("adder", up_bps=10 * GIGABIT)
    stage.trained(server=False)
    stage.ask_all(*map(push, "ab"))
    stage.wait(5)
    stage.tell(get("b", after=update("b")))
    stage.tell(push("c"))
    assert ticks_within(stage, 40) <= 45
