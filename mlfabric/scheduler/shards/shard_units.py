"""What commits together at all parts of a model: units, one after the other. Pure.

A unit is one push, or one iteration of a synchronous job. Once all of it is with the servers they *prepare* it; when
all have, it is *decided*, and they conclude it. One refusal gives it up, everywhere, before anything is committed. It
is over when every server has reported its commit; the next one begins only then, so that parts are never further apart
than one version, and only while a unit is open.

A decided unit that a server has not committed, because the server or a scheduler was away, is prepared and concluded at
that server alone: *rolled forward*. A new scheduler learns of such a unit from the versions that the servers hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from mlfabric.protocol import (
    CommitsReported,
    Committed,
    Conclude,
    Dropped,
    DropReason,
    Instruction,
    ModelVersion,
    Prepare,
    Prepared,
    ServerHolds,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.context import SEQ_BITS, Context
from mlfabric.scheduler.shards.parts import part_of, whole_of
from mlfabric.scheduler.shards.shard_table import ShardTable

__all__ = ["RETRY_NS", "ShardUnits", "Stage", "Unit"]

RETRY_NS = 100_000_000


class Stage(Enum):
    """How far one part is with a unit."""

    NEW = "its server was not told yet"
    PREPARING = "its server prepares it"
    PREPARED = "its server has prepared it"
    CONCLUDED = "its server was told to commit"
    COMMITTED = "its server has committed"

    @property
    def is_open(self) -> bool:
        """Whether something is awaited of the part's server."""
        return self in (Stage.PREPARING, Stage.CONCLUDED, Stage.NEW)


@dataclass(slots=True)
class Unit:
    """What commits together.

    Args:
        number: greater for later ones.
        version: that it makes.
        pushes: in the order in which they are applied.
        stages: of each part.
        is_decided: it is committed at one part at least, or will be.
        is_lost: a server that was to commit it came back neither with it nor with what it is made of.
    """

    number: int
    version: ModelVersion
    pushes: tuple[UpdateId, ...]
    stages: list[Stage]
    is_decided: bool = False
    is_lost: bool = False


