"""A model that is cut into parts, each on a server of its own (paper, 10.2; design, section 5). Pure.

Each part is a model of its own that plans for itself. Above them stands this: what commits, in which order, what is
dropped and what a get reads is the same at all parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    CommitsReported,
    Dropped,
    DropReason,
    GetId,
    GetRequested,
    Instruction,
    LinksReported,
    MemberEvent,
    MemoryReported,
    Prepared,
    PushRequested,
    ServerHolds,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.protocol.lineage import root_of
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.shards.parts import whole_of
from mlfabric.scheduler.shards.shard_gets import ShardGets

__all__ = ["ShardedModel"]


class ShardedModel(ShardGets):
    """The parts of one model.

    Args:
        context: shared by the scheduler's parts.
        name: of the whole model.
        count: of parts, >= 2.
    """

    def add_part(self, shard: int, part: ModelState) -> None:
        """Take in a part that was placed, or that a server brought."""
        self.parts[shard] = part
        self.tables = [self.parts[i].pushes for i in sorted(self.parts)]
        part.pushes.whole = self

    @property
    def wants_weights(self) -> bool:
        """Whether initial weights are needed, and no part has made a step."""
        return self.is_known and not self.has_weights and not any(p.version.number for p in self.tables)

    def look_at(self, event: MemberEvent) -> None:
        """Note which pushes an event may have brought further; what is not about pushes may have changed them all."""
        match event:
            case GetRequested() | LinksReported() | MemoryReported() | Prepared() | TransferEnded(transfer=GetId()):
                pass
            case PushRequested():
                self._note_change(whole_of(event.update, self.count))
                for push in self._lost:  # its worker may know now
                    self._note_change(push)
            case TransferEnded(transfer=UpdateId() as part):
                self._note_change(whole_of(part, self.count))
            case CommitsReported():
                for commit in event.commits:
                    self._note_change(whole_of(commit.update, self.count))
            case Tick():
                for push in self.open:
                    if not self._context.is_live(push.worker, push.incarnation):
                        self._note_change(push)
            case _:
                self._changed = None

    def part_back(self, holds: ServerHolds, shard: int) -> Iterator[Instruction]:
        """Go on after the server of a part has said what it holds of it, which its table has taken in."""
        self.begin_under(root_of(holds.began))
        for part, planned in self.parts[shard].pushes.planned.items():
            self.note(part, planned.request.kind)
        for known in self.open.values():
            known.told.discard(shard)
        yield from self._note_holds(holds, shard)
        yield from self._take_back_at(shard, f"{holds.server} came back")

    def keeps(self, event: TransferEnded, part: UpdateId) -> bool:
        """Tell whether a part stays although its worker discards it: the server has it, and it may be committed.

        Then the whole push is dropped by the servers, unless it is committed already.
        """
        pushes = self.parts[part.counter % self.count].pushes
        planned, push = pushes.planned.get(part), whole_of(part, self.count)
        by_worker = event.end is TransferEnd.DISCARDED and event.member == part.worker
        if not by_worker or planned is None or not (planned.received or self._is_push_fixed(push)):
            return False
        self._doom(push, Dropped(cause=event.cause or DropReason.NOT_FINITE, detail=event.detail))
        return True

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of everything of a worker's that is not with the servers."""
        for _, model in sorted(self.parts.items()):
            yield from model.worker_gone(worker, reason)
        self._forget_gets(worker)

    def forget_worker(self, worker: str) -> None:
        """Forget the outcomes of a worker that will not ask any more, once all its pushes have one at all parts."""
        record = self._context.members.get(worker)
        self._leaving[worker] = None if record is None else record.member.incarnation
        self._forget_outcomes(worker)

    def advance(self, now_ns: int) -> Iterator[Instruction]:
        """Do what follows from the state of the parts; called after every event."""
        self._now_ns = now_ns
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            self._retry_ns = None
        if not self.has_all_parts:
            return
        self._forget_halves()
        self._has_doomed = True
        while self._has_doomed:
            self._has_doomed = False
            yield from self._go_on()

    def _go_on(self) -> Iterator[Instruction]:
        """Drop, compare, commit, serve, begin; what is found to be dropped on the way calls for another round."""
        if self.is_known:
            self._take_refusals()
            yield from self._sweep()
        self._compare_parts()
        yield from self._advance_unit()
        yield from self._serve_gets()
        self._choose_roster()
        yield from self._begin_unit()

    def due_ns(self) -> int | None:
        """Return when to look again if nothing else happens, or None."""
        times = [t for t in (self._retry_ns, *self._orphans.values()) if t is not None and t > self._now_ns]
        return min(times, default=None)

    @property
    def waits_for(self) -> str:
        """Say in words what is in the way of the next commit; "" if nothing is."""
        if self.torn:
            return self.torn
        missing = [str(i) for i in range(self.count) if i not in self.parts]
        if missing:
            return f"waiting for the servers that hold parts {', '.join(missing)} of {self.count}"
        if self.unit is not None:
            names = ", ".join(map(str, self.unit.pushes))
            slow = [p.server for p, stage in zip(self.tables, self.unit.stages, strict=True) if stage.is_open]
            return f"{names} is being committed; {', '.join(slow)} to answer" if slow else ""
        away = [p.server for p in self.tables if p.awaited or not self._context.is_here(p.server)]
        return f"waiting for {', '.join(away)}" if away else ""

    def held_by(self, worker: str) -> tuple[set[UpdateId], int]:
        """Return a worker's open pushes, and how many of its gets are open."""
        pushes = {push for push in self.open if push.worker == worker}
        return pushes, sum(get.worker == worker for get in self.gets)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        self.validate_pushes()
        self.validate_units()
        self.validate_gets()
