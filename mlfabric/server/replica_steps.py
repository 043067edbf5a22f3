"""How a replica makes the steps of a prefix of the log at once, out of what workers have sent.

Every step of SGD is affine, so a prefix is one affine step as a sum is (design, section 5, "Momentum and sums"): each
update by itself and each window is carried to the prefix's end and added up. ADAM has no such sum: its groups are added
up as the primary did, and make one step each.

Of buffers the values of the prefix's last group alone count: they are added up, and divided by their number. What of
that group was applied before is part of the mean. Of counters the greatest values count, whoever brought them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mlfabric.model.images import Run, add_value, runs_of
from mlfabric.model.specs import Layout, TensorKind
from mlfabric.model.stepping import member_coefficients, transition
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import SumId, TransferId
from mlfabric.server.iteration_sum import add_up
from mlfabric.server.replica_actions import ApplyPrefix, Part
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.store import ModelStore
from mlfabric.server.value_kernels import MeanKernel

__all__ = ["apply_prefix"]

Buffers = Mapping[TransferId, memoryview]


def apply_prefix(store: ModelStore, order: ApplyPrefix, buffers: Buffers) -> StepResult | NotFinite:
    """Make the steps of a prefix in a store.

    Args:
        buffers: of at least the transfers that are in it; they are read only.
    """
    rule, layout = store.spec.rule, store.spec.layout
    if rule.kind is RuleKind.ADAM:
        first, *rest = (buffers[part.transfer] for part in order.parts)
        total = add_up(layout, [_copy(first), *rest])
        count = len(order.parts)
        return store.apply(total, order.lrs[0], count) if order.is_mean else store.apply_sum(total, order.lrs)
    total = np.zeros(rule.sum_images * layout.size_bytes, dtype=np.uint8).data
    for place, part in enumerate(order.parts):
        _add(rule, layout, total, part, buffers[part.transfer], order.lrs, is_first=place == 0)
    means = MeanKernel(count=order.values, kept=order.values_before)
    return store.apply_sum(total, order.lrs, means)


def _copy(image: memoryview) -> memoryview:
    return np.array(image).data


def _add(
    rule: RuleSpec,
    layout: Layout,
    total: memoryview,
    part: Part,
    image: memoryview,
    lrs: Sequence[float],
    *,
    is_first: bool,
) -> None:
    """Add what one transfer comes to at the end of the prefix."""
    size_bytes = layout.size_bytes
    behind = transition(rule, lrs[part.place :])
    own = member_coefficients(rule, lrs[part.place - 1 :])[0]
    for run in runs_of(layout):
        targets = _images(run, total, size_bytes)
        if run.kind is not TensorKind.PARAMETER:
            _add_values(run, targets[0], run.of(image), part, is_first=is_first)
            continue
        if isinstance(part.transfer, SumId):
            _add_window(targets, _images(run, image, size_bytes), (behind.ww, behind.wh, behind.hw, behind.hh))
            continue
        for target, coefficient in zip(targets, own, strict=False):
            target.add_(run.of(image), alpha=part.share * coefficient)


def _add_values(run: Run, target: torch.Tensor, values: torch.Tensor, part: Part, *, is_first: bool) -> None:
    if run.kind is TensorKind.COUNTER and is_first:
        target.copy_(values)
    elif run.kind is TensorKind.COUNTER or not part.outdated:
        add_value(run, target, values)


def _add_window(targets: Sequence[torch.Tensor], images: Sequence[torch.Tensor], p: tuple[float, ...]) -> None:
    ww, wh, hw, hh = p
    targets[0].add_(images[0], alpha=ww)
    if len(targets) > 1:
        targets[0].add_(images[1], alpha=wh)
        targets[1].add_(images[0], alpha=hw)
        targets[1].add_(images[1], alpha=hh)


def _images(run: Run, data: memoryview, size_bytes: int) -> list[torch.Tensor]:
    return [run.of(data[start : start + size_bytes]) for start in range(0, len(data), size_bytes)]