class ShardUnits(ShardTable):
    """The parts of a model and the unit that is open."""

    def __init__(self, context: Context, name: str, count: int) -> None:
        super().__init__(context, name, count)
        self.unit: Unit | None = None
        self._units = context.config.term.number << SEQ_BITS
        self._retry_ns: int | None = None
        self._made: dict[int, dict[int, dict[UpdateId, int]]] = {}

    @property
    def is_between_units(self) -> bool:
        """Whether none is open and all parts stand alike, with weights: the next one may begin, and gets be served."""
        return self.unit is None and self.is_settled and self.has_weights and self.is_uniform

    # What the parts' plans ask

    def may_plan(self, part: UpdateId, kind: UpdateKind) -> bool:
        """Tell whether a part of a push that waits may be planned now."""
        push = whole_of(part, self.count)
        known = self.open.get(push)
        if known is None or known.doomed is not None or known.lost is not None:
            return False
        if kind is UpdateKind.INITIAL or self.is_owed(part):
            return True
        if self.is_synchronous:
            return push in self.roster
        return self.has_weights and self._is_asked(push)

    def is_owed(self, part: UpdateId) -> bool:
        """Tell whether other parts of this push are committed: nothing may come in the way of this one."""
        unit, push = self.unit, whole_of(part, self.count)
        stage = Stage.NEW if unit is None else unit.stages[part.counter % self.count]
        return unit is not None and unit.is_decided and push in unit.pushes and stage is Stage.NEW

    def _is_push_fixed(self, push: UpdateId) -> bool:
        unit = self.unit
        return (unit is not None and unit.is_decided and push in unit.pushes) or super()._is_push_fixed(push)

    # What happens

    def prepared(self, event: Prepared, shard: int, now_ns: int) -> Iterator[Instruction]:
        """Note how a server's first pass went; what it says of an earlier unit is past."""
        unit = self.unit
        if unit is None or unit.number != event.unit or unit.stages[shard] is not Stage.PREPARING:
            return
        if event.accepted:
            unit.stages[shard] = Stage.PREPARED
            return
        unit.stages[shard] = Stage.NEW
        if not event.culprits or unit.is_decided:
            self._retry_ns = now_ns + RETRY_NS
        if unit.is_decided:
            return
        yield from self._give_up(f"{event.server} refused it: {event.detail}")
        for culprit in event.culprits:
            refusal = Dropped(cause=event.cause or DropReason.NOT_FINITE, detail=event.detail)
            self._doom(whole_of(culprit, self.count), refusal)

    def committed(self, event: CommitsReported, shard: int) -> None:
        """Note what made which version at a part, for whoever has to make it, too."""
        made = self._made.setdefault(shard, {})
        for commit in event.commits:
            made.setdefault(commit.version.number, {})[whole_of(commit.update, self.count)] = commit.tau
        for number in sorted(made)[:-2]:
            del made[number]

    def _note_holds(self, holds: ServerHolds, shard: int) -> Iterator[Instruction]:
        """Take over what a server that (re)joined says of one part."""
        made: dict[int, dict[UpdateId, int]] = {}
        for ids in holds.applied:
            for counter, version, tau in ids.recent:
                push = whole_of(UpdateId(ids.worker, ids.incarnation, counter), self.count)
                made.setdefault(version.number, {})[push] = tau
        self._made[shard] = made
        unit = self.unit
        if unit is None:
            return
        is_made = unit.is_decided and holds.version.number >= unit.version.number
        ended, was = {Stage.CONCLUDED, Stage.COMMITTED}, unit.stages[shard]
        unit.stages[shard] = Stage.COMMITTED if is_made else Stage.NEW
        unit.is_lost |= was in ended and not is_made and self._transfers(shard, unit.pushes) is None
        if not unit.is_decided or not ended & set(unit.stages):
            yield from self._give_up(f"{holds.server} came back")
            if was in (Stage.PREPARING, Stage.PREPARED):  # it knows nothing of it, unless it says twice what it holds
                yield self._conclude(shard, unit, False, f"{holds.server} came back")
            for push in unit.pushes if unit.is_lost else ():
                if push in self.open:
                    self._lose(push, self._as_made(push, unit))

    def _as_made(self, push: UpdateId, unit: Unit) -> Committed:
        """Return what servers said, or will have said, of a push that was committed in a unit."""
        computed_from = self._computed_from(push)
        tau = 0 if computed_from is None else unit.version.number - 1 - computed_from.number
        return self._committed(push) or Committed(version=unit.version, tau=tau)

    def _give_up(self, reason: str) -> Iterator[Instruction]:
        """Have nobody commit the open unit; what it is made of stays."""
        unit, self.unit = self.unit, None
        assert unit is not None, "there is a unit to give up"
        for shard, stage in enumerate(unit.stages):
            if stage in (Stage.PREPARING, Stage.PREPARED):
                yield self._conclude(shard, unit, False, reason)

    def _conclude(self, shard: int, unit: Unit, commit: bool, reason: str) -> Conclude:
        pushes = self.parts[shard].pushes
        return Conclude(to=pushes.server, model=pushes.spec.name, unit=unit.number, commit=commit, reason=reason)

    # What follows

    def _advance_unit(self) -> Iterator[Instruction]:
        """Go on with the open unit as far as it goes."""
        unit = self.unit
        if unit is None:
            return
        if not unit.is_decided and (doomed := [p for p in unit.pushes if self._is_doomed(p)]):
            yield from self._give_up(f"{doomed[0]} is dropped")
            return
        for shard, stage in enumerate(unit.stages):
            pushes = self.parts[shard].pushes
            if stage is not Stage.COMMITTED and unit.is_decided and pushes.version.number >= unit.version.number:
                unit.stages[shard] = Stage.COMMITTED
            elif stage is Stage.NEW:
                yield from self._prepare(shard, unit)
        if all(stage in (Stage.PREPARED, Stage.CONCLUDED, Stage.COMMITTED) for stage in unit.stages):
            unit.is_decided = True
        for shard, stage in enumerate(unit.stages):
            if unit.is_decided and stage is Stage.PREPARED:
                unit.stages[shard] = Stage.CONCLUDED
                yield self._conclude(shard, unit, True, "every part has prepared it")
        if all(stage is Stage.COMMITTED for stage in unit.stages):
            self._end_unit()

    def _end_unit(self) -> None:
        self.unit = None
        self.roster.clear()
        self._level_epochs()

    def _level_epochs(self) -> None:
        """Count all parts as of the epoch of the server that resumed most often; servers are told with what follows."""
        version = self.version
        for pushes in self.tables:
            pushes.count_under(version)

    def _is_doomed(self, push: UpdateId) -> bool:
        known = self.open.get(push)
        return known is None or known.doomed is not None

    def _prepare(self, shard: int, unit: Unit) -> Iterator[Instruction]:
        """Have one server make its first pass, if it has everything."""
        pushes = self.parts[shard].pushes
        if self._retry_ns is not None or pushes.awaited or not self._context.is_here(pushes.server):
            return
        if pushes.version.number != unit.version.number - 1:
            return
        transfers = self._transfers(shard, unit.pushes)
        if transfers is None:
            return
        unit.stages[shard] = Stage.PREPARING
        epoch = max(unit.version.epoch, pushes.version.epoch)  # a server that has resumed makes it under its own
        for push in unit.pushes if unit.is_decided else ():
            yield from pushes.expect_again(part_of(push, shard, self.count), "other parts are committed")
        yield Prepare(
            to=pushes.server,
            model=pushes.spec.name,
            unit=unit.number,
            transfers=transfers,
            version=unit.version._replace(epoch=epoch),
            reason=f"all parts of {', '.join(map(str, unit.pushes))} are here",
        )

    def _transfers(self, shard: int, pushes: Iterable[UpdateId]) -> tuple[TransferId, ...] | None:
        """Return what has exactly these pushes in it at one server; None if not all of it is there."""
        table = self.parts[shard].pushes
        parts = [part_of(push, shard, self.count) for push in pushes]
        found: dict[TransferId, None] = {}
        for part in parts:
            planned = table.planned.get(part)
            if planned is None or not planned.received or planned.voided:
                return None
            if planned.sum is not None and not set(table.sums.whole(planned.sum).members) <= set(parts):
                return None
            found[planned.transfer] = None
        return tuple(found)

    def _begin_unit(self) -> Iterator[Instruction]:
        """Begin the next unit, if all parts have one, and all workers have joined that the first one waits for."""
        if self._retry_ns is not None or not self.is_between_units or self.tables[0].missing:
            return
        pushes = self._next_iteration() if self.is_synchronous else self._next_push()
        if not pushes or any(self._transfers(shard, pushes) is None for shard in range(self.count)):
            return
        epoch, number = self.version
        self._open_unit(pushes, ModelVersion(epoch, number + 1), [Stage.NEW] * self.count)
        yield from self._advance_unit()

    def _open_unit(self, pushes: tuple[UpdateId, ...], version: ModelVersion, stages: list[Stage]) -> None:
        self._units += 1
        self.unit = Unit(self._units, version, pushes, stages, is_decided=Stage.COMMITTED in stages)

    def _next_push(self) -> tuple[UpdateId, ...]:
        """Choose whose turn it is: who cannot wait any longer, then who was complete first; doom who is too late."""
        bound, number = self.tables[0].tau_max, self.version.number
        ready: list[tuple[bool, int, UpdateId]] = []
        for push, known in self.open.items():
            if known.kind is not UpdateKind.GRADIENT or not known.turn or known.doomed is not None:
                continue
            computed_from = self._computed_from(push)
            tau = 0 if computed_from is None else number - computed_from.number
            if tau > bound:
                detail = f"its delay would be {tau} at version {number}; {bound} is allowed"
                self._doom(push, Dropped(cause=DropReason.DELAY_BOUND, detail=detail))
            else:
                ready.append((tau < bound, known.turn, push))
        return (min(ready)[2],) if ready else ()

    def _next_iteration(self) -> tuple[UpdateId, ...]:
        """Return the pushes of the present iteration once all of them are complete."""
        whole = all((known := self.open.get(push)) is not None and known.turn for push in self.roster)
        return tuple(sorted(self.roster)) if whole else ()

    # Iterations

    def _choose_roster(self) -> None:
        """Fix which pushes make the next iteration once every worker has one (synchronous)."""
        if not self.is_synchronous or self.roster or not self.is_between_units or self.tables[0].missing:
            return
        first, clocks = self.tables[0], self.tables[0].clocks
        chosen: dict[str, UpdateId] = {}
        for push in sorted(self.open):
            if self._may_take_part(push, first.version.number):
                chosen.setdefault(push.worker, push)
        if chosen and all(worker in chosen for worker in clocks):
            self.roster = set(chosen.values())

    def _may_take_part(self, push: UpdateId, number: int) -> bool:
        """Tell whether a push can be in the iteration that is made from this version; doom what never can."""
        known = self.open[push]
        if known.kind is not UpdateKind.GRADIENT or known.doomed is not None or known.lost is not None:
            return False
        computed_from = self._computed_from(push)
        if computed_from is None:
            return bool(known.turn) and push.worker not in self.tables[0].clocks
        if computed_from.number < number and known.turn:
            detail = f"computed from version {computed_from.number}; {self.name} is at version {number}"
            self._doom(push, Dropped(cause=DropReason.DEADLINE_PAST, detail=detail))
        elif computed_from.number > number and computed_from.epoch < self.version.epoch and known.turn:
            self._doom(push, self._rolled_back(computed_from))
        return computed_from.number == number and self._is_asked(push)

    def validate_units(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not self.is_known or self.torn:
            return
        numbers = [pushes.version.number for pushes in self.tables]
        unit = self.unit
        assert unit is not None or min(numbers) == max(numbers), f"{self.name}: versions {numbers}, and no open unit"
        if unit is not None:
            newest = unit.version.number if unit.is_decided else unit.version.number - 1
            assert all(newest - 1 <= number <= newest for number in numbers), f"{self.name}: {numbers} in {unit}"
