"""Folding: windows of several workers, laid over each other at the replica, are the steps that the primary made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.protocol import ModelVersion, SumId, TransferId, UpdateId
from mlfabric.rules import MomentumAt, RuleSpec
from mlfabric.server.replica_actions import ApplyPrefix, Part
from mlfabric.server.replica_steps import apply_prefix
from mlfabric.server.store import ModelStore
from mlfabric.specs import Layout, ModelSpec, TensorKind, TensorSpec
from mlfabric.worker_daemon.folding import fold_into

LAYOUT = Layout(
    (
        TensorSpec(name="w", shape=(5,), dtype="float64"),
        TensorSpec(name="mean", shape=(3,), dtype="float64", kind=TensorKind.BUFFER),
    )
)


def image(seed: int) -> memoryview:
    values = np.random.default_rng(seed).standard_normal(LAYOUT.size_bytes // 8)
    return values.view(np.uint8).data


def store(rule: RuleSpec) -> ModelStore:
    found = ModelStore(ModelSpec(name="net", layout=LAYOUT, rule=rule))
    found.initialise(image(1000))
    return found


def tensors(found: ModelStore) -> torch.Tensor:
    with found.standing() as snapshot:
        return torch.cat([t.reshape(-1) for t in (*snapshot.model.values(), *snapshot.history.values())])


@pytest.mark.parametrize("gamma", [0.0, 0.9])
@settings(max_examples=60)
@given(
    workers=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    lrs=st.lists(st.floats(0, 0.5), min_size=12, max_size=12),
    decay=st.sampled_from([0.0, 0.1]),
)
def test_whoever_made_which_step_folded_or_alone_the_same_is_applied(
    gamma: float, workers: list[int], lrs: list[float], decay: float
):
    rule = RuleSpec(momentum=gamma, momentum_at=MomentumAt.SERVER, weight_decay=decay)
    primary, replica = store(rule), store(rule)
    buffers: dict[TransferId, memoryview] = {}
    last: dict[int, int] = {}
    for place, worker in enumerate(workers, 1):
        primary.apply(image(place), lrs[place - 1])
        if worker == 0:
            buffers[UpdateId("alone", 1, place)] = image(place)
            continue
        window = buffers.setdefault(SumId(1, worker), np.zeros(rule.sum_images * LAYOUT.size_bytes, np.uint8).data)
        since = last.get(worker, place - 1)
        is_first = worker not in last
        fold_into(rule, LAYOUT, window, image(place), lrs[since:place], 1.0, is_first=is_first)
        last[worker] = place
    parts = [
        Part(transfer=name, place=name.counter if isinstance(name, UpdateId) else last[name.counter])
        for name in buffers
    ]
    order = ApplyPrefix(
        model="net",
        parts=tuple(parts),
        lrs=tuple(lrs[: len(workers)]),
        is_mean=False,
        version=ModelVersion(1, len(workers)),
        reason="",
    )
    apply_prefix(replica, order, buffers)
    assert replica.version == primary.version
    torch.testing.assert_close(tensors(replica), tensors(primary), rtol=1e-10, atol=1e-12)


def test_an_iteration_s_updates_have_their_share_in_it():
    rule = RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER)
    primary, replica = store(rule), store(rule)
    first, second = image(1), image(2)
    total = np.array(first).view(np.float64) + np.array(second).view(np.float64)
    primary.apply_mean(total.view(np.uint8).data, 0.1, 2)
    window = np.zeros(2 * LAYOUT.size_bytes, np.uint8).data
    fold_into(rule, LAYOUT, window, first, (0.1,), 0.5, is_first=True)
    order = ApplyPrefix(
        model="net",
        parts=(Part(transfer=SumId(1, 1), place=1), Part(transfer=UpdateId("b", 1, 0), place=1, share=0.5)),
        lrs=(0.1,),
        is_mean=True,
        version=ModelVersion(1, 1),
        reason="",
    )
    apply_prefix(replica, order, {SumId(1, 1): window, UpdateId("b", 1, 0): second})
    torch.testing.assert_close(tensors(replica), tensors(primary), rtol=1e-12, atol=1e-14)
