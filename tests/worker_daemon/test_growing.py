"""When an update is announced, and how much of it may leave before it is complete."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.update_rules import MomentumAt, RuleSpec
from mlfabric.protocol import Committed, Dropped, DropReason, ModelVersion
from mlfabric.worker_daemon import growing_update
from mlfabric.worker_daemon.gradient_rules import Shaping
from mlfabric.worker_daemon.growing_update import GrowingUpdate, Times, Timing
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.thread import OutcomeFuture

COMMITTED = Committed(version=ModelVersion(1, 1), tau=0)
DROPPED = Dropped(cause=DropReason.CHANGED, detail="")


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def monotonic_ns(self) -> int:
        return self.ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(growing_update, "clock", made)
    return made


def step(timing: Timing, clock: Clock, made_ns: dict[int, int], announced_ns: int, committed_ns: int) -> None:
    """Play a step that begins now; all times are counted from its beginning, which takes 1000 in all."""
    timing.begin()
    began_ns = clock.ns
    times = Times({i: began_ns + ns for i, ns in made_ns.items()})
    times.announced_ns = began_ns + announced_ns
    timing.pushed(times)
    times.committed_ns = began_ns + committed_ns if committed_ns else 0
    clock.ns += 1000


def due(timing: Timing, clock: Clock, tensor: int, after_ns: int) -> bool:
    timing.begin()
    return timing.is_due(tensor, clock.ns + after_ns)


def test_nothing_is_announced_before_a_commit_has_told_how_long_it_takes(clock: Clock) -> None:
    timing = Timing()
    assert not due(timing, clock, 0, 50)
    step(timing, clock, {0: 50, 1: 100}, 100, 200)
    assert not due(timing, clock, 0, 50)
    step(timing, clock, {0: 50, 1: 100}, 100, 0)
    assert due(timing, clock, 0, 50)


def test_an_update_is_announced_when_the_rest_takes_no_longer_than_the_shortest_of_the_last_commits(
    clock: Clock,
) -> None:
    timing = Timing()
    for committed_ns in (160, 180, 0):
        step(timing, clock, {0: 40, 1: 50, 2: 100}, 100, committed_ns)
    assert not due(timing, clock, 0, 40)  # 60 are left, 90 % of 60 are spared
    assert due(timing, clock, 1, 50)
    assert due(timing, clock, 2, 100)


def test_a_step_that_is_slow_for_once_is_announced_later(clock: Clock) -> None:
    timing = Timing()
    for committed_ns in (180, 0):
        step(timing, clock, {0: 50, 1: 75, 2: 100}, 100, committed_ns)
    assert due(timing, clock, 0, 50)
    assert not due(timing, clock, 0, 200)
    assert not due(timing, clock, 1, 300)
    assert due(timing, clock, 2, 400)


def test_who_kept_a_sum_waiting_announces_later_the_next_time(clock: Clock) -> None:
    """What is committed as soon as its last gradient is there was announced too early."""
    timing = Timing()
    step(timing, clock, {0: 50, 1: 100}, 50, 101)
    step(timing, clock, {0: 50, 1: 100}, 50, 0)
    assert not due(timing, clock, 0, 50)


def test_updates_that_were_not_committed_teach_nothing(clock: Clock) -> None:
    update = GrowingUpdate(tensors())
    for outcome, committed_ns in ((DROPPED, 0), (COMMITTED, 7)):
        clock.ns = 3
        future = OutcomeFuture()
        update.announce(future)
        clock.ns = 7
        future.set_result(outcome)
        assert (update.times.announced_ns, update.times.committed_ns) == (3, committed_ns)


def tensors(rule: RuleSpec | None = None, *, buffer: bool = False) -> ModelTensors:
    model = {name: torch.ones(n, requires_grad=True) for name, n in (("a", 3), ("b", 8), ("c", 5))}
    extra = {"seen": torch.nn.Buffer(torch.zeros(2))} if buffer else {}
    for tensor in model.values():
        tensor.grad = torch.arange(float(tensor.numel()))
    return ModelTensors({**model, **extra}, Shaping(rule or RuleSpec()), backwards=True)


@given(st.permutations([0, 1, 2]), st.booleans())
def test_only_what_is_there_from_the_beginning_on_may_leave_and_never_all_before_it_is_complete(
    order: list[int], buffer: bool
) -> None:
    made = tensors(buffer=buffer)
    update = GrowingUpdate(made)
    assert [tensor.name for tensor in made.layout.tensors][:3] == ["c", "b", "a"]
    ends = [*made.layout.offsets[1:], made.layout.size_bytes]
    assert update.ready_bytes == 0
    for n, i in enumerate(order, start=1):
        assert update.take(i)
        whole = next(k for k in range(4) if k not in order[:n])
        assert update.ready_bytes == min([0, *ends][whole], made.layout.size_bytes - 1)
    assert update.complete()
    assert update.ready_bytes == made.layout.size_bytes


def test_a_gradient_that_is_not_finite_is_noticed_at_once_and_leaves_the_velocity_alone() -> None:
    rule = RuleSpec(lr=0.1, momentum=0.9, momentum_at=MomentumAt.WORKERS)
    made = tensors(rule)
    made._tensors[1].grad = torch.full((8,), float("inf"))
    update = GrowingUpdate(made)
    assert update.take(0)
    assert not update.take(1)
    assert not update.complete()
    assert update.ready_bytes < made.layout.size_bytes
    assert made.shaping._velocity == {}
