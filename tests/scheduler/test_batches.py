"""When a batch of updates that may be summed closes: nobody waits for nothing, nor for long for what is expected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.chunking import chunk_bytes
from mlfabric.protocol import Instruction, Send, Sum, SumId, TransferEnd
from mlfabric.scheduler.records import TornBy
from mlfabric.scheduler.updates.push_table import FORGIVEN
from tests.scheduler.stage import GIGABIT, LAYOUT, MS, SPEC, Stage, committed, ended, get, push, update

pytestmark = pytest.mark.usefixtures("compiled_planner")

WIDE = replace(SPEC, tau_max=40)
SEND_MS = 80
"""How long an update takes to come in."""


def fabric(*workers: str, aggregators: tuple[str, ...] = ("g",), **settings) -> Stage:
    """Let workers train behind a server with a tenth of their rate, so that sums pay."""
    stage = Stage(**settings)
    stage.server(down_bps=GIGABIT // 10)
    for name in aggregators:
        stage.aggregator(name)
    return stage.trained(*workers, spec=WIDE, server=False)


class Training:
    """Lets workers of a stage take their steps one by one; ``steps`` are those that each has taken."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.version = 0
        self.steps: dict[str, int] = {}
        self.gets: dict[str, int] = {}

    def fetch(self, worker: str) -> None:
        """Let a worker have the model now."""
        counter = self.gets[worker] = self.gets.get(worker, -1) + 1
        self.stage.ask(get(worker, counter))
        self.stage.tell(ended(get(worker, counter).get, TransferEnd.SERVED))

    def push(self, worker: str) -> list[Instruction]:
        """Let a worker push now; return what follows."""
        counter = self.steps[worker] = self.steps.get(worker, -1) + 1
        return self.stage.ask(push(worker, counter, self.version))

    def commit(self, worker: str) -> None:
        """Let a worker's update be in the model."""
        self.version += 1
        self.stage.tell(committed(update(worker, self.steps[worker]), self.version))

    def knows(self, *workers: str, step_ms: float) -> None:
        """Let the scheduler see how long workers compute, and leave them with the model."""
        for worker in workers:
            self.fetch(worker)
        self.stage.wait(step_ms)
        for worker in workers:
            self.push(worker)
            self.commit(worker)
        for worker in workers:
            self.fetch(worker)


def senders(told) -> list[str]:
    """Return whose updates are sent, to an aggregator or to the server."""
    return sorted(i.to for i in told if isinstance(i, Send))


@pytest.fixture
def training() -> Training:
    """Return one in which b is expected in 20 ms, by what its steps take."""
    training = Training(fabric("a", "b"))
    training.knows("b", step_ms=50)
    training.stage.wait(30)
    return training


def test_a_lone_worker_never_waits_though_it_could_be_summed():
    training = Training(fabric("a"))
    for _ in range(5):
        training.fetch("a")
        training.stage.wait(50)
        assert senders(training.push("a")) == ["a"]
        training.commit("a")


def test_what_comes_while_the_server_receives_is_planned_when_that_is_about_to_end_whatever_the_window():
    stage = fabric("a", "b", "c", batch_window_ns=5 * MS)
    assert senders(stage.ask(push("a"))) == ["a"]
    for worker in "bc":
        stage.wait(1)
        assert stage.ask(push(worker)) == []
    first_chunks_ms = 2 * SEND_MS * chunk_bytes(LAYOUT.size_bytes) / LAYOUT.size_bytes
    assert stage.due_ms() == pytest.approx(SEND_MS - 2 - 2 - first_chunks_ms, abs=0.001)
    stage.wait(stage.due_ms())
    told = stage.tick()
    assert senders(told) == ["b", "c"]
    assert any(isinstance(i, Sum) for i in told)


def test_the_window_ends_a_batch_that_nobody_could_sum():
    stage = fabric("a", "b", aggregators=(), batch_window_ns=5 * MS)
    stage.ask(push("a"))
    assert stage.ask(push("b")) == []
    assert stage.due_ms() == 5


