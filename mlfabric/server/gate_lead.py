"""How far a primary may be ahead of its replica: the gate that holds the bound whatever a plan got wrong. Pure.

Of commits that were made the exact norm of the step counts, of those to be made (and of the members of a sum, whose
steps are only known together) a bound of it. What the replica holds by itself, without a gap after what it has applied,
it can recover as soon as it is committed, so it is no lead. The gate is in force from the first report of a seeded
replica until the scheduler says that there is none any more; with a replica that is away it just stays closed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mlfabric.model.divergence import Limit, RuleState, Units, as_norm, step_bound, units_above
from mlfabric.model.specs import Method, ModelSpec, TensorKind
from mlfabric.model.update_rules import RuleKind
from mlfabric.protocol import Commit, Expected, Followed, HeldBack, UpdateId
from mlfabric.server.expected_transfers import Place
from mlfabric.values import dataclass

__all__ = ["LeadGate"]

ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of the lead, or one that would follow; ``version`` is the last that it makes, under ADAM of several."""

    version: int
    members: tuple[UpdateId, ...]
    bound: Units


class LeadGate:
    """The lead of one model's primary; ``reported`` is what was reported last to wait for the replica.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.reported: HeldBack | None = None
        self._spec = spec
        self._state: RuleState | None = None
        self._followed: Followed | None = None
        self._limit = Limit(None, None)
        self._held: frozenset[UpdateId] = frozenset()
        self._steps: list[_Step] = []

    @property
    def is_followed(self) -> bool:
        """There is a replica, and the lead over it is bounded."""
        return self._state is not None and self._followed is not None

    @property
    def replica(self) -> str:
        """Over whom the lead is bounded, "" without a replica."""
        return self._followed.replica if self._followed is not None else ""

    def seeded(self, history_norm: float, weights_norm: float, steps: int) -> None:
        """Begin to count at the present version: its state has been taken for a replica.

        Args:
            history_norm, weights_norm: l2 norms at this version.
            steps: how many ADAM made.
        """
        numel = sum(t.numel for t in self._spec.layout.tensors if t.kind is TensorKind.PARAMETER)
        self._state = RuleState(
            history_norm=history_norm * ROUNDING,
            weights_norm=weights_norm * ROUNDING,
            steps=steps,
            elements=numel,
        )
        if self._followed is None:
            self._steps = []

    def follow(self, order: Followed) -> None:
        """Note where the replica is; what must wait all the same is reported anew, maybe to a new scheduler."""
        self.reported = None
        self._followed, self._held = order, frozenset(order.held)
        self._limit = Limit.of(order.norm, order.updates)
        self._steps = [step for step in self._steps if step.version > order.version.number]

    def lift(self) -> None:
        """Note that there is no replica any more."""
        self._followed, self._state, self._steps, self._held = None, None, [], frozenset()

    def held_back(self, server: str, place: Place, commits: Sequence[Commit]) -> HeldBack | None:
        """Say that these, whose turn it is, must wait for the replica, or return None.

        Args:
            server: who says so.
            place: what is to be committed together.
            commits: that this would make.
        """
        before, lrs = commits[0].version.number - 1, [commit.lr for commit in commits]
        group = before, [m for t in place for m in t.members], lrs
        if not (detail := self.refusal(*group)):
            return None
        return HeldBack(
            server=server,
            model=self._spec.name,
            transfers=tuple(t.transfer for t in place),
            alone=self.is_too_large(*group),
            detail=detail,
        )

    def refusal(self, version: int, members: Sequence[Expected], lrs: Sequence[float]) -> str:
        """Say why these must not be committed together now, "" if they may.

        Args:
            version: before them.
            members: in the order of commits.
            lrs: learning rate of each member's step.
        """
        if self._followed is None or not self.is_followed:
            return ""
        ahead = self._lead([*self._steps, *self._planned(version, members, lrs)])
        if self._fits(ahead):
            return ""
        norm, updates = as_norm(sum(s.bound for s in ahead)), sum(len(s.members) for s in ahead)
        allowed = f"{self._followed.norm:g} and {self._followed.updates or 'any number of'} updates"
        if self._limit.commits == 0:
            allowed = "nothing"
        return f"the lead over {self._followed.replica} would be {norm:.6g} and {updates} updates; allowed: {allowed}"

    def is_too_large(self, version: int, members: Sequence[Expected], lrs: Sequence[float]) -> bool:
        """Tell whether these would be above the bound even if the replica held all that was committed before."""
        return not self._fits(self._lead(self._planned(version, members, lrs)))

    def _lead(self, steps: Sequence[_Step]) -> Sequence[_Step]:
        """Return what is left once the replica has applied all that it can."""
        for place, step in enumerate(steps):
            if not self._held.issuperset(step.members):
                return steps[place:]
        return ()

    def _fits(self, ahead: Sequence[_Step]) -> bool:
        norm, commits = self._limit
        few = commits is None or sum(len(s.members) for s in ahead) <= commits
        return few and (norm is None or sum(s.bound for s in ahead) <= norm)

    def _planned(self, version: int, members: Sequence[Expected], lrs: Sequence[float]) -> list[_Step]:
        """Bound the steps of a group that is not committed: one if the replica can only make it whole."""
        ids, bounds = tuple(m.update for m in members), self._bounds(members, lrs)
        if self._spec.method is Method.SYNCHRONOUS:
            return [_Step(version + 1, ids, bounds[0])]
        if self._spec.rule.kind is RuleKind.ADAM:
            return [_Step(version + len(ids), ids, bounds[0])]
        return [
            _Step(version + place, (update,), bound)
            for place, (update, bound) in enumerate(zip(ids, bounds, strict=True), 1)
        ]

    def _bounds(self, members: Sequence[Expected], lrs: Sequence[float]) -> list[Units]:
        assert self._state is not None, "it counts since a replica was seeded"
        norms = [m.norm for m in members]
        if self._spec.rule.kind is RuleKind.ADAM:
            rate = max(norms) if self._spec.layout.rate_groups else 1.0
            return step_bound(self._spec.rule, [0.0], [lrs[0] * rate * ROUNDING], self._state)
        if self._spec.method is Method.SYNCHRONOUS:
            return step_bound(self._spec.rule, [math.fsum(norms) / len(norms) * ROUNDING], lrs[:1], self._state)
        return step_bound(self._spec.rule, [norm * ROUNDING for norm in norms], lrs, self._state)

    def committed(self, members: Sequence[Expected], commits: Sequence[Commit]) -> None:
        """Note a group that was committed.

        Args:
            members: of the group, in the order of commits.
            commits: of the same.
        """
        if self._state is None:
            return
        lrs = [commit.lr for commit in commits]
        exact = units_above(commits[0].step_norm * ROUNDING)
        steps = self._planned(commits[0].version.number - 1, members, lrs)
        is_one = len(steps) == 1
        self._steps += [replace(steps[0], bound=exact)] if is_one else steps
        history = commits[0].step_norm * ROUNDING if is_one else as_norm(steps[-1].bound) * ROUNDING
        self._state = replace(
            self._state,
            history_norm=history,
            weights_norm=self._state.weights_norm + commits[0].step_norm * ROUNDING,
            steps=self._state.steps + 1,
        )
