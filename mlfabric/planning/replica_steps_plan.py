"""What is sent to the replica of a batch's commits, and which commits wait for it (paper, section 5.3, mended).

The sequence is the updates that the replica lacks already (*pending*: committed, their workers keep the bytes), then
the plan's commits in order. The replica holds a prefix of it; the rest up to the last commit is the lead.

1. Nothing is sent if there is no bound, or if the lead stays within ``replicate_from`` of the bound without it.
2. Else everything is planned tentatively, each update directly, over what the primary's plan leaves free: first each
   worker's fold of its pending updates, as one item, then the batch. An update is a *step*; all pending ones are one.
   It counts as held when it and all steps before it have arrived and its last member is committed: the replica cannot
   use half of a fold.
3. Steps that are there by the last commit are kept. A commit at which the bound would not hold waits for the first
   further step that makes it hold; all steps up to that one are kept. If no step makes it hold, it and all after it are
   deferred.
4. Updates that are not kept are punted: they are pending for the next plan. Deferred updates count as punted too.

Decided here: a worker is known by its name, and its fold is sent from the host of its latest update. The first item
that cannot be sent ends the lot. A bound of 0 allows no lead, not even of updates with norm 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mlfabric.model.divergence import Lead, Limit, RuleState, as_norm, step_bound, units_above
from mlfabric.model.update_rules import RuleSpec
from mlfabric.planning.direct import forward_directly
from mlfabric.planning.fluid.capacity_lists import Ints, Lines
from mlfabric.planning.fluid.world import World
from mlfabric.planning.folded_leads import Folded, fold
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import Deferred, Punt, ReplicaStep, Toward, Transfer
from mlfabric.planning.problem import PlannerConfig, Replica
from mlfabric.planning.profiles import Lot
from mlfabric.planning.replica_gate import Gated, Steps, gate
from mlfabric.planning.way_of_sums import Forwarding
from mlfabric.protocol import UpdateId

__all__ = ["Replication", "replicate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What the replica gets, and when the primary may commit.

    Args:
        commit_ns: by place in the lot, as many as are committed; the rest is deferred.
        waits_for: by place in the lot, as many: the step that the commit waits for; -1 if it is made as soon as it and
            all before it have arrived.
        transfers: of the kept steps; the index of the first is the ``first_transfer`` that was asked for.
    """

    commit_ns: Sequence[int]
    waits_for: Sequence[int]
    steps: Sequence[ReplicaStep]
    transfers: Sequence[Transfer]
    punts: Sequence[Punt]
    deferred: Sequence[Deferred]


def replicate(
    lot: Lot,
    norms: Sequence[float],
    arrive_ns: Ints,
    replica: Replica | None,
    config: PlannerConfig,
    world: World,
    lines: Callable[[], Lines],
    *,
    now_ns: int,
    first_transfer: int = 0,
) -> Replication:
    """Plan what the replica gets, and gate the commits by the divergence bound.

    Args:
        lot: what is to be committed, in that order; ``ready_ns`` is when its worker has it.
        norms: l2 norm of each.
        arrive_ns: when each has arrived at the primary.
        world: has the routes from all sources, those of pending updates too, to the replica.
        lines: returns what the transfers to the primary leave free.
        first_transfer: how many transfers come before the replica's in the plan.
    """
    commit_ns: list[int] = np.maximum.accumulate(np.maximum(arrive_ns, now_ns)).tolist()
    if replica is None:
        return _nothing_sent(commit_ns, (), str)
    sequence = [*(p.update for p in replica.pending), *lot.updates]
    if config.div_max is None:
        return _nothing_sent(commit_ns, sequence, lambda: "no bound asks for it")
    limit = Limit.of(config.div_max.norm, config.div_max.updates)
    state = RuleState(history_norm=replica.history_norm)
    planned = step_bound(_rule(config.gamma), norms, [1.0] * len(norms), state)
    lead = Lead([*(units_above(p.step_norm) for p in replica.pending), *planned])
    small = limit.part(config.replicate_from)
    if not lot.updates or small.allows(lead, 0, len(sequence)):
        return _nothing_sent(commit_ns, sequence, lambda: f"the lead stays at {_amount(lead, limit, 0, len(sequence))}")
    folded = fold(replica.pending, lot, world, gamma=config.gamma, now_ns=now_ns)
    forwarding = forward_directly(folded.lot, world, lines(), replica.host, now_ns=now_ns, toward=Toward.REPLICA)
    steps = Steps.of(forwarding.arrive_ns.tolist(), len(folded.folds), len(replica.pending))
    gated = gate(lead, limit, steps, commit_ns, len(replica.pending))
    found = _Found(sequence, lead, limit, folded, forwarding, steps, gated, first_transfer, now_ns)
    return found.replication()


