"""The summary says what was promised and what was broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.demo.comparison import Comparison, Training
from mlfabric.demo.demo_events import Accuracy, Applied, NotApplied
from mlfabric.demo.demo_run import Counted, Share
from mlfabric.demo.demo_summary import Results
from mlfabric.demo.pictures import draw_delays, draw_timeline
from mlfabric.demo.progress_bar import describe
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import Verdict

TAUS = (0, 0, 1, 2)


def good() -> Results:
    applied = [
        Applied(worker=f"worker-{i % 2}", version=i + 1, tau=tau, pushed_ns=i * 10**9, at_ns=i * 10**9 + 5)
        for i, tau in enumerate(TAUS)
    ]
    dropped = NotApplied(worker="worker-1", is_lost=False, cause="DEADLINE_PAST", detail="", pushed_ns=1, at_ns=2)
    shares = tuple(
        Share(worker=f"worker-{i}", committed=2, dropped=i, dropped_by_cause={"too late": i} if i else {})
        for i in (0, 1)
    )
    scenario = Scenario(slowness=(1.0, 1.0), rates=())
    compared = Training(
        accuracies=[Accuracy(worker="worker-0", version=i, accuracy=i / 2, at_ns=i) for i in range(3)], wanted=0.9
    )
    return Results(
        scenario=scenario,
        comparison=Comparison(scenario=scenario, elastic=compared, ring=compared),
        counted=Counted(
            applied=4, dropped=1, lost=0, tau_max=2, delay_max=2, delay_p50=0, plans=4, mean_plan_ms=0.5, shares=shares
        ),
        verdict=Verdict(accuracy=0.97, single_process_accuracy=0.98, version=4),
        events=[*applied, dropped],
        wall_s=12.0,
    )


def test_the_summary_has_exactly_the_promised_keys():
    assert set(good().as_json()) == {
        *("accuracy", "single_process_accuracy", "updates_applied", "updates_dropped", "delay_bound", "delay_max"),
        *("delay_p50", "wall_s", "plans", "mean_plan_ms", "details"),
    }


def test_a_run_as_promised_breaks_nothing():
    assert good().broken_promises() == []
    assert good().delays() == {0: 2, 1: 1, 2: 1}
    assert good().causes() == {"too late": 1}
    assert good().updates_per_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("part", "change", "story"),
    [
        ("counted", {"tau_max": 1}, "above the bound of 1"),
        ("counted", {"applied": 5}, "must be equal"),
        ("counted", {"dropped": 0}, "0 dropped updates, the workers 1"),
        ("verdict", {"version": 3}, "version 3"),
        ("verdict", {"accuracy": 0.959, "single_process_accuracy": 0.96}, "below 0.96"),
        ("verdict", {"accuracy": 0.965, "single_process_accuracy": 0.99}, "below that of one process"),
        (
            "counted",
            {"shares": (Share(worker="w", committed=1, dropped=2, dropped_by_cause={}),)},
            "more updates dropped",
        ),
    ],
)
def test_each_broken_promise_is_named(part, change, story):
    results = good()
    broken = replace(results, **{part: replace(getattr(results, part), **change)}).broken_promises()
    assert len(broken) == 1
    assert story in broken[0]


def test_progress_shows_delay_against_the_bound():
    text = describe(good().events, tau_max=8, now_ns=10**10)
    assert "max 2 of 8" in text
    assert "dropped 1" in text


def test_pictures_are_drawn_also_of_a_run_without_drops(tmp_path):
    results = good()
    for name, events in (("some", results.events), ("none", results.events[:-1])):
        draw_delays(replace(results, events=events), tmp_path / f"delay-{name}.png")
        draw_timeline(replace(results, events=events), tmp_path / f"timeline-{name}.png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 4
