"""The loop over a step's micro-batches, on a clock that the tests turn; the other workers are played."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import clock
from mlfabric.methods.drop_compute import UNLIMITED, Threshold
from mlfabric.worker_daemon.drop_compute import LEAST_TIMED_STEPS, TIMED_STEPS, WATCHED_STEPS, DropCompute
from mlfabric.worker_daemon.step_teams import Decision, StepTeam

SECOND = 10**9


class Played:
    """The other workers, and the time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.joined: list[tuple[int, int]] = []
        self.told: list[tuple[list[int], list[int]]] = []
        self.changes: list[bool] = []
        self.decision: Decision | None = None
        self.accumulates = False

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        self.accumulates = True
        yield
        self.accumulates = False

    def join(self, done: int, weight: int) -> None:
        assert not self.accumulates
        self.joined.append((done, weight))

    def tell(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int], most: int) -> None:
        assert len(computed_ns) == micro_batches * len(rest_ns)
        self.told.append((list(computed_ns), list(rest_ns)))

    def tell_change(self, micro_batches: int, *, has_changed: bool) -> None:
        self.changes.append(has_changed)

    def decided(self) -> Decision | None:
        decision, self.decision = self.decision, None
        return decision

    def made(self, micro_batches: int = 4, **options: Any) -> DropCompute[Any]:
        chosen = {"threshold_s": None, "divide_by": "computed", "compensation": "none", **options}
        team = StepTeam(self, self, torch.device("cpu"))
        made: DropCompute[Any] = DropCompute(team, micro_batches=micro_batches, **chosen)
        return made.over(count())

    def step(self, steps: DropCompute[Any], took_s: float | Sequence[float] = 1.0, rest_s: float = 0.5) -> list[Any]:
        """Make a step; return its micro-batches."""
        found = []
        for n, batch in enumerate(steps):
            found.append(batch)
            self.now_ns += round(SECOND * (took_s if isinstance(took_s, float) else took_s[n]))
        self.now_ns += round(SECOND * rest_s)
        return found


@pytest.fixture
def played() -> Iterator[Played]:
    others = Played()
    with clock.replaced(lambda: others.now_ns, lambda: others.now_ns):
        yield others


def test_no_micro_batch_is_begun_after_the_threshold(played: Played) -> None:
    steps = played.made(threshold_s=2.5)
    assert played.step(steps) == [0, 1, 2]
    assert played.step(steps, [0.1, 0.1, 0.1, 0.1]) == [3, 4, 5, 6]
    assert played.step(steps, [9.0]) == [7]
    assert played.joined == [(3, 3), (4, 4), (1, 1)]
    assert (steps.report.tau_s, steps.report.steps) == (2.5, 2)
    assert steps.report.dropped == pytest.approx(1 / 8)


def test_the_sum_may_be_divided_by_all_that_were_wanted(played: Played) -> None:
    played.step(played.made(threshold_s=1.5, divide_by="all"))
    assert played.joined == [(2, 4)]


def test_what_the_source_does_not_have_is_not_dropped(played: Played) -> None:
    steps = played.made(threshold_s=9.0).over([1, 2, 3, 4, 5])
    assert [played.step(steps), played.step(steps), played.step(steps)] == [[1, 2, 3, 4], [5], []]
    assert played.joined == [(4, 4), (1, 1)]
    assert steps.report.dropped == 0


