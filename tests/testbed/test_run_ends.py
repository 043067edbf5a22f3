from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import EVEN_CELL, FOUR_CELL, cell_named
from benchmarks.testbed.run_ends import end_of
from benchmarks.testbed.runs import Goal
from tests.testbed.made_up import SPEC, result_for
from tests.testbed.steps import PLAN

CELL = cell_named("C1-N1")
RING = result_for(replace(SPEC, dilation=2.0), seconds_per_iteration=0.7)
"""Its sixty gradients of thirty workers took 1.4 s, dilated 2.8."""


def _end(system, cell=CELL, ring=RING):
    return end_of(cell, SYSTEMS[system], ring, dilation=2.0, accuracy=0.92)


def test_the_ring_ends_with_its_iterations_done_and_the_accuracy_reached_or_at_a_multiple_of_its_usual_time():
    assert _end("ring", ring=None) == {
        "duration_s": pytest.approx(1.6 * 2 * 46 * 0.51),
        "least_s": 0.0,
        "least_steps": 36,
        "accuracy": 0.92,
    }


def test_others_train_as_long_as_the_ring_of_their_cell_and_seed_did():
    elastic, pushing = _end("elastic"), _end("fabric-async")

    assert (elastic["least_s"], elastic["accuracy"]) == (2.8, 0.92)
    assert elastic["duration_s"] == _end("ring")["duration_s"]
    assert pushing == {"duration_s": 2.8, "least_s": 0.0, "least_steps": 0, "accuracy": 0.0}


def test_without_a_run_of_the_ring_its_usual_time_stands_for_it():
    assert _end("fabric-async", ring=None)["duration_s"] == pytest.approx(2 * 46 * 0.51)
    assert _end("elastic", cell=EVEN_CELL, ring=None)["least_s"] == pytest.approx(2 * 46 * 0.34)


@pytest.mark.parametrize(
    ("system", "cell", "passing_s"), [("elastic", FOUR_CELL, 180), ("lda-ring", CELL, 2 * 80 * 0.51)]
)
def test_where_hosts_are_always_slow_and_where_topics_are_found_runs_have_a_fixed_length(system, cell, passing_s):
    assert _end(system, cell=cell)["duration_s"] == pytest.approx(passing_s)
    assert _end(system, cell=cell)["accuracy"] == 0.0


def test_the_accuracy_is_asked_for_only_when_nothing_else_is_lacking():
    goal, asked = Goal(least_s=2.0, least_steps=3, accuracy=0.5), []

    def accuracy():
        asked.append(True)
        return 0.6

    found = [goal.is_reached(s, steps, accuracy) for s, steps in ((1.0, 9), (3.0, 2), (2.0, 3))]

    assert found == [False, False, True]
    assert len(asked) == 1


def test_only_a_worker_that_judges_the_model_ends_a_run_before_its_time():
    plan = replace(PLAN, max_steps=None, duration_s=10.0, goal=Goal(accuracy=0.5))
    now_ns = 1_000_000_000

    assert not plan.is_over(0, now_ns, 1)
    assert not plan.is_over(0, now_ns, 1, lambda: 0.4)
    assert plan.is_over(0, now_ns, 1, lambda: 0.5)
    assert plan.is_over(0, 10 * now_ns, 1, lambda: 0.4)
