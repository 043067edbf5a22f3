"""The scheduler chooses a threshold once all workers have said what their steps take."""

from __future__ import annotations

from mlfabric.protocol import SetThreshold, StepsTimed
from mlfabric.scheduler.rounds.thresholds import Thresholds

SECOND = 10**9
MICRO = 4


def timed(worker: str, *steps: tuple[int, ...], rest_s: int = 1) -> StepsTimed:
    return StepsTimed(
        worker=worker,
        model="net",
        micro_batches=len(steps[0]),
        computed_ns=tuple(SECOND * each for step in steps for each in step),
        rest_ns=(rest_s * SECOND,) * len(steps),
    )


EVEN, UNEVEN = ((2, 2, 2, 2),) * 4, ((2, 2, 2, 2), (2, 2, 2, 20), (2, 2, 2, 2), (2, 2, 20, 2))


def tell(thresholds: Thresholds, *events: StepsTimed, workers: str = "ab") -> list[SetThreshold]:
    return [told for event in events for told in thresholds.timed(event, list(workers))]


def test_all_are_told_the_same_once_all_have_spoken() -> None:
    thresholds = Thresholds("net")
    assert tell(thresholds, timed("a", *EVEN)) == []
    told = tell(thresholds, timed("b", *UNEVEN))
    assert [one.to for one in told] == ["a", "b"]
    assert len({(one.tau_ns, one.speedup, one.dropped, one.measures) for one in told}) == 1
    assert 0 < told[0].tau_ns <= 8 * SECOND
    assert told[0].speedup > 1.2
    assert "times as fast" in told[0].reason


def test_no_threshold_is_set_where_none_is_worth_it() -> None:
    told = tell(Thresholds("net"), timed("a", *EVEN), timed("b", *EVEN))
    assert [(one.tau_ns, one.reason) for one in told] == [(0, "none, as none is worth it")] * 2


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    thresholds = Thresholds("net")
    tell(thresholds, timed("c", *UNEVEN), timed("a", *EVEN), workers="abc")
    assert [one.to for one in tell(thresholds, timed("b", *EVEN))] == ["a", "b"]


def test_who_says_it_again_waits_for_workers_that_are_told_to_time_their_steps_and_its_last_times_count() -> None:
    thresholds = Thresholds("net")
    told = tell(thresholds, timed("a", *UNEVEN), timed("a", *EVEN))
    assert [(one.to, one.measures) for one in told] == [("b", True)]
    assert "a waits for what their steps take" in told[0].reason
    assert [one.tau_ns for one in tell(thresholds, timed("b", *EVEN))] == [0, 0]


def test_who_joins_later_is_told_what_the_others_have() -> None:
    thresholds = Thresholds("net")
    told = tell(thresholds, timed("a", *EVEN), timed("b", *UNEVEN))
    late = tell(thresholds, timed("c", *EVEN), workers="abc")
    assert [(one.to, one.tau_ns, one.speedup) for one in late] == [("c", told[0].tau_ns, told[0].speedup)]
    assert thresholds.words == told[0].reason


def test_steps_are_timed_anew_when_one_worker_has_changed() -> None:
    thresholds = Thresholds("net")
    change = StepsTimed(worker="b", model="net", micro_batches=MICRO)
    assert tell(thresholds, change) == []
    tell(thresholds, timed("a", *EVEN), timed("b", *UNEVEN))
    told = tell(thresholds, change, change)
    assert [(one.to, one.measures, one.tau_ns) for one in told] == [("a", True, 0), ("b", True, 0)]


def test_steps_of_different_sizes_have_no_threshold() -> None:
    told = tell(Thresholds("net"), timed("a", (2, 2), (2, 9)), timed("b", *UNEVEN))
    assert [one.tau_ns for one in told] == [0, 0]
    assert "different numbers of micro-batches: [2, 4]" in told[0].reason
