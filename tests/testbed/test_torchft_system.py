"""torchft's DiLoCo as a system of the testbed: on real hosts, a few rounds, and complete logs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.processes import Launcher
from mlfabric.twin.settings import COMPUTE
from tests.testbed.digits import needs_digits
from tests.testbed.on_hosts import hosts_of, run_on
from tests.testbed.steps import PLAN, in_order

torchft_diloco = pytest.importorskip("benchmarks.testbed.systems.torchft_diloco", reason="torchft is not installed")

pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.timeout(300), needs_digits]

WORKERS, ROUNDS = 3, 3


def test_all_have_the_same_rounds_of_eight_steps_and_training_changes_the_model() -> None:
    wrapped = SYSTEMS["torchft-diloco-8"].wrapped
    uneven = replace(PLAN, base_compute_s=0.01, compute=COMPUTE["C2"], max_steps=8 * ROUNDS, wrapped=wrapped)
    with hosts_of(torchft_diloco, WORKERS) as bed, Launcher(preloaded=[torchft_diloco.__name__]) as launcher:
        logs = run_on(bed, launcher, torchft_diloco, uneven, WORKERS)

    for log in logs.workers:
        in_order(log)
        assert log.rounds.tolist() == [version for version in range(1, ROUNDS + 1) for _ in range(8)]
        assert len(log.ended_ns) == len(log.applied_ns)
    models = [snapshot.weights for snapshot in logs.snapshots]
    assert [snapshot.updates for snapshot in logs.snapshots] == list(range(ROUNDS + 1))
    assert not any(np.array_equal(one, other) for one, other in pairwise(models))
