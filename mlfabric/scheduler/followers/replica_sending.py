"""What goes to a model's replica: windows, updates by themselves; and what is known of its lead. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mlfabric.model.divergence import Limit, Units, as_norm
from mlfabric.model.samples import Samples
from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind
from mlfabric.network import Profile
from mlfabric.planning import paced_rate
from mlfabric.protocol import (
    Commit,
    Drop,
    DropReason,
    Expect,
    Expected,
    Fold,
    Followed,
    Following,
    Instruction,
    ModelVersion,
    Release,
    Replicate,
    Seed,
    SumId,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberRecord, PlannedUpdate
from mlfabric.scheduler.reservations import Reservations
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["Entry", "InFlight", "Phase", "ReplicaSending", "Window"]

REPLICATE_FROM = 0.5
TERM_BITS = 20


class Phase(Enum):
    """Where a model's replication is."""

    NONE = "no replica"
    WAITING = "waits for the primary"
    SEEDING = "is being seeded"
    FOLLOWING = "follows"


@dataclass(frozen=True, slots=True)
class Entry:
    """A version of the log: the updates whose step made it, its learning rate, its share of its group's step norm.

    ``began`` is the first version that was made together with it.
    """

    version: int
    lr: float
    members: tuple[UpdateId, ...]
    step: Units
    began: int


class Behind(NamedTuple):
    """How far a replica is behind its model, and how far it may be; None for no such bound.

    Args:
        replica_lead, replica_lead_max: in updates that it has not applied.
        divergence, divergence_max: as l2 distance: the norms of the steps that it has not applied, summed, bound it.
    """

    replica_lead: int
    replica_lead_max: int | None
    divergence: float
    divergence_max: float | None


@dataclass(slots=True)
class Window:
    """What a worker has folded since it last sent: its updates, and the version of the last one."""

    members: list[UpdateId] = field(default_factory=list)
    version: int = 0


@dataclass(slots=True)
class InFlight:
    """A transfer to the replica; ``arrive_ns`` is when it should be there."""

    order: Replicate | Seed
    members: tuple[UpdateId, ...]
    arrive_ns: int


