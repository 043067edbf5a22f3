"""The updates of one model: asked for, planned, settled. Pure.

A batch closes when the server's ingress is about to run dry, or after the batch window; so a lone worker never waits.
Every plan orders all that is not committed: new updates and those on their way. What the server has, or will have by
now, keeps its place; the rest may be overtaken within its deadline, by being given a later ``seq``. A transfer that
stays out much longer than planned is taken to need its time once more, so that others can go before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlfabric.network import Profile
from mlfabric.protocol import (
    Drop,
    Dropped,
    DropReason,
    Instruction,
    ModelVersion,
    PushRequested,
    Resolve,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.planning import Batch, Candidate, FabricState, Plan, PlannerConfig, plan
from mlfabric.scheduler.push_table import PushTable
from mlfabric.scheduler.records import PlannedUpdate, WaitingUpdate

__all__ = ["Pushes"]

INGRESS_LEAD_NS = 2_000_000
BLOCKED_NS = 100_000_000


class Pushes(PushTable):
    """The requests for updates of one model, and their plans."""

    # Requests

    def request(self, event: PushRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a request, or answer one that was answered before."""
        update = event.update
        self.settled.forget_below(update, event.resolved_below)
        planned = self.planned.get(update)
        if self.settled.is_over(update):
            return
        if (outcome := self.settled.get(update)) is not None:
            yield Resolve(to=update.worker, update=update, outcome=outcome, reason="it was settled before")
        elif planned is not None and not planned.voided:
            planned.request, planned.asked = event, True
            yield from self._instruct(planned, (), "asked for again")
        elif planned is None and (refusal := self._refusal(event)) is not None:
            self.waiting.pop(update, None)
            yield self._drop(update, refusal.cause, refusal.detail)
            self.settled.add(update, refusal)
        elif update in self.waiting:
            self.waiting[update].request = event
        else:
            self.waiting[update] = WaitingUpdate(event, now_ns)

    def _refusal(self, event: PushRequested) -> Dropped | None:
        size_bytes = self.spec.layout.size_bytes
        newest = ModelVersion(self.version.epoch, self.version.number + len(self.planned))
        if event.size_bytes != size_bytes:
            detail = f"{event.size_bytes} bytes given; {self.spec.name} has {size_bytes}"
            return Dropped(cause=DropReason.WRONG_LAYOUT, detail=detail)
        if not math.isfinite(event.norm) or event.norm < 0:
            return Dropped(cause=DropReason.NOT_FINITE, detail=f"norm {event.norm} given; it must be finite and >= 0")
        if self.awaited:
            return None
        if event.kind is UpdateKind.GRADIENT and event.computed_from > newest:
            detail = f"computed from {tuple(event.computed_from)}; the newest possible version is {tuple(newest)}"
            return Dropped(cause=DropReason.FUTURE_VERSION, detail=detail)
        if event.kind is UpdateKind.INITIAL and self.initialised:
            return Dropped(cause=DropReason.DUPLICATE, detail="the model has weights already")
        return None

    # Plans

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next plan is to be made, None if nothing calls for one."""
        if self.awaited or not self._context.is_here(self.server):
            return None
        times = [t for t in (self._batch_due_ns(now_ns), self._overdue_ns()) if t is not None]
        return min(times, default=None)

    def _batch_due_ns(self, now_ns: int) -> int | None:
        ready = [(max(w.since_ns, w.blocked_until_ns), w.request.update) for w in self._ready()]
        if not ready:
            return None
        since_ns, first = min(ready)
        path = self._context.path(first.worker, self.server)
        dry_ns = self._context.network.busy_until(path[-1], now_ns) if path else now_ns
        due_ns = min(dry_ns - INGRESS_LEAD_NS, since_ns + self._context.config.batch_window_ns)
        return max(due_ns, self.waiting[first].blocked_until_ns)

    def _ready(self) -> list[WaitingUpdate]:
        """Return what can be planned now: gradients only once there are weights that they can be applied to."""
        return [
            w
            for u, w in self.waiting.items()
            if u not in self.planned and (self.initialised or w.request.kind is UpdateKind.INITIAL)
        ]

    def _in_sequence(self) -> list[PlannedUpdate]:
        """Return the updates that will each make a version, by ``seq``."""
        return list(self._sequence())

    def _sequence(self) -> Iterator[PlannedUpdate]:
        gradient = UpdateKind.GRADIENT
        return (p for p in self.planned.values() if (p.received or not p.voided) and p.request.kind is gradient)

    def _overdue_ns(self) -> int | None:
        sequence = self._sequence()
        head = next(sequence, None)
        return head.overdue_ns() if head is not None and next(sequence, None) is not None else None

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Order everything that is not committed and instruct whoever is concerned."""
        batch = self._ready()
        for waiting in [w for w in batch if w.request.kind is UpdateKind.INITIAL]:
            batch.remove(waiting)
            yield from self._plan_initial(waiting, now_ns)
        frozen, movable = self._split(now_ns)
        updates = [self._in_flight(p, now_ns) for p in movable] + [self._candidate(w.request, now_ns) for w in batch]
        found = plan(
            Batch(updates=tuple(updates)),
            self._context.network,
            FabricState(
                now_ns=now_ns,
                v_init=self.version.number + len(frozen),
                servers=(self._context.host(self.server),),
            ),
            PlannerConfig(tau_max=self.tau_max, drop_rule=self._context.config.drop_rule),
        )
        yield from self._leave(found)
        yield from self._arrange(found, max((p.seq for p in frozen), default=-1), now_ns)
        for planned in movable:
            planned.note_overdue(now_ns)

    def _split(self, now_ns: int) -> tuple[list[PlannedUpdate], list[PlannedUpdate]]:
        """Split what is planned into the head that keeps its place and the rest, which may be overtaken."""
        planned = self._in_sequence()
        count = 0
        while count < len(planned) and planned[count].end_ns(now_ns) <= now_ns:
            count += 1
        return planned[:count], planned[count:]

    def _candidate(self, request: PushRequested, now_ns: int, in_flight: Profile | None = None) -> Candidate:
        return Candidate(
            update=request.update,
            source=self._context.host(request.update.worker),
            size_bytes=request.size_bytes,
            ready_ns=now_ns,
            computed_from=request.computed_from.number,
            in_flight=in_flight,
        )

    def _in_flight(self, planned: PlannedUpdate, now_ns: int) -> Candidate:
        end_ns = planned.end_ns(now_ns)
        return self._candidate(planned.request, now_ns, Profile(min(now_ns, end_ns), end_ns, ()))

    def _plan_initial(self, waiting: WaitingUpdate, now_ns: int) -> Iterator[Instruction]:
        path = self._context.path(waiting.request.update.worker, self.server)
        profile = self._context.network.transfer(path, waiting.request.size_bytes, now_ns)
        if profile is not None:
            yield from self._instruct(self._take(waiting.request, profile), (), "initial weights")
        else:
            waiting.blocked_until_ns = now_ns + BLOCKED_NS

    def _leave(self, found: Plan) -> Iterator[Instruction]:
        for left in found.drops:
            update, planned = left.update, self.planned.get(left.update)
            if planned is not None:
                yield from self._void(planned, left.reason)
            else:
                del self.waiting[update]
                self.settled.add(update, Dropped(cause=left.cause, detail=left.reason))
                yield self._drop(update, left.cause, left.reason)

    def _arrange(self, found: Plan, last_seq: int, now_ns: int) -> Iterator[Instruction]:
        for commit in found.commits:
            planned = self.planned.get(commit.update)
            self.commit_ns[commit.update] = commit.commit_ns
            if planned is None:
                transfer = found.transfers[found.groups[commit.group].last[0]]
                after = self._running.before(transfer.path, transfer.profile.start_ns)
                planned = self._take(self.waiting.pop(commit.update).request, transfer.profile)
                yield from self._instruct(planned, after, commit.reason)
            elif planned.seq < last_seq:
                planned.seq = self._next_seq()
                self.planned[commit.update] = self.planned.pop(commit.update)
                yield self._expect(planned, (), "overtaken within its deadline")
            last_seq = planned.seq

    def _drop(self, update: UpdateId, cause: DropReason, reason: str) -> Drop:
        return Drop(to=update.worker, model=self.spec.name, update=update, cause=cause, reason=reason)

    def _take(self, request: PushRequested, profile: Profile) -> PlannedUpdate:
        update = request.update
        self.waiting.pop(update, None)
        path = self._context.path(update.worker, self.server)
        self._context.network.reserve(self._key(update), path, profile)
        self._running.add(update, path, profile)
        planned = PlannedUpdate(
            request=request,
            seq=self._next_seq(),
            ticket=self._context.tickets.next(),
            profile=profile,
            patience_ns=self._lateness.patience_ns(profile),
        )
        self.planned[update] = planned
        return planned
