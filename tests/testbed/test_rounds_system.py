"""mlfabric's rounds without a server as systems of the testbed: on real hosts, a few steps, and complete logs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.processes import Launcher
from benchmarks.testbed.runs import Goal
from benchmarks.testbed.systems import rounds
from mlfabric.model.specs import Method
from mlfabric.twin.settings import COMPUTE
from tests.testbed.digits import needs_digits
from tests.testbed.made_up import SPEC
from tests.testbed.on_hosts import hosts_of, run_on
from tests.testbed.steps import PLAN, STEPS, in_one_process, in_order

pytestmark = [
    pytest.mark.processes,
    pytest.mark.root,
    pytest.mark.timeout(300),
    needs_digits,
]

WORKERS = 4
UNEVEN = replace(PLAN, base_compute_s=0.02, compute=COMPUTE["C2"], max_steps=3 * STEPS)
WRAPPED = [
    name for name, system in SYSTEMS.items() if system.module == "rounds" and system.wrapped.get("inner_steps") != 32
]


@pytest.fixture(scope="module")
def bed():
    with hosts_of(rounds, WORKERS) as made:
        yield made


@pytest.fixture(scope="module")
def launcher():
    with Launcher(preloaded=[rounds.__name__]) as made:
        yield made


def _run(bed, launcher, name, plan) -> RunLogs:
    return run_on(bed, launcher, rounds, replace(plan, wrapped=SYSTEMS[name].wrapped), WORKERS)


def test_synchronous_workers_step_as_one_process_would_with_all_batches(bed, launcher):
    logs = _run(bed, launcher, "synchronous", PLAN)

    for log in logs.workers:
        in_order(log)
        assert len(log.ended_ns) == STEPS
        assert log.dropped == 0
        assert log.rounds.tolist() == list(range(1, STEPS + 1))
    models = in_one_process(PLAN, WORKERS)
    assert [snapshot.updates for snapshot in logs.snapshots] == list(range(STEPS + 1))
    for snapshot, model in zip(logs.snapshots, models, strict=True):
        np.testing.assert_allclose(snapshot.weights, model, atol=1e-6)


@pytest.mark.parametrize("name", WRAPPED)
def test_every_gradient_is_in_one_round_or_dropped_and_all_have_the_same_model_after_the_same_round_but_in_gossip(
    bed, launcher, name
):
    logs = _run(bed, launcher, name, UNEVEN)
    has_inner_steps, waits = "inner_steps" in SYSTEMS[name].wrapped, SYSTEMS[name].wrapped.get("wait", True)

    for log in logs.workers:
        in_order(log)
        assert len(log.rounds) == len(log.applied_ns) == len(log.delays)
        kept = len(log.ended_ns) - len(log.rounds) - log.dropped
        assert kept >= 0
        most = (8 if waits else 15) if has_inner_steps else 1
        assert kept <= most or name == "partial", "partial keeps for ever what the last rounds were made without"
        assert (np.diff(log.rounds) >= 0).all()
    by_version: dict[int, list[np.ndarray]] = {}
    for log in logs.workers:
        for snapshot in log.snapshots:
            by_version.setdefault(snapshot.updates, []).append(snapshot.weights)
    if not Method(SYSTEMS[name].wrapped["method"]).is_gossip:
        assert all(np.array_equal(models[0], model) for models in by_version.values() for model in models)
    taken = logs.commits()
    assert len(Counter(taken.rounds)) >= (2 if has_inner_steps else 3)
    assert logs.gradients_after(replace(SPEC, system=name))(max(taken.rounds)) == len(taken.workers)


def test_the_worker_that_judges_the_model_ends_the_run_for_all(bed, launcher):
    plan = replace(UNEVEN, max_steps=None, goal=Goal(least_steps=5, accuracy=0.1))
    logs = _run(bed, launcher, "elastic", plan)

    assert len(logs.workers[0].ended_ns) >= 5
    assert max(len(log.ended_ns) for log in logs.workers) < 50
