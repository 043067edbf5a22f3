"""One model on a server: who may send, what commits next, who is served. Pure.

Grants. An offered update is granted when no running transfer is in conflict with it and no earlier offered one is:
the plan says which must not overlap (``after``), the earlier ``seq`` goes first. An update that is late to offer
therefore never keeps the others waiting; only the commit order waits for it. The head of the sequence may exceed the
budget for receive buffers, so that the sequence can always go on.

Commits happen strictly in ``seq`` order. The gate holds the delay bound whatever the plan got wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    Commit,
    CommitsReported,
    Committed,
    Dropped,
    DropReason,
    Expect,
    InitialReceived,
    ModelVersion,
    Outcome,
    ServerHolds,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
)
from mlfabric.server.actions import (
    Abandon,
    Action,
    Answer,
    ApplyStep,
    Forget,
    Grant,
    InstallInitial,
    Offered,
    Report,
)
from mlfabric.server.applied import AppliedSet
from mlfabric.server.serving import Servings
from mlfabric.server.transfers import UNCLAIMED_NS, IncomingUpdate, UpdateState, conflict, take_out
from mlfabric.specs import ModelSpec

__all__ = ["HostedModel"]


class HostedModel:
    """The state of one model; every door returns the actions that follow."""

    def __init__(
        self, server: str, spec: ModelSpec, receive_budget_bytes: int, start: ServerHolds | None = None
    ) -> None:
        self.spec = spec
        self.version = start.version if start else ModelVersion(1, 0)
        self.initialised = start.initialised if start else False
        self.applied = AppliedSet(start.applied if start else ())
        self.updates: dict[UpdateId, IncomingUpdate] = {}
        self.gets = Servings(server, spec)
        self._server = server
        self._epoch_base = start.epoch_base if start else 0
        self._budget_bytes = receive_budget_bytes

    # Updates

    def expect(self, order: Expect, now_ns: int) -> Iterator[Action]:
        """Take an update into the sequence, or move one that is there."""
        self.applied.raise_low(order.update, order.resolved_below)
        known = self.updates.get(order.update)
        if known is not None:
            known.seq, known.ticket, known.tau_max = order.seq, order.ticket, order.tau_max
            known.since_ns = now_ns
            known.after |= frozenset(order.after)
        elif self.applied.knows(order.update):
            yield from self._report_again(order.update)
        else:
            self.updates[order.update] = IncomingUpdate(
                update=order.update,
                seq=order.seq,
                ticket=order.ticket,
                size_bytes=order.size_bytes,
                computed_from=order.computed_from,
                tau_max=order.tau_max,
                kind=order.kind,
                after=frozenset(order.after),
                since_ns=now_ns,
            )

    def offer(self, offered: Offered) -> Iterator[Action]:
        """Take an offer whose ticket fits; a second one of the same update takes the place of the first."""
        update, connection = offered.update, offered.connection
        transfer = self.updates[update]
        former, transfer.connection = transfer.connection, connection
        if transfer.is_complete:
            return
        if former is not None and former != connection:
            yield Abandon(update=update, connection=former, reason="offered anew on another connection")
        if transfer.holds_buffer:
            yield Forget(update=update, reason="offered anew")
        transfer.state = UpdateState.OFFERED
        if offered.digest != self.spec.layout.digest or offered.length != transfer.size_bytes:
            yield from self._discard(transfer, DropReason.WRONG_LAYOUT, _layout_detail(self.spec, offered))

    def received(self, update: UpdateId, connection: int) -> Iterator[Action]:
        """Note that an update is complete."""
        transfer = self.updates.get(update)
        if transfer is not None and transfer.state is UpdateState.RECEIVING and transfer.connection == connection:
            transfer.state = UpdateState.RECEIVED
            yield Report(event=self._ended(update, TransferEnd.RECEIVED))

    def broken(self, update: UpdateId, connection: int, detail: str) -> Iterator[Action]:
        """Note that a connection broke; what was not complete leaves the sequence."""
        transfer = self.updates.get(update)
        if transfer is None or transfer.connection != connection:
            return
        if transfer.is_complete:
            transfer.connection = None
            return
        yield from self._remove(transfer, "its connection broke")
        yield Report(event=self._ended(update, TransferEnd.BROKEN, detail=detail))

    def void(self, update: UpdateId, reason: str) -> Iterator[Action]:
        """Stop waiting for an update, unless it is complete: what is here is committed."""
        transfer = self.updates.get(update)
        if transfer is None:
            yield from self._report_again(update)
        elif not transfer.is_complete:
            if transfer.connection is not None:
                yield Abandon(update=update, connection=transfer.connection, reason=reason)
            yield from self._remove(transfer, reason)
            yield Report(event=self._ended(update, TransferEnd.VOIDED, detail=reason))

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        unclaimed = [t.since_ns for t in self.updates.values() if t.state is UpdateState.EXPECTED]
        times = [self.gets.next_wakeup_ns(), min(unclaimed) + UNCLAIMED_NS if unclaimed else None]
        return min((t for t in times if t is not None), default=None)

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Stop waiting for transfers that nobody came for: their worker has no use for them (any more)."""
        for transfer in [t for t in self.updates.values() if t.state is UpdateState.EXPECTED]:
            if transfer.since_ns + UNCLAIMED_NS <= now_ns:
                yield from self._remove(transfer, "never offered")
                yield Report(event=self._ended(transfer.update, TransferEnd.BROKEN, detail="it was never offered"))
        yield from self.gets.expire(now_ns)

    def begin_epoch(self) -> Iterator[Action]:
        """Void what an older scheduler planned and nobody started; what runs or is complete goes on in its order."""
        for transfer in [t for t in self.updates.values() if not t.holds_buffer]:
            if transfer.connection is not None:
                yield Abandon(update=transfer.update, connection=transfer.connection, reason="the scheduler began anew")
            yield from self._remove(transfer, "the scheduler began anew")
        yield from self.gets.cancel_waiting("the scheduler began anew")

    def stepped(self, update: UpdateId, step_norm: float) -> Iterator[Action]:
        """Note that the store applied the head of the sequence: it is committed."""
        transfer = self.updates[update]
        assert transfer.state is UpdateState.APPLYING, f"{update} stepped while {transfer.state}"
        tau, lr = self.version.number - transfer.computed_from.number, self.spec.rule.lr_at(self.version.number)
        self.version = ModelVersion(self.version.epoch, self.version.number + 1)
        self.applied.add(update, self.version, tau)
        outcome = Committed(version=self.version, tau=tau)
        commit = Commit(update=update, version=self.version, tau=tau, lr=lr, step_norm=step_norm)
        yield from self._settle(transfer, outcome, f"its turn: seq {transfer.seq}")
        yield Report(event=CommitsReported(server=self._server, model=self.spec.name, commits=(commit,)))

    def step_refused(self, update: UpdateId, detail: str) -> Iterator[Action]:
        """Note that the store refused an update or the initial weights; nothing was changed."""
        yield from self._discard(self.updates[update], DropReason.NOT_FINITE, detail)

    def installed(self, update: UpdateId) -> Iterator[Action]:
        """Note that the store took the initial weights."""
        self.initialised = True
        self.applied.add(update, self.version, 0)
        yield from self._settle(self.updates[update], Committed(version=self.version, tau=0), "initial weights")
        yield Report(event=InitialReceived(server=self._server, model=self.spec.name, version=self.version))

    # What follows from the state

    def advance(self) -> Iterator[Action]:
        """Commit, grant and serve whatever may now be committed, granted and served."""
        if not self._is_applying():
            yield from self._advance_sequence()
        yield from self._advance_grants()
        if self.initialised and not self._is_applying():
            yield from self.gets.advance(self.version, self.updates)

    def _is_applying(self) -> bool:
        return any(t.state is UpdateState.APPLYING for t in self.updates.values())

    def _sequence(self) -> list[IncomingUpdate]:
        """Return the updates in the order in which they are committed."""
        return sorted(self.updates.values(), key=lambda t: (t.kind is not UpdateKind.INITIAL, t.seq))

    def _advance_sequence(self) -> Iterator[Action]:
        for transfer in self._sequence():
            if transfer.state is not UpdateState.RECEIVED:
                return
            if transfer.kind is UpdateKind.INITIAL and not self.initialised:
                transfer.state = UpdateState.APPLYING
                yield InstallInitial(model=self.spec.name, update=transfer.update, reason="initial weights are here")
                return
            refusal = self._gate(transfer)
            if refusal is not None:
                yield from self._discard(transfer, refusal.cause, refusal.detail)
                continue
            if not self.gets.leaves_buffer_for_commit(self.version):
                return
            transfer.state = UpdateState.APPLYING
            yield ApplyStep(
                model=self.spec.name,
                update=transfer.update,
                lr=self.spec.rule.lr_at(self.version.number),
                version=ModelVersion(self.version.epoch, self.version.number + 1),
                reason=f"its turn: seq {transfer.seq}",
            )
            return

    def _gate(self, transfer: IncomingUpdate) -> Dropped | None:
        """Say why an update must not be applied to the present version, or None."""
        base = transfer.computed_from
        tau = self.version.number - base.number
        if transfer.kind is UpdateKind.INITIAL:
            return Dropped(cause=DropReason.DUPLICATE, detail="the model has weights already")
        if not self.initialised:
            return Dropped(cause=DropReason.FUTURE_VERSION, detail="the model has no weights yet")
        if base.epoch < self.version.epoch and base.number > self._epoch_base:
            return Dropped(
                cause=DropReason.ROLLED_BACK, detail=f"version {base.number} was lost; {self._epoch_base} was kept"
            )
        if base.epoch > self.version.epoch or tau < 0:
            return Dropped(
                cause=DropReason.FUTURE_VERSION, detail=f"computed from {base}, the model is at {self.version}"
            )
        if tau > transfer.tau_max:
            return Dropped(cause=DropReason.DELAY_BOUND, detail=f"delay {tau} is above the bound {transfer.tau_max}")
        return None

    def _advance_grants(self) -> Iterator[Action]:
        running = [t for t in self.updates.values() if t.state is UpdateState.RECEIVING]
        held_bytes = sum(t.size_bytes for t in self.updates.values() if t.holds_buffer)
        waiting: list[IncomingUpdate] = []
        for index, transfer in enumerate(self._sequence()):
            if transfer.state is not UpdateState.OFFERED:
                continue
            fits = index == 0 or held_bytes + transfer.size_bytes <= self._budget_bytes
            if not fits or any(conflict(transfer.update, o.update, self.updates) for o in (*running, *waiting)):
                waiting.append(transfer)
                continue
            assert transfer.connection is not None
            transfer.state = UpdateState.RECEIVING
            running.append(transfer)
            held_bytes += transfer.size_bytes
            yield Grant(
                update=transfer.update,
                model=self.spec.name,
                connection=transfer.connection,
                size_bytes=transfer.size_bytes,
                reason="its slot is there",
            )

    # Ends

    def _discard(self, transfer: IncomingUpdate, cause: DropReason, detail: str) -> Iterator[Action]:
        outcome = Dropped(cause=cause, detail=detail)
        self.applied.drop(transfer.update, outcome)
        yield from self._settle(transfer, outcome, cause.value)
        yield Report(event=self._ended(transfer.update, TransferEnd.DISCARDED, cause, detail))

    def _settle(self, transfer: IncomingUpdate, outcome: Outcome, reason: str) -> Iterator[Action]:
        connection = transfer.connection
        yield from self._remove(transfer, reason)
        if connection is not None:
            yield Answer(update=transfer.update, connection=connection, outcome=outcome, reason=reason)

    def _remove(self, transfer: IncomingUpdate, reason: str) -> Iterator[Action]:
        take_out(transfer.update, self.updates)
        if transfer.holds_buffer:
            yield Forget(update=transfer.update, reason=reason)

    def _report_again(self, update: UpdateId) -> Iterator[Action]:
        """Say what became of an update that is not here (any more)."""
        match self.applied.outcome(update):
            case Committed(version=version, tau=tau):
                commit = Commit(update=update, version=version, tau=tau, lr=0.0, step_norm=0.0)
                event = CommitsReported(server=self._server, model=self.spec.name, commits=(commit,))
                yield Report(event=event, reason="it was committed before", again=True)
            case Dropped(cause=cause, detail=detail):
                yield Report(event=self._ended(update, TransferEnd.DISCARDED, cause, detail), again=True)
            case None:
                yield Report(event=self._ended(update, TransferEnd.VOIDED, detail="it is not here"))

    def _ended(
        self, update: UpdateId, end: TransferEnd, cause: DropReason | None = None, detail: str = ""
    ) -> TransferEnded:
        return TransferEnded(
            server=self._server, model=self.spec.name, transfer=update, end=end, cause=cause, detail=detail
        )

    def holds(self) -> ServerHolds:
        """Announce what is here, for a scheduler that may know nothing."""
        kept = sorted((t for t in self.updates.values() if t.holds_buffer), key=lambda t: t.seq)
        return ServerHolds(
            server=self._server,
            spec=self.spec,
            version=self.version,
            initialised=self.initialised,
            applied=self.applied.snapshot(),
            received=tuple(t.update for t in kept),
            epoch_base=self._epoch_base,
        )

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        applying = [t for t in self.updates.values() if t.state is UpdateState.APPLYING]
        assert len(applying) <= 1, f"{self.spec.name}: several updates are applied at once: {applying}"
        self.gets.validate(self.version)
        for transfer in self.updates.values():
            assert self.applied.outcome(transfer.update) is None, f"{transfer.update} is here though it was settled"
            needs = transfer.state in (UpdateState.OFFERED, UpdateState.RECEIVING)
            assert not needs or transfer.connection is not None, (
                f"{transfer.update} {transfer.state} without connection"
            )


def _layout_detail(spec: ModelSpec, offered: Offered) -> str:
    want = spec.layout
    return (
        f"{offered.length} bytes with digest {offered.digest:#x} offered; "
        f"{spec.name} has {want.size_bytes} bytes, digest {want.digest:#x}"
    )
