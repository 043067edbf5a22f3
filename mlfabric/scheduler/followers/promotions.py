"""Replicas that take their primary's place (design, section 6, "Promotion"). Pure.

A primary whose stream broke, or which does not answer any more (stopped, cut off), may be back in a moment. It is
waited for about twice as long as members lately took to come back, and not at all once its process is known to be dead:
its host says so, or a process that was never admitted comes under its name. After that its replica is told to come as
the server of that name, under a new server epoch. The promotion counts from when that process is admitted; until then
the order can be given up (the replica died first), and the primary let back. One that said good-bye is not replaced:
whoever stopped it will start it again.

A scheduler that begins anew may hear first of a server whose place was taken before its time. Who took it, or a replica
of that one, comes with a greater server epoch, and takes the place at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlfabric.model.specs import NO_TERM, Role
from mlfabric.protocol import (
    Instruction,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    ModelVersion,
    Promote,
    RefuseReason,
    ReplicaReported,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["Promotions"]

LEAST_PATIENCE_NS = 400_000_000
LONGEST_PATIENCE_NS = 2_000_000_000
_FADES = 7 / 8
"""What a longest return counts for at the next one."""


@dataclass(slots=True)
class _Order:
    """A replica that was told to take its server's place; ``told`` is its record when it was last told."""

    told: MemberRecord
    server_epoch: int