def test_a_batch_is_kept_open_for_one_who_is_expected_and_closes_when_it_comes(training):
    assert training.push("a") == []
    training.stage.wait(20)
    told = training.push("b")
    assert senders(told) == ["a", "b"]
    assert any(isinstance(i, Sum) for i in told)


def test_a_batch_that_was_kept_open_closes_when_nobody_comes(training):
    assert training.push("a") == []
    assert training.stage.due_ms() == 20 + 2
    training.stage.wait(22)
    assert senders(training.stage.tick()) == ["a"]


@pytest.mark.parametrize(("expected_ms", "waits"), [(39, True), (41, False)])
def test_it_is_kept_open_only_where_those_here_lose_less_than_who_comes_gains(expected_ms, waits):
    training = Training(fabric("a", "b"))
    training.knows("b", step_ms=70)
    training.stage.wait(70 - expected_ms)
    assert (training.push("a") == []) is waits


def test_it_is_kept_open_longer_for_several_who_come_together():
    training = Training(fabric("a", "b", "c"))
    training.knows("b", "c", step_ms=70)
    training.stage.wait(20)
    assert training.push("a") == []
    assert training.stage.due_ms() == 50 + 2


def test_it_is_not_kept_open_where_nobody_could_sum():
    training = Training(fabric("a", "b", aggregators=()))
    training.knows("b", step_ms=50)
    training.stage.wait(30)
    assert senders(training.push("a")) == ["a"]


def test_who_gets_models_again_and_again_and_does_not_push_is_not_waited_for(training):
    training.fetch("b")
    training.stage.wait(20)
    assert senders(training.push("a")) == ["a"]


def test_who_is_gone_is_not_waited_for(training):
    training.stage.left("b")
    assert senders(training.push("a")) == ["a"]


# After a sum was given up


def overdue_once(stage: Stage) -> SumId:
    """Let a sum of all that ask now be overdue; return it."""
    (order,) = [i for i in stage.tick() if isinstance(i, Sum)]
    stage.now_ns = stage.pushes.sums.whole(order.sum).overdue_ns
    torn = stage.state.count.torn[TornBy.OVERDUE]
    stage.tick()
    assert stage.state.count.torn[TornBy.OVERDUE] == torn + 1
    stage.tell(ended(order.sum, TransferEnd.VOIDED))
    return order.sum


def test_what_was_overdue_may_be_summed_again_but_not_for_ever():
    stage = fabric("a", "b", "c")
    for _ in range(FORGIVEN + 1):
        for worker in "abc":
            stage.tell(push(worker))
        overdue_once(stage)
    told = stage.ask_all(*map(push, "abc"))
    assert senders(told) == ["a", "b", "c"]
    assert not [i for i in told if isinstance(i, Sum)]


def test_lateness_is_forgotten_with_its_update():
    stage = fabric("a", "b", "c")
    for worker in "abc":
        stage.tell(push(worker))
    overdue_once(stage)
    assert set(stage.pushes.late) == {update(worker) for worker in "abc"}
    for number, worker in enumerate("abc", start=1):
        stage.tell(push(worker))
        stage.tell(committed(update(worker), number))
    assert not stage.pushes.late


@pytest.mark.parametrize("torn_by", [TornBy.DRIFT, TornBy.HELD_UP])
def test_what_made_way_or_met_another_rate_may_be_summed_again_at_once(torn_by):
    stage = fabric("a", "b", "c")
    (order,) = [i for i in stage.ask_all(*map(push, "abc")) if isinstance(i, Sum)]
    for _ in stage.pushes._tear(stage.pushes.sums.whole(order.sum), "for the test", torn_by):
        pass
    stage.tell(ended(order.sum, TransferEnd.VOIDED))
    assert not stage.pushes.apart
    assert not stage.pushes.late
    assert [i for i in stage.ask_all(*map(push, "abc")) if isinstance(i, Sum)]
