"""Folding: windows of several workers, laid over each other at the replica, are the steps that the primary made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.model.specs import Layout, ModelSpec, TensorKind, TensorSpec
from mlfabric.model.stepping import member_coefficients
from mlfabric.model.update_rules import MomentumAt, RuleSpec
from mlfabric.protocol import ModelVersion, SumId, TransferId, UpdateId
from mlfabric.server.iteration_sum import add_up
from mlfabric.server.replica_actions import ApplyPrefix, Part
from mlfabric.server.replica_steps import apply_prefix
from mlfabric.server.store import ModelStore
from mlfabric.worker_daemon.kept_bytes import fold_into
from tests.server.models import weights_of

LAYOUT = Layout(
    (
        TensorSpec(name="w", shape=(5,), dtype="float64"),
        TensorSpec(name="mean", shape=(3,), dtype="float64", kind=TensorKind.BUFFER),
        TensorSpec(name="seen", shape=(1,), dtype="int64", kind=TensorKind.COUNTER),
    )
)
MEAN, SEEN = slice(LAYOUT.offsets[1], LAYOUT.offsets[2]), slice(LAYOUT.offsets[2], LAYOUT.size_bytes)


def image(seed: int) -> memoryview:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(LAYOUT.size_bytes // 8)
    values[-2:].view(np.int64)[:] = rng.integers(-(2**62), 2**62, 2)
    return values.view(np.uint8).data


def store(rule: RuleSpec) -> ModelStore:
    found = ModelStore(ModelSpec(name="net", layout=LAYOUT, rule=rule))
    found.initialise(image(1000))
    return found


def summed(rule: RuleSpec, images: Sequence[memoryview], lrs: Sequence[float]) -> memoryview:
    """Sum a group as its definition says: coefficients for parameters, plain values, the greatest counter."""
    total = np.zeros((rule.sum_images, LAYOUT.size_bytes), np.uint8)
    each = [np.array(one).view(np.float64) for one in images]
    for row, numbers in zip(total, zip(*member_coefficients(rule, lrs), strict=True), strict=False):
        row.view(np.float64)[:] = sum(c * one for c, one in zip(numbers, each, strict=True))
    mean = slice(MEAN.start // 8, MEAN.stop // 8)
    total[0].view(np.float64)[mean] = sum(one[mean] for one in each)
    total[0, SEEN].view(np.int64)[:] = np.max([np.array(one)[SEEN].view(np.int64) for one in images], axis=0)
    return total.reshape(-1).data


def tensors(found: ModelStore) -> torch.Tensor:
    with found.standing() as snapshot:
        return torch.cat([t.double().reshape(-1) for t in (*snapshot.model.values(), *snapshot.history.values())])


@pytest.mark.parametrize("gamma", [0.0, 0.9])
@settings(max_examples=100)
@given(
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    workers=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    lrs=st.lists(st.floats(0, 0.5), min_size=20, max_size=20),
    decay=st.sampled_from([0.0, 0.1]),
    share=st.floats(0, 1),
)
def test_whoever_made_which_step_folded_or_alone_the_same_is_applied(
    gamma: float, groups: list[int], workers: list[int], lrs: list[float], decay: float, share: float
) -> None:
    """The replica takes the log in two prefixes, of which the first may end in the middle of a group."""
    rule = RuleSpec(momentum=gamma, momentum_at=MomentumAt.SERVER, weight_decay=decay)
    primary, replica = store(rule), store(rule)
    began = [1 + sum(groups[:n]) for n, size in enumerate(groups) for _ in range(size)]
    for first, size in zip(dict.fromkeys(began), groups, strict=True):
        images = [image(place) for place in range(first, first + size)]
        own = lrs[first - 1 : first - 1 + size]
        primary.apply_sum(summed(rule, images, own), own)
    cut = round(share * len(began))
    for start, end in ((0, cut), (cut, len(began))):
        if start < end:
            apply_places(replica, began, workers, lrs, start, end)
    assert replica.version == primary.version
    torch.testing.assert_close(tensors(replica), tensors(primary), rtol=1e-9, atol=1e-9)
    mine, others = weights_of(replica), weights_of(primary)
    assert torch.equal(mine["seen"], others["seen"])
    if groups[-1] == 1:
        assert torch.equal(mine["mean"], others["mean"])


def apply_places(
    replica: ModelStore, began: list[int], workers: list[int], lrs: list[float], start: int, end: int
) -> None:
    """Let workers fold the updates after place ``start`` up to ``end``, but for worker 0; apply them to the replica."""
    rule = replica.spec.rule
    buffers: dict[TransferId, memoryview] = {}
    last: dict[TransferId, int] = {}
    for place in range(start + 1, end + 1):
        worker = workers[place - 1]
        name: TransferId = SumId(1, worker) if worker else UpdateId("alone", 1, place)
        if worker:
            window = buffers.setdefault(name, np.zeros(rule.sum_images * LAYOUT.size_bytes, np.uint8).data)
            is_first, since = name not in last, last.get(name, place - 1)
            begins = since < began[place - 1]
            fold_into(rule, LAYOUT, window, image(place), lrs[since:place], 1.0, is_first=is_first, begins=begins)
        else:
            buffers[name] = image(place)
        last[name] = place
    order = ApplyPrefix(
        model="net",
        parts=tuple(
            Part(transfer=name, place=place - start, outdated=began[place - 1] < began[end - 1])
            for name, place in last.items()
        ),
        lrs=tuple(lrs[start:end]),
        is_mean=False,
        values=sum(began[place] == began[end - 1] for place in range(start, end)),
        values_before=sum(began[place] == began[end - 1] for place in range(start)),
        version=ModelVersion(1, end),
    )
    apply_prefix(replica, order, buffers)


def test_an_iteration_s_updates_have_their_share_in_it() -> None:
    rule = RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER)
    primary, replica = store(rule), store(rule)
    first, second = image(1), image(2)
    primary.apply(add_up(LAYOUT, [image(1), second]), 0.1, 2)
    window = np.zeros(2 * LAYOUT.size_bytes, np.uint8).data
    fold_into(rule, LAYOUT, window, first, (0.1,), 0.5, is_first=True, begins=True)
    order = ApplyPrefix(
        model="net",
        parts=(Part(transfer=SumId(1, 1), place=1), Part(transfer=UpdateId("b", 1, 0), place=1, share=0.5)),
        lrs=(0.1,),
        is_mean=True,
        values=2,
        values_before=0,
        version=ModelVersion(1, 1),
    )
    apply_prefix(replica, order, {SumId(1, 1): window, UpdateId("b", 1, 0): second})
    torch.testing.assert_close(tensors(replica), tensors(primary), rtol=1e-12, atol=1e-14)