class Promotions:
    """Who takes whose place.

    Args:
        context: shared by the scheduler's parts.
        models: all that there are, by name; only read.
    """

    def __init__(self, context: Context, models: Mapping[str, ModelState]) -> None:
        self._context = context
        self._models = models
        self._seeded: dict[tuple[str, int], dict[str, ModelVersion]] = {}
        self._orders: dict[str, _Order] = {}
        self._dead: set[str] = set()
        self._longest_return_ns = 0.0

    # What happens

    def look_at(self, event: MemberEvent, now_ns: int) -> None:
        """Note which replicas have a model, how long members take to come back, and who is dead."""
        match event:
            case ReplicaReported() if event.term > 0:
                if (record := self._context.members.get(event.replica)) is not None:
                    self._seeded.setdefault(_process(record), {})[event.model] = event.version
            case MemberJoined():
                known = self._context.members.get(event.member.name)
                if known is None and _is_fresh(event):
                    self._dead.add(event.member.name)
                if known is not None and known.state is MemberState.LEFT:
                    # It was forgotten here what a replica held: it says so before it is told anything.
                    self._seeded.pop((event.member.name, event.member.incarnation), None)
                if known is None or known.state is not MemberState.SILENT:
                    return
                if known.member.incarnation == event.member.incarnation:
                    self._longest_return_ns = max(now_ns - known.since_ns, _FADES * self._longest_return_ns)
                elif known.member.role is Role.SERVER and _is_fresh(event):
                    self._dead.add(event.member.name)
            case MemberLost(has_ended=True):
                known = self._context.members.get(event.name)
                is_server = known is not None and known.member.role is Role.SERVER
                if known is not None and is_server and known.member.incarnation == event.incarnation:
                    self._dead.add(event.name)
            case MemberLeft():
                self._seeded.pop((event.name, event.incarnation), None)

    def refusal(self, event: MemberJoined) -> tuple[RefuseReason, str] | None:
        """Say why a server cannot join because of one that takes, or took, its place; None if it can."""
        name, order = event.member.name, self._orders.get(event.member.name)
        known = self._context.members.get(name)
        is_again = known is not None and known.member.incarnation == event.member.incarnation
        if event.promoted and not is_again:  # else it was admitted, and may not have heard of it
            if order is not None and _fits(order, event):
                return None
            detail = f"{event.promoted!r} is not told to take the place of server {name!r}"
            return RefuseReason.SUPERSEDED, f"{detail}; go on as a replica"
        for spec, held in zip(event.held, event.server_epochs, strict=True):
            model = self._models.get(spec.name)
            is_whole = model is not None and model.pushes.spec.shard is None
            if model is not None and is_whole and (epoch := model.pushes.shown_epoch) > held:
                detail = f"model {spec.name!r} is served under server epoch {epoch} by now"
                given = f"server {name!r} holds it as of epoch {held}"
                return RefuseReason.SUPERSEDED, f"{detail}; {given}; start it anew, as a replica"
        heir = None if order is None else order.told
        if heir is None and name in self._dead:
            heir = self._heir_of(name)
        if heir is not None:
            detail = f"replica {heir.member.name!r}, which takes the place of server {name!r}"
            return RefuseReason.NOT_YET, f"waiting for {detail}"
        return None

    def is_newer(self, event: MemberJoined) -> bool:
        """Tell whether a server that took another one's place comes while that one, of a lesser epoch, is here.

        A server that goes on from a checkpoint begins a greater epoch as well, and takes nobody's place.
        """
        own = (m.pushes.shown_epoch for m in self._models.values() if m.pushes.server == event.member.name)
        return bool(event.succeeds) and bool(event.held) and event.server_epoch > max(own, default=0)

    def taken(self, server: str) -> None:
        """Note that a server was admitted: nobody is to take its place now."""
        self._orders.pop(server, None)
        self._dead.discard(server)

    def forget(self, model: str) -> None:
        """Forget a model that has ended, or a part of one."""
        for held in self._seeded.values():
            held.pop(model, None)

    # What follows

    def advance(self, now_ns: int) -> Iterator[Instruction]:
        """Give up orders whose replicas are gone or have nothing any more; give others whose primaries are gone."""
        if not self._orders and not self._context.here(Role.REPLICA):
            return iter(())  # so it is after nearly every event
        return self._advance(now_ns)

    def _advance(self, now_ns: int) -> Iterator[Instruction]:
        for server, order in list(self._orders.items()):
            known = self._context.members.get(order.told.member.name)
            is_same = known is not None and _process(known) == _process(order.told)
            has_gone = not is_same or known is None or known.state is MemberState.LEFT
            if has_gone or not self._seeded.get(_process(order.told)):
                del self._orders[server]
        for replica in self._context.here(Role.REPLICA):
            server = replica.follows.server if replica.follows is not None else ""
            due_ns = self._due_ns(replica, server)
            if due_ns is not None and due_ns <= now_ns:
                yield self._order(replica, server)

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        replicas = self._context.here(Role.REPLICA)
        if not replicas:
            return None
        due = [self._due_ns(replica, replica.follows.server) for replica in replicas if replica.follows is not None]
        return min([ns for ns in due if ns is not None], default=None)

    def _due_ns(self, replica: MemberRecord, server: str) -> int | None:
        """Return when a replica is to be told to take its server's place, None while nothing calls for that."""
        order = self._orders.get(server)
        if order is not None:
            is_untold = order.told is not replica and _process(order.told) == _process(replica)
            return 0 if is_untold else None
        primary = self._context.members.get(server)
        if primary is not None and primary.has_resigned:
            return None
        if primary is not None and primary.state is MemberState.HERE:
            return replica.since_ns if self._is_later(replica, server) else None
        if not self._has_all(replica, server):
            return None
        since_ns = replica.since_ns if primary is None else primary.since_ns
        return since_ns if server in self._dead else since_ns + self._patience_ns

    def _is_later(self, replica: MemberRecord, server: str) -> bool:
        """Tell whether a replica follows a server that came after the one that is here, which does not know that."""
        held = self._seeded.get(_process(replica), {})
        models = (m.pushes for m in self._models.values() if m.pushes.server == server and not m.pushes.awaited)
        return any(p.spec.name in held and _is_of_heir(held[p.spec.name].epoch, p) for p in models)

    @property
    def _patience_ns(self) -> int:
        return round(min(LONGEST_PATIENCE_NS, max(LEAST_PATIENCE_NS, 2 * self._longest_return_ns)))

    def _has_all(self, replica: MemberRecord, server: str) -> bool:
        """Tell whether a replica has all of a server's models that have weights, and any at all, from this server."""
        held = self._seeded.get(_process(replica), {})
        models = (m.pushes for m in self._models.values() if m.pushes.server == server and m.pushes.initialised)
        return bool(held) and all(p.spec.name in held and held[p.spec.name].epoch >= p.server_epoch for p in models)

    def _heir_of(self, server: str) -> MemberRecord | None:
        """Return the replica that is about to take a server's place."""
        for replica in self._context.here(Role.REPLICA):
            follows = replica.follows is not None and replica.follows.server == server
            if follows and self._due_ns(replica, server) is not None:
                return replica
        return None

    def _order(self, replica: MemberRecord, server: str) -> Promote:
        order = self._orders.get(server)
        if order is None:
            order = self._orders[server] = _Order(replica, self._context.numbers.next_server_epoch())
        order.told = replica
        followed = [m.replication for m in self._models.values() if m.replication.replica is replica]
        return Promote(
            to=replica.member.name,
            server=server,
            server_epoch=order.server_epoch,
            known=tuple(group for replication in followed for group in replication.told()),
            foretold=tuple(group for replication in followed for group in replication.foretell()),
            reason=f"server {server!r} is gone",
        )


def _is_fresh(event: MemberJoined) -> bool:
    """Tell whether a server was never admitted before: if there was one of its name, it is dead."""
    return event.member.role is Role.SERVER and event.member.seen == NO_TERM and not event.promoted


def _process(record: MemberRecord) -> tuple[str, int]:
    return record.member.name, record.member.incarnation


def _fits(order: _Order, event: MemberJoined) -> bool:
    return order.told.member.name == event.promoted and order.server_epoch == event.server_epoch


def _is_of_heir(epoch: int, pushes: Pushes) -> bool:
    """Tell whether a version is of a server that took the place of this one, which did not know that when it came."""
    return epoch > pushes.shown_epoch and all(began.epoch != epoch for began in pushes.began)
