"""What a server lets pass, and which steps that makes: well-formed orders, delays within the bound. Pure.

The gate holds the promises of a method whatever the plan got wrong (design, section 5, "Versions"): member j of a sum
is applied to the version that the members before it make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlfabric.model.specs import Method, ModelSpec
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import (
    Commit,
    Dropped,
    DropReason,
    Expect,
    Expected,
    ModelVersion,
    SumId,
    UpdateId,
    UpdateKind,
)
from mlfabric.protocol.lineage import is_in_lineage, is_in_lineage_of_part
from mlfabric.server.actions import ApplyStep, StepKind
from mlfabric.server.applied import AppliedSet
from mlfabric.server.expected_transfers import Place
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.values import dataclass

__all__ = ["Gate", "commits_of", "flaw_of", "refusals_of", "step_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The gate before one version.

    Args:
        version: that is the present one.
        began: the path to the present epoch, see ``protocol/lineage.py``.
        is_part: of a model that is cut.
        initialised: there are weights.
        synchronous: every update must be computed from the present version.
    """

    version: ModelVersion
    began: tuple[ModelVersion, ...]
    is_part: bool
    initialised: bool
    synchronous: bool

    def refusal(self, member: Expected, place: int, tau_max: int) -> Dropped | None:
        """Say why an update must not be applied, or return None.

        Args:
            member: the update.
            place: how many updates of its sum are applied before it.
            tau_max: the bound that it is held to.
        """
        base = member.computed_from
        if not self.initialised:
            return Dropped(cause=DropReason.FUTURE_VERSION, detail="the model has no weights yet")
        is_later = base.epoch > self.version.epoch and self.is_part
        if is_later or (base.epoch == self.version.epoch and base.number > self.version.number):
            detail = f"computed from {base}, the model is at {self.version}"
            return Dropped(cause=DropReason.FUTURE_VERSION, detail=detail)
        within = is_in_lineage_of_part if self.is_part else is_in_lineage
        if not within(self.began, base, self.version.number):
            detail = f"version {base.number} was lost; the model is at {self.version.number}, in a later epoch"
            return Dropped(cause=DropReason.ROLLED_BACK, detail=detail)
        tau, bound = self.delay(member, place), 0 if self.synchronous else tau_max
        if tau > bound:
            return Dropped(cause=DropReason.DELAY_BOUND, detail=f"delay {tau} is above the bound {bound}")
        return None

    def delay(self, member: Expected, place: int) -> int:
        """Return the delay of an update that is applied ``place`` updates from now."""
        return self.version.number + (0 if self.synchronous else place) - member.computed_from.number


def refusals_of(transfer: IncomingTransfer, gate: Gate, applied: AppliedSet) -> Iterator[tuple[UpdateId, Dropped]]:
    """Yield the members of a transfer that must not be applied to the present version, and why.

    Args:
        transfer: of gradients.
        gate: before the version that it would be applied to.
        applied: what was settled before.
    """
    for place, member in enumerate(transfer.members):
        if applied.knows(member.update):
            yield member.update, Dropped(cause=DropReason.DUPLICATE, detail=f"{member.update} was settled before")
        elif (refusal := gate.refusal(member, place, transfer.tau_max)) is not None:
            yield member.update, refusal


def step_of(group: Place, gate: Gate, spec: ModelSpec) -> ApplyStep:
    """Return the step that a group makes; arguments as of :func:`commits_of`."""
    one = StepKind.SUM if group[0].is_sum else StepKind.ONE
    commits = commits_of(group, gate, spec.rule)
    return ApplyStep(
        model=spec.name,
        transfers=tuple(t.transfer for t in group),
        kind=StepKind.MEAN if gate.synchronous else one,
        lrs=tuple(commit.lr for commit in commits),
        version=commits[-1].version,
    )


def commits_of(group: Place, gate: Gate, rule: RuleSpec, step_norm: float = 0.0) -> tuple[Commit, ...]:
    """Return the commits that applying a group makes: of the steps of one transfer, or of one step of an iteration.

    Args:
        group: what is applied together.
        gate: before the version that it is applied to.
        rule: of the model. A sum of several steps brings their learning rates, as it was planned with.
        step_norm: l2 norm of the whole change.
    """
    members = [member for transfer in group for member in transfer.members]
    rate = rule.lr_at(gate.version.number, gate.delay(members[0], 0))
    epoch, number = gate.version
    return tuple(
        Commit(
            update=member.update,
            version=ModelVersion(epoch, number + (1 if gate.synchronous else place + 1)),
            tau=gate.delay(member, place),
            lr=lr,
            step_norm=step_norm,
            samples=member.samples,
        )
        for place, (member, lr) in enumerate(zip(members, group[0].lrs or (rate,) * len(members), strict=True))
    )


def flaw_of(order: Expect, spec: ModelSpec) -> str:
    """Say what is wrong with an order, whatever the state of the model; "" if nothing is."""
    updates = [member.update for member in order.members]
    if not isinstance(order.transfer, SumId):
        if updates == [order.transfer] and not order.lrs:
            return ""
        return f"update {order.transfer}: members {updates}, learning rates {order.lrs}; allowed: itself, none"
    if len(set(updates)) < len(updates) or order.kind is not UpdateKind.GRADIENT:
        return f"a sum of {order.kind.value}, members {updates}; allowed: gradients, each once"
    synchronous = spec.method is Method.SYNCHRONOUS
    images = 1 if synchronous else spec.rule.sum_images
    if order.size_bytes != images * spec.layout.size_bytes:
        return f"a sum of {order.size_bytes} bytes; allowed: {images} images of {spec.layout.size_bytes}"
    wanted = 0 if synchronous or spec.rule.kind is RuleKind.ADAM else len(updates)
    if len(order.lrs) != wanted or not all(math.isfinite(lr) and lr >= 0 for lr in order.lrs):
        return f"a sum of {len(updates)} updates with learning rates {order.lrs}; allowed: {wanted}, each >= 0"
    return ""
