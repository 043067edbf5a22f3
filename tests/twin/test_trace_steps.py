"""How long workers compute, as the scheduler sees it."""

from __future__ import annotations

import pytest

from mlfabric.protocol import (
    Commit,
    CommitsReported,
    GetId,
    MemberEvent,
    ModelVersion,
    PushRequested,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    RoundArrived,
    RoundId,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.scheduler.members.compute_times import KEEP_STEPS, StepTimes

MS = 1_000_000


def push(counter: int, version: int, incarnation: int = 1) -> PushRequested:
    update = UpdateId("w", incarnation, counter)
    return PushRequested(update=update, model="net", size_bytes=8, computed_from=ModelVersion(1, version), norm=1.0)


def served(counter: int) -> TransferEnded:
    return TransferEnded(member="s", model="net", transfer=GetId("w", 1, counter), end=TransferEnd.SERVED)


def committed(counter: int, version: int) -> CommitsReported:
    commit = Commit(update=UpdateId("w", 1, counter), version=ModelVersion(1, version), tau=0, lr=0.1, step_norm=1.0)
    return CommitsReported(server="s", model="net", commits=(commit,))


def seen(*events: tuple[int, MemberEvent]) -> list[float]:
    steps = StepTimes()
    for at_ms, event in events:
        steps.note(event, at_ms * MS)
    assert steps.of("w").count == len(steps.of("w").last_s)
    return list(steps.of("w").last_s)


def asks(counter: int) -> ReduceRequested:
    reduce = ReduceId("w", 1, counter)
    return ReduceRequested(reduce=reduce, model="net", size_bytes=8, dtype="float32", op=ReduceOp.SUM)


ARRIVED = RoundArrived(worker="w", model="net", round=RoundId(1, 1))
FIRST = [(0, served(0)), (100, push(0, 0))]


@pytest.mark.parametrize(
    ("events", "found_s"),
    [
        ([*FIRST, (190, committed(0, 1)), (270, served(1)), (470, push(1, 1))], [0.1, 0.2]),
        ([*FIRST, (120, committed(0, 1)), (140, served(1)), (200, push(1, 0))], [0.1, 0.1]),
        ([*FIRST, (300, committed(0, 1)), (400, served(1)), (402, push(1, 0))], [0.1]),
        ([*FIRST, (140, served(1)), (240, push(1, 0))], [0.1]),
        ([*FIRST, (200, push(0, 0))], [0.1]),
        ([*FIRST, (200, push(0, 0, incarnation=2)), (300, served(5))], []),
        ([(0, asks(0)), (50, ARRIVED), (150, asks(1))], [0.1]),
    ],
    ids=[
        "from a model's arrival to the next push",
        "who overlaps computes from push to push",
        "who overlaps and waits for its model is not timed",
        "after an update that was not committed nothing is known",
        "a push that is asked for again is no step",
        "a worker that comes back begins anew",
        "between rounds of AllReduce",
    ],
)
def test_a_worker_computes(events: list[tuple[int, MemberEvent]], found_s: list[float]):
    assert seen(*events) == pytest.approx(found_s)


def test_only_the_last_steps_are_kept_and_all_are_counted():
    steps, now_ms = StepTimes(), 0
    for step in range(KEEP_STEPS + 5):
        steps.note(served(step), now_ms * MS)
        steps.note(push(step, step), (now_ms + 10) * MS)
        steps.note(committed(step, step + 1), (now_ms + 20) * MS)
        now_ms += 30
    assert steps.of("w").count == KEEP_STEPS + 5
    assert len(steps.of("w").last_s) == KEEP_STEPS


def test_of_a_worker_that_was_never_seen_nothing_is_known():
    assert StepTimes().of("nobody").count == 0