def test_steps_are_timed_and_the_threshold_that_was_chosen_holds_from_then_on(played: Played) -> None:
    steps = played.made()
    for _ in range(TIMED_STEPS):
        assert len(played.step(steps, [1.0, 2.0, 3.0, 4.0])) == 4
    assert played.told == []
    played.decision = Decision(Threshold(tau_s=2.0, speedup=1.4, dropped=0.4), measures=False)
    assert len(played.step(steps)) == 2
    assert played.told == [([SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND] * TIMED_STEPS, [SECOND // 2] * TIMED_STEPS)]
    played.step(steps)
    report = steps.report
    assert (report.tau_s, report.predicted_speedup, report.predicted_dropped) == (2.0, 1.4, 0.4)
    assert report.dropped == 0.5
    assert report.speedup == pytest.approx((2 / 2.5) / (4 / 10.5))
    assert report.extra_steps(10) == 10


def test_times_are_told_again_until_a_threshold_comes(played: Played) -> None:
    steps = played.made()
    for _ in range(3 * TIMED_STEPS + 1):
        played.step(steps)
    assert [len(rest) for _, rest in played.told] == [TIMED_STEPS] * 3


def test_steps_of_many_micro_batches_are_timed_for_a_shorter_while(played: Played) -> None:
    steps = played.made(1_000)
    for _ in range(LEAST_TIMED_STEPS + 1):
        played.step(steps)
    assert len(played.told) == 1


def decided(played: Played, threshold: Threshold) -> DropCompute[int]:
    steps = played.made()
    played.decision = Decision(threshold, measures=False)
    played.step(steps)
    played.step(steps)
    return steps


@pytest.mark.parametrize("threshold", [UNLIMITED, Threshold(tau_s=2.5, speedup=1.2, dropped=0.2)])
def test_a_change_is_told_and_steps_are_timed_anew(played: Played, threshold: Threshold) -> None:
    steps = decided(played, threshold)
    for _ in range(3 * WATCHED_STEPS):
        played.step(steps)
    assert played.changes == [False] * 3
    for _ in range(WATCHED_STEPS):
        played.step(steps, 1.5)
    assert played.changes == [False] * 3 + [True]
    played.decision = Decision(UNLIMITED, measures=True)
    for _ in range(TIMED_STEPS + 1):
        assert len(played.step(steps, 1.5)) in (2, 4)
    assert len(played.step(steps, 1.5)) == 4
    assert played.told[-1] == ([3 * SECOND // 2] * 4 * TIMED_STEPS, [SECOND // 2] * TIMED_STEPS)


def test_fast_workers_compute_more_if_that_is_to_make_up_for_what_is_dropped(played: Played) -> None:
    steps = played.made(compensation="larger-batch")
    played.decision = Decision(Threshold(tau_s=3.5, speedup=1.2, dropped=0.2), measures=False)
    played.step(steps)
    assert len(played.step(steps, 0.1)) == 5
    assert len(played.step(steps, 1.0)) == 4


def test_dropped_micro_batches_are_kept(played: Played) -> None:
    steps = played.made(threshold_s=1.5, compensation="keep")
    assert played.step(steps.over("abcd")) == ["a", "b"]
    assert played.step(steps.over("efg")) == ["e", "f"]
    assert steps.dropped_batches() == ["c", "d", "g"]
    assert steps.dropped_batches() == []


def test_a_loop_that_is_left_is_an_error_once(played: Played) -> None:
    steps = played.made(threshold_s=9.0)
    for _ in steps:
        break
    with pytest.raises(mlfabric.UsageError, match="left in its midst"):
        played.step(steps)
    assert len(played.step(steps)) == 4


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"micro_batches": 0}, "micro_batches=0; allowed"),
        ({"threshold": 0}, "threshold=0; allowed: 'auto', or a number of seconds above 0"),
        ({"threshold": math.nan}, "threshold"),
        ({"divide_by": "some"}, "divide_by='some'; allowed: 'computed', 'all'"),
        ({"compensation": "more"}, "compensation='more'; allowed: 'none', 'larger-batch', 'keep'"),
        ({}, "worker=SGD; allowed: what mlfabric.wrap returns"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], story: str) -> None:
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(mlfabric.UsageError, match=story):
        mlfabric.drop_compute([1, 2], sgd, **{"micro_batches": 2, **options})


def test_a_loader_is_refused() -> None:
    loader: Any = torch.utils.data.DataLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(mlfabric.UsageError, match=r"allowed: iter\(loader\), made once"):
        mlfabric.drop_compute(loader, None, micro_batches=2)