class ReplicaSending:
    """The transfers to one model's replica, and what it lacks.

    Args:
        context: shared by the scheduler's parts.
        pushes: the model's updates; only read.
    """

    def __init__(self, context: Context, pushes: Pushes) -> None:
        self.phase = Phase.NONE
        self.term = context.config.term.number << TERM_BITS
        self.terms_begun_by_hole = 0
        self.version = ModelVersion(1, 0)
        self.following: Following | None = None
        self.replica: MemberRecord | None = None
        self._context = context
        self._pushes = pushes
        self._links = Reservations[TransferId](context.network, pushes.spec.name, "replica")
        self._limit = Limit(None, None)
        self._primary: MemberRecord | None = None
        self._workers: dict[str, MemberRecord] = {}
        self._entries: list[Entry] = []
        self._logged = 0
        self._last_step = 0.0
        self._windows: dict[str, Window] = {}
        self._in_flight: dict[TransferId, InFlight] = {}
        self._held: set[UpdateId] = set()
        self._alone: set[UpdateId] = set()
        self._wanted: set[UpdateId] = set()
        self._lost: set[UpdateId] = set()
        self._flush = False
        self._reported: tuple[UpdateId, ...] = ()
        self._unreleased: list[UpdateId] = []
        self._orphaned_ns: int | None = None
        self._given_up: set[UpdateId] = set()
        self._is_seeded = False
        self._told: dict[UpdateId, Commit] = {}
        self._left_with: frozenset[UpdateId] = frozenset()
        self._hole = ""
        self._is_unheard = False

    @property
    def name(self) -> str:
        """The replica's name, "" without one."""
        return self.replica.member.name if self.replica is not None else ""

    @property
    def in_flight(self) -> list[TransferId]:
        """What is on its way to the replica."""
        return list(self._in_flight)

    @property
    def lead(self) -> int:
        """How many updates were committed that the replica has not applied, as far as is known here."""
        return sum(len(entry.members) for entry in self._entries)

    @property
    def behind(self) -> Behind | None:
        """How far the replica is behind; None if there is none."""
        if self.following is None:
            return None
        norm = self.following.norm
        return Behind(
            replica_lead=self.lead,
            replica_lead_max=self.following.updates,
            divergence=as_norm(sum(entry.step for entry in self._entries)),
            divergence_max=norm if math.isfinite(norm) else None,
        )

    @property
    def _model(self) -> str:
        return self._pushes.spec.name

    @property
    def _folds(self) -> bool:
        return self._pushes.spec.rule.kind is not RuleKind.ADAM

    def _is_pending(self, update: UpdateId) -> bool:
        return update not in self._held and update not in self._alone and self._is_windowed(update)

    def _is_windowed(self, update: UpdateId) -> bool:
        window = self._windows.get(update.worker)
        return window is not None and update in window.members

    def _is_lead_long(self) -> bool:
        """Tell whether what nobody sends yet has reached its share of the bound."""
        part = self._limit.part(REPLICATE_FROM)
        steps = [(e.step, n) for e in self._entries if (n := sum(map(self._is_windowed, e.members)))]
        is_far = part.norm is not None and sum(step for step, _ in steps) > part.norm
        return is_far or (part.commits is not None and sum(n for _, n in steps) >= max(1, part.commits))

    def _fold(self, update: UpdateId, entry: Entry, window: Window) -> Fold:
        since = window.version if window.members else entry.version - 1
        lrs = tuple(e.lr for e in self._entries if since < e.version <= entry.version)
        assert len(lrs) == entry.version - since, f"{self._model}: the log lacks versions after {since}"
        return Fold(
            to=update.worker,
            model=self._model,
            term=self.term,
            update=update,
            lrs=lrs,
            share=1 / len(entry.members) if self._pushes.spec.method is Method.SYNCHRONOUS else 1.0,
            begins=since < entry.began,
            reason="it is sent to the replica later",
        )

    # Transfers

    def _send_wanted(self, now_ns: int) -> Iterator[Instruction]:
        """Send by themselves the updates that must be there before they are committed."""
        for update, planned in self._pushes.planned.items():
            wanted = self._limit.commits == 0 or update in self._wanted
            if wanted and planned.request.kind is UpdateKind.GRADIENT:
                yield from self._send_before_commit(update, planned, now_ns)

    def _send_windows(self, now_ns: int) -> Iterator[Instruction]:
        """Send everything that is folded if the lead is long, or the primary waits."""
        if self._windows and (self._flush or self._is_lead_long()):
            self._flush = False
            for worker in sorted(self._windows):
                yield from self._send_window(worker, now_ns, None, "the lead is long")

    def _send_before_commit(self, update: UpdateId, planned: PlannedUpdate, now_ns: int) -> Iterator[Instruction]:
        """Let a worker send an update by itself, or the primary drop it if nobody can."""
        if update in self._alone:
            return
        yield from self._send_alone(update, now_ns, "it must be there before it is committed")
        if update not in self._alone and planned.received:
            yield from self._give_up(update)

    def _give_up(self, update: UpdateId) -> Iterator[Instruction]:
        """Let the primary drop what it may not commit before the replica has it, which can never have it."""
        if update not in self._given_up:
            self._given_up.add(update)
            reason = f"{update.worker} is gone before the replica had it, and the bound allows no lead that long"
            yield Drop(
                to=self._pushes.server,
                model=self._model,
                update=update,
                cause=DropReason.NOT_REPLICATED,
                reason=reason,
            )

    def _send_window(self, worker: str, now_ns: int, profile: Profile | None, reason: str) -> Iterator[Instruction]:
        window = self._windows.get(worker)
        if window is None or worker not in self._workers:
            return
        if self._folds and any(f.order.to == worker and isinstance(t, SumId) for t, f in self._in_flight.items()):
            self._flush = True
            return
        del self._windows[worker]
        if not self._folds:
            for update in window.members:
                yield from self._send_alone(update, now_ns, reason)
            return
        transfer = self._context.numbers.next_sum()
        size_bytes = self._pushes.spec.rule.sum_images * self._pushes.spec.layout.size_bytes
        yield from self._replicate(transfer, worker, tuple(window.members), size_bytes, now_ns, profile, reason)

    def _send_alone(self, update: UpdateId, now_ns: int, reason: str) -> Iterator[Instruction]:
        record = self._workers.get(update.worker)
        if record is not None and record.member.incarnation == update.incarnation:
            self._alone.add(update)
            size_bytes = self._pushes.spec.layout.size_bytes
            yield from self._replicate(update, update.worker, (update,), size_bytes, now_ns, None, reason)

    def _replicate(
        self,
        transfer: TransferId,
        source: str,
        members: tuple[UpdateId, ...],
        size_bytes: int,
        now_ns: int,
        profile: Profile | None,
        reason: str,
    ) -> Iterator[Instruction]:
        path = self._context.path(source, self.name)
        profile = profile or self._context.network.transfer(path, size_bytes, now_ns)
        order = Replicate(
            to=source,
            model=self._model,
            term=self.term,
            transfer=transfer,
            ticket=self._context.tickets.next(),
            rate_bps=paced_rate(profile, path, self._context.network) if profile else 0,
            reason=reason,
        )
        yield from self._begin(order, members, size_bytes, profile, now_ns)

    def _begin(
        self,
        order: Replicate | Seed,
        members: tuple[UpdateId, ...],
        size_bytes: int,
        profile: Profile | None,
        now_ns: int,
    ) -> Iterator[Instruction]:
        """Reserve the links of a transfer, and tell the replica of it and who is to send it; a seed has no members."""
        path = self._context.path(order.to, self.name)
        if profile is not None and path:
            self._links.enter(order.transfer, path, profile)
        self._in_flight[order.transfer] = InFlight(order, members, now_ns if profile is None else profile.end_ns)
        nothing = ModelVersion(0, 0)
        seed = Expected(UpdateId(self._pushes.server, 0, self.term), nothing, 0)
        yield Expect(
            to=self.name,
            transfer=order.transfer,
            members=tuple(Expected(u, nothing, 0, samples=self._samples_of(u)) for u in members) or (seed,),
            model=self._model,
            seq=self.term,
            ticket=order.ticket,
            size_bytes=size_bytes,
            tau_max=0,
            kind=UpdateKind.GRADIENT if members else UpdateKind.STATE,
            after=(),
            reason=f"term {self.term}",
        )
        yield order

    def _samples_of(self, update: UpdateId) -> Samples:
        """Return what an update that is not settled was computed from: its replica may be the last that knows that."""
        planned = self._pushes.planned.get(update)
        return () if planned is None else planned.request.samples

    def _end(self, transfer: TransferId) -> InFlight | None:
        self._links.free(transfer)
        return self._in_flight.pop(transfer, None)

    # What workers and the primary are told

    def _release_copies(self) -> Iterator[Instruction]:
        """Let workers keep no longer what the replica has: its own answer may have been lost."""
        updates, self._unreleased = self._unreleased, []
        yield from self._release(updates, "the replica has them")

    def _release(self, updates: Iterable[UpdateId], reason: str) -> Iterator[Instruction]:
        by_worker: dict[str, list[UpdateId]] = {}
        for update in updates:
            if update.worker in self._workers:
                by_worker.setdefault(update.worker, []).append(update)
        for worker, own in sorted(by_worker.items()):
            yield Release(to=worker, model=self._model, term=self.term, updates=tuple(own), reason=reason)

    def _followed(self, reason: str) -> Followed:
        """Tell the primary where the replica is.

        What it reported counts only as far as nobody let it forget that meanwhile.
        """
        assert self.following is not None, "there is a replica"
        return Followed(
            to=self._pushes.server,
            model=self._model,
            replica=self.name,
            version=self.version,
            held=tuple(u for u in self._reported if u in self._held),
            norm=self.following.norm,
            updates=self.following.updates,
            reason=reason,
        )

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not (self._entries or self._windows):
            return
        numbers = [entry.version for entry in self._entries]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True, f"log {numbers}"
        windowed = [u for window in self._windows.values() for u in window.members]
        assert len(windowed) == len(set(windowed)), f"{self._model}: folded twice: {windowed}"
        assert not self._alone & set(windowed), f"{self._model}: folded and sent by themselves"
