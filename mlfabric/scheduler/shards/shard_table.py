"""The parts of a model that is cut, and every push of it that is not settled at all of them. Pure.

Parts plan for themselves; what becomes of a push is the same at all of them. A push that is dropped at one part, by its
plan, its server or its worker, or whose worker is gone before all parts are complete, is *doomed*: the other parts are
brought to drop it too, what is complete at a server there, by the server.

A push that was committed at a part and then *lost*, because all servers went on from older checkpoints, stays committed
for its worker, which may know it already: that is what it is told of the other parts. What of it is complete at a
server is dropped there once the worker knows, so that no other answer can reach it. If the scheduler began anew as
well, nobody knows of it but its worker, which asks for all parts of a push that has no outcome: it is like any other
then. If it has one, what is still at a server is dropped there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlfabric.model.specs import Method, ModelSpec
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Instruction,
    ModelVersion,
    Resolve,
    UpdateId,
    UpdateKind,
)
from mlfabric.protocol.lineage import root_of
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberState
from mlfabric.scheduler.shards.parts import part_of, whole_of
from mlfabric.scheduler.updates.push_table import PushTable
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["OpenPush", "ShardTable"]


@dataclass(slots=True)
class OpenPush:
    """A push with a part that has no outcome.

    Args:
        doomed: why it is dropped everywhere.
        is_heard: its worker knows what became of it, and sends nothing of it any more.
        lost: how it was committed before it was lost.
        told: servers, by part, that were told to drop what they have.
        answered: parts of which the worker was told that they were committed and lost.
        turn: grows with the pushes that became complete at all parts; 0 before this one is.
    """

    kind: UpdateKind
    doomed: Dropped | None = None
    is_heard: bool = False
    lost: Committed | None = None
    told: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    turn: int = 0


class ShardTable:
    """The parts, and the pushes that are open.

    ``torn`` says, in words, why the parts cannot be brought to the same version; "" if they stand alike or will.
    ``tables`` are the updates of each part that is known, in order.
    ``beginning`` is the last server epoch in which a server began its part with nothing: what was computed in earlier
    ones is dropped.
    ``roster`` are the pushes of the present iteration (synchronous).
    """

    def __init__(self, context: Context, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.parts: dict[int, ModelState] = {}
        self.tables: list[Pushes] = []
        self.open: dict[UpdateId, OpenPush] = {}
        self.torn = ""
        self.beginning = 0
        self.roster: set[UpdateId] = set()
        self._context = context
        self._turns = 0
        self._now_ns = 0
        self._orphans: dict[str, int] = {}
        self._initial: set[UpdateId] = set()
        self._leaving: dict[str, int | None] = {}
        self._lost: set[UpdateId] = set()
        self._has_doomed = False
        self._changed: set[UpdateId] | None = None

    def begin_under(self, epoch: int) -> None:
        """Note that a part began in this server epoch with nothing: what was computed before is dropped."""
        if epoch > self.beginning:
            self.beginning, self._changed, self._has_doomed = epoch, None, True

    # What is looked at

    @property
    def spec(self) -> ModelSpec:
        """The spec of any part: everything but name and layout is the same for all."""
        return next(iter(self.parts.values())).pushes.spec

    @property
    def has_all_parts(self) -> bool:
        """Whether every part has a server."""
        return len(self.parts) == self.count

    @property
    def is_known(self) -> bool:
        """Whether every part's server has said what it holds."""
        return self.has_all_parts and True not in [pushes.awaited for pushes in self.tables]

    @property
    def is_settled(self) -> bool:
        """Whether every part is where it was placed and stands as the others do: something can be planned."""
        here = self.is_known and all(map(self._context.is_here, [pushes.server for pushes in self.tables]))
        return here and not self.torn

    @property
    def has_weights(self) -> bool:
        """Whether every part has initial weights."""
        return self.has_all_parts and all(pushes.initialised for pushes in self.tables)

    @property
    def version(self) -> ModelVersion:
        """The version of all parts, while no unit is open; the epoch is that of the server that resumed most often."""
        versions = [pushes.version for pushes in self.tables]
        epoch = max(self.beginning, *(v.epoch for v in versions))
        return ModelVersion(epoch, max(v.number for v in versions))

    @property
    def is_uniform(self) -> bool:
        """Whether all parts have made the same number of steps."""
        return len({pushes.version.number for pushes in self.tables}) == 1

    @property
    def is_of_one_beginning(self) -> bool:
        """Whether no part has made steps before a server of another one began with nothing."""
        last = max(root_of(pushes.began) for pushes in self.tables)
        return all(pushes.version.number == 0 or _goes_on_from(pushes, last) for pushes in self.tables)

    @property
    def is_synchronous(self) -> bool:
        """Whether an iteration makes a version."""
        return self.spec.method is Method.SYNCHRONOUS

    def _parts_of(self, push: UpdateId) -> Iterator[tuple[int, Pushes, UpdateId]]:
        for shard in range(self.count):
            yield shard, self.parts[shard].pushes, part_of(push, shard, self.count)

    def _is_asked(self, push: UpdateId) -> bool:
        """Tell whether every part of a push is known to its table."""
        return all(
            part in pushes.waiting or part in pushes.planned or _is_closed(pushes, part)
            for _, pushes, part in self._parts_of(push)
        )

    def _is_complete(self, push: UpdateId) -> bool:
        """Tell whether every part of a push is with its server, and nothing is about to take one away."""
        return all(_is_received(pushes, part) for _, pushes, part in self._parts_of(push))

    def _committed(self, push: UpdateId) -> Committed | None:
        """Return how a push was committed at a part that is known to have committed it; None if there is none."""
        outcomes = (pushes.settled.get(part) for _, pushes, part in self._parts_of(push))
        return next((outcome for outcome in outcomes if isinstance(outcome, Committed)), None)

    def _is_push_fixed(self, push: UpdateId) -> bool:
        """Tell whether a push is committed at one part at least: it is everywhere, was lost, or the model is torn."""
        return push in self._lost or self._committed(push) is not None

    def _is_over(self, push: UpdateId) -> bool:
        """Tell whether every part of a push has its outcome."""
        return all(_is_closed(pushes, part) and part not in pushes.planned for _, pushes, part in self._parts_of(push))

    def _computed_from(self, push: UpdateId) -> ModelVersion | None:
        """Return the version that a push was computed from; None as long as no worker has said so."""
        for _, pushes, part in self._parts_of(push):
            if (waiting := pushes.waiting.get(part)) is not None:
                return waiting.request.computed_from
            if (planned := pushes.planned.get(part)) is not None and planned.asked:
                return planned.request.computed_from
        return None

    # Pushes come and go

    def note(self, part: UpdateId, kind: UpdateKind) -> None:
        """Note that a part of a push is asked for, or found at a server.

        Of what is found at a server without weights only its worker knows that it is a gradient.
        """
        push = whole_of(part, self.count)
        known = self.open.setdefault(push, OpenPush(kind))
        known.answered.discard(part.counter % self.count)
        self._note_change(push)
        if kind is UpdateKind.GRADIENT:
            known.kind = kind
            self._initial.discard(push)
        elif known.kind is UpdateKind.INITIAL:
            self._initial.add(push)

    def _note_change(self, push: UpdateId) -> None:
        """Have a push looked at, whose parts may be further than when it was looked at last."""
        if self._changed is not None:
            self._changed.add(push)

    def _doom(self, push: UpdateId, refusal: Dropped) -> None:
        """Have a push dropped everywhere, unless it is committed somewhere or was dropped already."""
        if push in self._initial:
            return
        known = self.open.setdefault(push, OpenPush(UpdateKind.GRADIENT))
        if known.kind is UpdateKind.GRADIENT and known.doomed is None and not self._is_push_fixed(push):
            known.doomed = refusal
            self.roster.discard(push)
            self._has_doomed = True
            self._note_change(push)

    def is_fixed(self, part: UpdateId) -> bool:
        """Tell whether the push of this part is committed at a part at least: it is everywhere, or was lost."""
        return self._is_push_fixed(whole_of(part, self.count))

    def lost(self, part: UpdateId) -> Committed | None:
        """Return how the push of this part was committed if it was lost since; else None."""
        push = whole_of(part, self.count)
        return self.open[push].lost if push in self._lost else None

    def _lose(self, push: UpdateId, outcome: Committed) -> None:
        """Count an open push as committed before, and lost."""
        known = self.open[push]
        known.lost, known.doomed, known.turn = outcome, None, 0
        self._lost.add(push)
        self.roster.discard(push)
        self._has_doomed = True
        self._note_change(push)
        for _, pushes, part in self._parts_of(push):
            pushes.clocks.settle(part)

    def _take_refusals(self) -> None:
        """Doom what was dropped at a part since the last time."""
        for _, model in sorted(self.parts.items()):
            fresh, model.pushes.refused = model.pushes.refused, []
            for part, refusal in fresh:
                self._doom(whole_of(part, self.count), refusal)

    def _sweep(self) -> Iterator[Instruction]:
        """Look at every push that may be further: who is doomed, complete, over."""
        changed, self._changed = self._changed, set()
        for push in list(self.open) if changed is None else sorted(changed & self.open.keys()):
            known = self.open[push]
            if known.kind is UpdateKind.INITIAL:
                self._sweep_initial(push)
                continue
            complete = self._is_complete(push)
            if known.doomed is None and not complete and self._is_gone(push):
                self._doom(push, Dropped(cause=DropReason.WORKER_GONE, detail=f"{push.worker} is gone"))
            elif (computed_from := self._computed_from(push)) is not None and computed_from.epoch < self.beginning:
                self._doom(push, self._rolled_back(computed_from))
            elif known.is_heard and not complete:
                self._doom(push, Dropped(cause=DropReason.ROLLED_BACK, detail=f"{push.worker} knows that it is over"))
            if (outcome := known.doomed or known.lost) is not None:
                yield from self._let_end(push, known, outcome)
            if self._is_over(push):
                self._forget(push)
            elif not complete or known.lost is not None:
                known.turn = 0
            elif not known.turn:
                self._turns += 1
                known.turn = self._turns

    def _rolled_back(self, version: ModelVersion) -> Dropped:
        """Return what becomes of what was computed from a version that was lost."""
        detail = f"version {version.number} was lost; {self.name} is at version {self.version.number}"
        return Dropped(cause=DropReason.ROLLED_BACK, detail=detail)

    def _sweep_initial(self, push: UpdateId) -> None:
        """Forget initial weights that are nowhere on their way; each part is installed by itself."""
        if not any(part in pushes.waiting or part in pushes.planned for _, pushes, part in self._parts_of(push)):
            del self.open[push]

    def _let_end(self, push: UpdateId, known: OpenPush, outcome: Dropped | Committed) -> Iterator[Instruction]:
        """Bring about that every part of a push that is doomed, or was lost, ends so."""
        is_gone = isinstance(outcome, Committed) and self._is_gone(push)
        for shard, pushes, part in self._parts_of(push):
            if _is_closed(pushes, part) and part not in pushes.planned:
                continue
            is_there, is_heard = _is_received(pushes, part), True
            if isinstance(outcome, Committed):
                if shard not in known.answered and self._context.is_live(push.worker, push.incarnation):
                    known.answered.add(shard)
                    reason = "it was committed, and lost since"
                    yield Resolve(to=push.worker, update=part, outcome=outcome, reason=reason)
                is_heard = is_gone or known.is_heard or pushes.settled.is_over(part)
            if is_there and (shard in known.told or not is_heard):
                continue
            if is_there:
                known.told.add(shard)
            yield from pushes.let_end(part, outcome)

    def _forget(self, push: UpdateId) -> None:
        del self.open[push]
        self._lost.discard(push)
        self.roster.discard(push)
        if not any(other.worker == push.worker for other in self.open):
            self._orphans.pop(push.worker, None)
            if push.worker in self._leaving:
                self._forget_outcomes(push.worker)

    def _forget_outcomes(self, worker: str) -> None:
        """Forget what a worker that is gone will not ask for, once all its pushes have an outcome at all parts."""
        if any(push.worker == worker for push in self.open):
            return
        left, record = self._leaving.pop(worker), self._context.members.get(worker)
        present = None if record is None or record.member.incarnation == left else record.member.incarnation
        for pushes in self.tables:
            pushes.settled.forget_worker(worker, keeps=present)

    def _is_gone(self, push: UpdateId) -> bool:
        """Tell whether the worker of a push will not send it any more; one that is not known has time to come back."""
        record = self._context.members.get(push.worker)
        if record is None:
            silence_ns = self._context.config.silence_ns
            return self._now_ns >= self._orphans.setdefault(push.worker, self._now_ns + silence_ns)
        return record.state is MemberState.LEFT or record.member.incarnation != push.incarnation

    def worker_holds(self, worker: str, held: set[UpdateId]) -> None:
        """Forget pushes that a worker which came back does not hold, where nothing is on its way: it knows the end."""
        for push, known in [(p, k) for p, k in self.open.items() if p.worker == worker]:
            parts = list(self._parts_of(push))
            known.is_heard = not any(part in held for _, _, part in parts)
            on_way = any(part in pushes.planned or part in pushes.waiting for _, pushes, part in parts)
            if known.is_heard and not on_way:
                self._forget(push)

    def validate_pushes(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not self.has_all_parts:
            return
        first, *others = self.tables
        for part, outcome in first.settled.items():
            push = whole_of(part, self.count)
            for shard, pushes in enumerate(others, 1):
                other = pushes.settled.get(part_of(push, shard, self.count))
                if other is None or push in self._initial:
                    continue
                same = type(outcome) is type(other)
                assert same, f"{self.name}: {push} is {outcome} at part 0, {other} at part {shard}"
                if isinstance(outcome, Committed) and isinstance(other, Committed):
                    made = (outcome.version.number, other.version.number)
                    assert made[0] == made[1], f"{self.name}: {push} made versions {made}"


def _goes_on_from(pushes: PushTable, beginning: int) -> bool:
    """Tell whether all steps of a part were made since a server of the model began with nothing."""
    return any(began.epoch >= beginning and began.number == 0 for began in pushes.began)


def _is_closed(pushes: PushTable, part: UpdateId) -> bool:
    return part in pushes.settled or pushes.settled.is_over(part)


def _is_received(pushes: PushTable, part: UpdateId) -> bool:
    planned = pushes.planned.get(part)
    return planned is not None and planned.received and not planned.voided
