"""The witness of replication: how far each primary really is from what its replica can recover (paper, section 5.3).

The promise: once a primary was told that a replica follows, and is within the bound, it is within it at every moment
until it is told that nobody follows any more, or the replica's process is gone. What a replica can recover is its own
model and, of the primary's log, the longest prefix of whose updates it has the bytes; it is found anew here from what
is really in the buffers. Distances are those of ``motion``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import Followed, UpdateId
from mlfabric.server.actions import ApplyStep, StepKind
from mlfabric.simulator.motion import Motion, moved

if TYPE_CHECKING:
    from mlfabric.simulator.replica import SimulatedReplica

__all__ = ["Before", "Leads"]

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class _Entry:
    """A version of the log; ``ends_group``: what was committed together with it ends here."""

    members: frozenset[UpdateId]
    ends_group: bool


@dataclass(slots=True)
class _Track:
    """One model: where each of its versions is, what led there, what its replica has, who was promised what.

    Args:
        motions: by version, from 0.
        log: by version, from 1.
        version, holdings: of the replica's process.
        seeded: version of the last seed since nobody followed, None without one.
        is_stepping: a step is being made, which may have begun before anything was promised.
    """

    rule: RuleSpec
    motions: list[Motion]
    log: list[_Entry] = field(default_factory=list)
    process: SimulatedReplica | None = None
    version: int = 0
    holdings: tuple[frozenset[UpdateId], ...] = ()
    seeded: int | None = None
    order: Followed | None = None
    is_promised: bool = False
    is_stepping: bool = False


class Before(NamedTuple):
    """How far a primary was allowed to be ahead when its replica took its place, None if not, and where both were."""

    model: str
    order: Followed | None
    weights: complex
    version: int


class Leads:
    """What is known of all models; ``longest`` is how many updates a primary was ahead at most, by model."""

    def __init__(self) -> None:
        self.longest: dict[str, int] = defaultdict(int)
        self.promises = 0
        self._tracks: dict[str, _Track] = {}

    # At the primary

    def installs(self, model: str, rule: RuleSpec, weights: complex) -> None:
        """Note with which weights a model begins."""
        self._tracks[model] = _Track(rule, [Motion(weights)])

    def begins(self, model: str) -> None:
        """Note that a step begins."""
        self._tracks[model].is_stepping = True

    def ends(self, model: str) -> None:
        """Note that a step was refused or, after it was noted, made; a replica may follow since it began."""
        self._tracks[model].is_stepping = False
        self._check(model, "when a step ended")

    def commits(self, action: ApplyStep, members: Sequence[UpdateId], vectors: Sequence[complex]) -> None:
        """Note a group that was applied together, ``vectors`` being its gradients; check that it was allowed."""
        track = self._tracks[action.model]
        if action.kind is StepKind.MEAN or track.rule.kind is RuleKind.ADAM:
            together = moved(track.rule, track.motions[-1], sum(vectors) / len(vectors), action.lrs[0])
            versions = 1 if action.kind is StepKind.MEAN else len(members)
            track.motions += [together] * versions
        else:
            for vector, lr in zip(vectors, action.lrs, strict=True):
                track.motions.append(moved(track.rule, track.motions[-1], vector, lr))
        if action.kind is StepKind.MEAN:
            track.log.append(_Entry(frozenset(members), True))
        else:
            track.log += [_Entry(frozenset((m,)), place == len(members)) for place, m in enumerate(members, 1)]
        self._check(action.model, f"after {members} made version {action.version.number}")

    def resumes(self, model: str, number: int) -> None:
        """Note that a model goes on from an older version, and that nobody follows it."""
        track = self._tracks[model]
        del track.motions[number + 1 :], track.log[number:]
        track.is_stepping = False
        self.unfollowed(model)

    def forgets(self, model: str) -> None:
        """Note that a model begins anew."""
        self._tracks.pop(model, None)

    def step_norm(self, model: str, first: int) -> float:
        """Return how far the last step went, which led from version ``first`` on."""
        motions = self._tracks[model].motions
        return abs(motions[-1].weights - motions[first].weights)

    def seed_taken(self, model: str) -> Motion:
        """Note that the present version is copied for a replica; return where it is."""
        track = self._tracks[model]
        track.seeded = len(track.motions) - 1
        return track.motions[-1]

    def followed(self, order: Followed) -> None:
        """Note that a primary was told how far it may be ahead of a replica."""
        track = self._tracks.get(order.model)
        if track is not None and track.seeded is not None and order.version.number >= track.seeded:
            track.order = order
            self._check(order.model, "when the primary was told of its replica")

    def unfollowed(self, model: str) -> None:
        """Note that a primary was told that it has no replica."""
        track = self._tracks.get(model)
        if track is not None:
            track.order, track.seeded, track.is_promised = None, None, False

    # At the replica

    def holds(
        self, model: str, process: SimulatedReplica, version: int, holdings: tuple[frozenset[UpdateId], ...]
    ) -> None:
        """Note what a replica has: its version, and the updates in each transfer whose bytes are here."""
        track = self._tracks.get(model)
        if track is None or (track.process is process and (track.version, track.holdings) == (version, holdings)):
            return
        if track.process is not process:
            track.order, track.is_promised = None, False
        track.process, track.version, track.holdings = process, version, holdings
        self._check(model, f"when {process.name} held {list(map(sorted, holdings))} beyond version {version}")

    def promoted(self, model: str, version: int) -> Before:
        """Note that a replica goes on from this version as the server, and nobody follows it; return what was before.

        What is lost is within the bound, if any was in force, also what the former server commits from now on.
        """
        track = self._tracks[model]
        motions, log = track.motions[: version + 1], track.log[:version]
        self._tracks[model] = _Track(track.rule, motions, log)
        return Before(model, track.order if track.is_promised else None, track.motions[-1].weights, version)

    def check_lost(self, before: Before, updates: int) -> None:
        """Check that so many updates, and so much way, may have been lost to a promotion.

        What a replica makes good out of turn, as it lacks what came before, may lead it away again.
        """
        if before.order is None:
            return
        reached = self._tracks[before.model].motions[before.version :]
        distance = min(abs(before.weights - motion.weights) for motion in reached) if updates else 0.0
        assert _is_within(before.order, updates, distance), (
            f"{before.model} goes on {updates} updates and {distance:.6g} behind what was committed; "
            f"the bound is {before.order.updates} updates and {before.order.norm:.6g}"
        )

    def of_deposed(self) -> Leads:
        """Return what is known, for servers that go on though others have taken their places."""
        leads = Leads()
        for model, track in self._tracks.items():
            leads._tracks[model] = _Track(track.rule, list(track.motions), list(track.log))
        return leads

    # What must hold

    def recoverable(self, model: str) -> int:
        """Return the version that a model's replica can recover."""
        track = self._tracks[model]
        best, inside = track.version, set[UpdateId]()
        held = frozenset[UpdateId]().union(*track.holdings)
        for version, entry in enumerate(track.log[track.version :], track.version + 1):
            if not entry.members <= held:
                break
            inside |= entry.members
            whole = all(inside.isdisjoint(holding) or inside >= holding for holding in track.holdings)
            if whole and (entry.ends_group or track.rule.kind is not RuleKind.ADAM):
                best = version
        return best

    def lead(self, model: str) -> tuple[int, float]:
        """Return by how many updates and how far a primary is ahead of what its replica can recover."""
        track, version = self._tracks[model], self.recoverable(model)
        updates = sum(len(entry.members) for entry in track.log[version:])
        return updates, abs(track.motions[-1].weights - track.motions[version].weights)

    def is_promised(self, model: str) -> bool:
        """Tell whether a primary is within the bound of a replica that is alive, and is to stay there."""
        track = self._tracks.get(model)
        return track is not None and track.is_promised and track.process is not None and track.process.is_alive

    def _check(self, model: str, when: str) -> None:
        track = self._tracks[model]
        order, process = track.order, track.process
        if order is None or process is None or not process.is_alive or process.name != order.replica:
            return
        updates, distance = self.lead(model)
        is_within = _is_within(order, updates, distance)
        assert is_within or not track.is_promised, (
            f"{model} is {updates} updates and {distance:.6g} ahead of what {process.name} can recover {when}; "
            f"the bound is {order.updates} updates and {order.norm:.6g}"
        )
        if is_within and not track.is_promised and not track.is_stepping:
            track.is_promised, self.promises = True, self.promises + 1
        if track.is_promised:
            self.longest[model] = max(self.longest[model], updates)


def _is_within(order: Followed, updates: int, distance: float) -> bool:
    most = 0 if order.norm == 0 else updates if order.updates is None else order.updates
    return updates <= most and distance <= order.norm * (1 + ROUNDING) + ROUNDING * (order.norm > 0)
