"""Random problems, what their plans cost, and how that is compared with an earlier run."""

from __future__ import annotations

import pytest

from benchmarks.plans import compared, figures, run
from mlfabric.errors import UsageError

pytestmark = pytest.mark.usefixtures("compiled_planner")


def test_a_seed_always_gives_the_same_problem_and_plan() -> None:
    for seed in range(12):
        found = figures(seed)
        assert found == figures(seed)
        assert found.check == "holds"


def test_runs_of_the_same_code_differ_in_nothing(tmp_path) -> None:
    file = str(tmp_path / "plans.jsonl")
    run(problems=12, keep=file)
    against = run(problems=10, against=file)["against"]
    assert (against["mean_ms"]["same"], against["last_ms"]["same"], against["planned_fewer"]) == (10, 10, 0)


def test_it_is_told_how_many_plans_are_worse_and_which_is_the_worst() -> None:
    old = [figures(0)._replace(seed=seed, last_ms=100.0) for seed in range(3)]
    new = [old[0]._replace(last_ms=200.0), old[1]._replace(last_ms=50.0), old[2]._replace(planned=old[2].planned - 1)]
    found = compared({one.seed: one for one in old}, new)
    last = found["last_ms"]
    assert (last["worse"], last["better"], last["worst_seed"], found["planned_fewer"]) == (1, 1, 0, 1)
    assert (last["worst_ratio"], last["mean_ratio"]) == pytest.approx((2, 1))


def test_other_problems_than_before_are_refused() -> None:
    found = figures(0)
    with pytest.raises(UsageError, match="has no problem 0"):
        compared({0: found._replace(shape="another one")}, [found])


def test_a_file_that_was_not_kept_by_it_is_refused(tmp_path) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text('{"seed": 0}\n')
    with pytest.raises(UsageError, match="give a file that 'mlfabric bench plans' kept"):
        run(problems=1, against=str(file))
