from __future__ import annotations

import pytest

from benchmarks.testbed.catalogue import MomentumAt
from benchmarks.testbed.spec import Commits
from benchmarks.testbed.tuning import Effort, Inner, Setting, Tried, Tuning, search, train
from benchmarks.testbed.workload import WorkloadSpec
from tests.testbed.digits import needs_digits

pytestmark = needs_digits

SPEC = WorkloadSpec(model="mlp-50k", batch_size=8, seed=3)
SETTING = Setting(learning_rate=0.1, momentum=0.5)


@pytest.fixture(scope="module")
def workload():
    return SPEC.build()


@pytest.mark.parametrize("momentum_at", MomentumAt)
def test_one_worker_without_delay_trains_as_synchronously(workload, momentum_at):
    alone = Commits(workers=(0,) * 6, delays=(0,) * 6)

    found = train(workload, SETTING, alone, workers=1, iterations=5, momentum_at=momentum_at)

    assert found == train(workload, SETTING, None, workers=1, iterations=5)


def test_without_momentum_simultaneous_gradients_make_a_synchronous_step(workload):
    """Three gradients of one version, applied one after the other, a third of the step each."""
    together = Commits(workers=(0, 1, 2) * 3, delays=(0, 1, 2) * 3)
    setting = Setting(learning_rate=0.1, momentum=0.0)

    found = train(workload, setting, together, workers=3, iterations=3)

    assert found.accuracy == pytest.approx(train(workload, setting, None, workers=3, iterations=3).accuracy, abs=0.002)


def test_a_mean_of_one_inner_step_each_is_a_synchronous_step(workload):
    setting = Setting(learning_rate=0.1, momentum=0.0)

    found = train(workload, setting, None, workers=3, iterations=4, inner=Inner(steps=1))

    assert found.accuracy == pytest.approx(train(workload, setting, None, workers=3, iterations=4).accuracy, abs=0.002)
    assert found.gradients == (0, 3, 6, 9, 12)


def test_more_inner_steps_are_more_gradients_for_each_round(workload):
    setting = Setting(learning_rate=0.1, momentum=0.5)

    found = train(
        workload, setting, None, workers=3, iterations=8, inner=Inner(steps=4, learning_rate=0.7, momentum=0.9)
    )

    assert found.gradients == (0, 12, 24)
    assert found.accuracy[-1] > found.accuracy[0]


def test_delay_changes_what_is_learnt(workload):
    fresh = Commits(workers=(0, 1) * 10, delays=(0,) * 20)
    late = Commits(workers=(0, 1) * 10, delays=(5,) * 20)
    setting = Setting(learning_rate=0.4, momentum=0.0)

    found = [train(workload, setting, commits, workers=2, iterations=8).accuracy for commits in (fresh, late)]

    assert found[0] != found[1]


def test_the_search_takes_the_setting_that_needs_the_fewest_gradients():
    effort = Effort(
        grid=(Setting(learning_rate=1e-5, momentum=0.0), Setting(learning_rate=0.1, momentum=0.5)),
        seeds=(7,),
        iterations=12,
    )
    told: list[Tried] = []

    tuning = search(SPEC, None, workers=4, targets=(0.3, 0.4), effort=effort, told=told.append)

    assert tuning.best == effort.grid[1]
    assert tuning.tried == tuple(told)
    never, (first, second) = (tried.gradients for tried in tuning.tried)
    assert set(never) == {4 * 12}
    assert 0 < first <= second <= 4 * 12


def test_a_setting_that_misses_the_last_target_with_one_seed_may_still_be_the_best():
    slow = Tried(setting=SETTING, gradients=(900.0, 1500.0), accuracy=0.93)
    fast = Tried(setting=SETTING, gradients=(600.0, (1400.0 + 1400.0 + 1800.0) / 3), accuracy=0.92)

    assert min([slow, fast], key=lambda tried: tried.rank) is fast


def test_a_tuning_comes_back_from_json_as_it_was():
    effort = Effort(grid=(SETTING,), seeds=(7,), iterations=2)
    tuning = search(SPEC, None, workers=2, targets=(0.9,), effort=effort)

    assert Tuning.from_json(tuning.as_json()) == tuning
    assert tuning.tried[0].rank[0] == 2 * 2