@cache
def _rule(gamma: float) -> RuleSpec:
    return RuleSpec(momentum=gamma)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result; its values are made when they are read."""

    sequence: Sequence[UpdateId]
    lead: Lead
    limit: Limit
    folded: Folded
    forwarding: Forwarding
    steps: Steps
    gated: Gated
    first_transfer: int
    now_ns: int

    def replication(self) -> Replication:
        kept, commits = self.gated.kept, len(self.gated.commit_ns)
        held, transfers = (self.steps.end[kept - 1], self.steps.transfers[kept - 1]) if kept else (0, 0)
        begun = self.behind + commits
        return Replication(
            commit_ns=self.gated.commit_ns,
            waits_for=self.gated.waits_for,
            steps=Lazy(kept, self.step),
            transfers=Lazy(transfers, self.transfer),
            punts=Lazy(len(self.sequence) - held, lambda i: self.punt(held + i)),
            deferred=Lazy(len(self.sequence) - begun, lambda i: self.deferral(begun + i)),
        )

    @property
    def behind(self) -> int:
        """How many of the sequence were committed before."""
        return sum(map(len, self.folded.folds.values()))

    def step(self, number: int) -> ReplicaStep:
        steps = self.steps
        first, begin = (steps.end[number - 1], steps.transfers[number - 1]) if number else (0, 0)
        return ReplicaStep(
            members=tuple(self.sequence[first : steps.end[number]]),
            arrive_ns=steps.arrive_ns[number],
            transfers=tuple(range(self.first_transfer + begin, self.first_transfer + steps.transfers[number])),
        )

    def transfer(self, i: int) -> Transfer:
        """Name all updates of what was folded."""
        transfer = self.forwarding.transfers[i]
        return replace(transfer, members=tuple(self.folded.members(transfer.members)))

    def punt(self, place: int) -> Punt:
        return Punt(update=self.sequence[place], reason=self._why_punted(place))

    def _why_punted(self, place: int) -> str:
        if place >= self.behind + len(self.gated.commit_ns):
            return "this plan does not commit it"
        number = bisect_right(self.steps.end, place)
        if number == len(self.steps.end):
            return "it, or an update before it, cannot be sent to the replica"
        late = f"the replica would have it after {_ms(self.steps.there_ns[number] - self.now_ns)} ms"
        if not self.gated.commit_ns:
            return f"{late}, and this plan commits nothing"
        return (
            f"{late}, the last commit is after {_ms(self.gated.commit_ns[-1] - self.now_ns)} ms and needs it no sooner"
        )

    def deferral(self, place: int) -> Deferred:
        begun = self.behind + len(self.gated.commit_ns)
        first = self.sequence[begun]
        held = min(self.steps.end[-1], begun) if self.steps.end else 0
        reason = (
            f"the commit of {first.worker}'s update {first.counter} would bring the lead to "
            f"{_amount(self.lead, self.limit, held, begun + 1)}, and no transfer to the replica can prevent that"
        )
        return Deferred(what=self.sequence[place], reason=reason)


def _nothing_sent(commit_ns: Sequence[int], sequence: Sequence[UpdateId], reason: Callable[[], str]) -> Replication:
    """Commit updates as they arrive, and punt everything for one reason."""
    return Replication(
        commit_ns=commit_ns,
        waits_for=[-1] * len(commit_ns),
        steps=(),
        transfers=(),
        punts=Lazy(len(sequence), lambda i: Punt(update=sequence[i], reason=reason())),
        deferred=(),
    )


def _amount(lead: Lead, limit: Limit, held: int, committed: int) -> str:
    """Say in figures how large a lead is, and how large it may be."""
    amounts = []
    if limit.norm is not None:
        amounts.append(f"{as_norm(lead.bound(held, committed)):.4g} of {as_norm(limit.norm):.4g}")
    if limit.commits is not None or not amounts:
        allowed = "any number of" if limit.commits is None else limit.commits
        amounts.append(f"{committed - held} of {allowed} updates")
    return " and ".join(amounts)


def _ms(span_ns: int) -> str:
    return f"{span_ns / 1e6:.1f}"
