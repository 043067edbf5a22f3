"""One model on a server: who may send, what commits next, who is served. Pure.

Commits happen strictly in ``seq`` order, one place (a transfer, or a synchronous iteration) at a time. The gate holds
the bound of each member whatever the plan got wrong. A sum is all or nothing: what one member cannot pass is refused
whole, and settles none of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from mlfabric.model.samples import SampleAccount
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    Drop,
    Dropped,
    DropReason,
    Expect,
    ModelVersion,
    Outcome,
    Serve,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.server.actions import (
    Abandon,
    Action,
    Answer,
    Forget,
    InstallInitial,
    Offered,
    Refuse,
    Report,
    StepDone,
    StepRefused,
)
from mlfabric.server.applied import AppliedSet
from mlfabric.server.expected_transfers import Incoming, Place
from mlfabric.server.gate import Gate, commits_of, flaw_of, refusals_of, step_of
from mlfabric.server.gate_lead import LeadGate
from mlfabric.server.grants import grants
from mlfabric.server.reports import Reports
from mlfabric.server.served_models import Servings
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.transfer.offers import UNCLAIMED_NS, TransferState

__all__ = ["HostedModel", "ServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server's state machine needs to know.

    Args:
        name: the member's name.
        receive_budget_bytes: memory for transfers on their way or waiting for their turn; the head of a sequence may
            exceed it.
        weight_copies: how many copies of a model's weights there may be beyond twice model and optimizer state, >= 0:
            one for each further version that is sent while newer ones are made. Without one left, gets wait.
    """

    name: str
    receive_budget_bytes: int
    weight_copies: int = 0


class HostedModel:
    """The state of one model; every door returns the actions that follow.

    Args:
        config: of the server.
        start: what it begins with.

    Attributes:
        began: the path to the present epoch, see ``protocol/lineage.py``.
    """

    def __init__(self, config: ServerConfig, start: ServerHolds) -> None:
        self.spec = spec = start.spec
        self.version = start.version
        self.initialised = start.initialised
        self.applied = AppliedSet(start.applied)
        self.incoming = Incoming(spec.method, spec.shards)
        self.gets = Servings(config.name, spec, config.weight_copies)
        self.lead = LeadGate(spec)
        self.samples = SampleAccount(start.samples)
        self.began = start.began
        self._server = config.name
        self._reports = Reports(config.name, spec.name)
        self._term = 0
        self._next_epoch = 0
        self._budget_bytes = config.receive_budget_bytes
        self._synchronous = spec.method is Method.SYNCHRONOUS

    # Transfers

    def expect(self, order: Expect, now_ns: int) -> Iterator[Action]:
        """Take a transfer into the sequence, or move one that is there."""
        known = self.incoming.transfers.get(order.transfer)
        flaw = flaw_of(order, self.spec) if known is None else ""
        if flaw:
            yield self._reports.ended(order.transfer, TransferEnd.VOIDED, detail=flaw)
            return
        for member in order.members:
            self.applied.raise_low(member.update, member.resolved_below)
        if known is not None:
            known.move(order, now_ns)
        elif settled := [m.update for m in order.members if self.applied.knows(m.update)]:
            yield from self._report_settled(order.transfer, settled)
        else:
            yield from self._take_over(order, now_ns)
        self.incoming.recount(order.seq, order.parts)

    def _report_settled(self, transfer: TransferId, settled: list[UpdateId]) -> Iterator[Action]:
        for update in settled:
            yield self._reports.once_more(update, self.applied)
        if isinstance(transfer, SumId):
            names = ", ".join(map(str, settled))
            yield self._reports.ended(transfer, TransferEnd.VOIDED, detail=f"settled before: {names}")

    def _take_over(self, order: Expect, now_ns: int) -> Iterator[Action]:
        """Take a new transfer in; where its updates were to come in others, those are voided unless they are here."""
        rivals = self.incoming.holding(order.members)
        if here := [t for t in rivals if t.is_complete]:
            detail = f"{here[0].transfer} is here and has {here[0].members[0].update} in it"
            yield self._reports.ended(order.transfer, TransferEnd.VOIDED, detail=detail)
            return
        for rival in rivals:
            yield from self._void(rival, f"{order.transfer} brings what was to come in it")
        self.incoming.add(IncomingTransfer.of(order, now_ns))

    def offer(self, offered: Offered) -> Iterator[Action]:
        """Take an offer whose ticket fits; a second one of the same transfer takes the place of the first."""
        transfer = self.incoming.transfers[offered.transfer]
        former, transfer.connection = transfer.connection, offered.connection
        if transfer.is_complete:
            return
        if former is not None and former != offered.connection:
            yield Abandon(connection=former)
        if transfer.holds_buffer:
            yield Forget(transfer=offered.transfer)
        transfer.state = TransferState.OFFERED
        if offered.digest != self.spec.layout.digest or offered.length != transfer.size_bytes:
            given = f"{offered.length} bytes with digest {offered.digest:#x} offered"
            allowed = f"{transfer.size_bytes} bytes, digest {self.spec.layout.digest:#x}"
            detail = f"{given}; allowed for {self.spec.name}: {allowed}"
            yield from self._turn_away(transfer, Dropped(cause=DropReason.WRONG_LAYOUT, detail=detail))

    def received(self, name: TransferId, connection: int) -> Iterator[Action]:
        """Note that a transfer is complete."""
        transfer = self.incoming.transfers.get(name)
        if transfer is not None and transfer.state is TransferState.RECEIVING and transfer.connection == connection:
            transfer.state = TransferState.RECEIVED
            yield self._reports.ended(name, TransferEnd.RECEIVED)

    def broken(self, name: TransferId, connection: int, detail: str) -> Iterator[Action]:
        """Note that a connection broke; what was not complete leaves the sequence."""
        transfer = self.incoming.transfers.get(name)
        if transfer is None or transfer.connection != connection:
            return
        if transfer.is_complete:
            transfer.connection = None
            return
        yield from self._remove(transfer)
        yield self._reports.ended(name, TransferEnd.BROKEN, detail=detail)

    def void(self, name: TransferId, reason: str) -> Iterator[Action]:
        """Stop waiting for a transfer, unless it is complete: what is here is committed; the scheduler is told so."""
        known = self.incoming.transfers.get(name)
        holder = known or (self._holder(name) if isinstance(name, UpdateId) else None)
        if holder is not None and holder.is_complete:
            if holder is known:
                yield self._reports.ended(name, TransferEnd.RECEIVED, again=True)
            return
        if known is None:
            yield self._reports.once_more(name, self.applied)
        else:
            yield from self._void(known, reason)

    def _holder(self, update: UpdateId) -> IncomingTransfer | None:
        holder = self.incoming.transfer_of.get(update)
        return self.incoming.transfers[holder] if holder is not None else None

    def _void(self, transfer: IncomingTransfer, reason: str) -> Iterator[Action]:
        yield from self._break_off(transfer)
        yield self._reports.ended(transfer.transfer, TransferEnd.VOIDED, detail=reason)

    def _break_off(self, transfer: IncomingTransfer) -> Iterator[Action]:
        if transfer.connection is not None:
            yield Abandon(connection=transfer.connection)
        yield from self._remove(transfer)

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        due_ns = self.gets.next_wakeup_ns()
        if not self.incoming.transfers:
            return due_ns
        times = [t.since_ns + UNCLAIMED_NS for t in self._unclaimed()]
        return min(times if due_ns is None else (*times, due_ns), default=None)

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Stop waiting for what nobody came for: its worker has no use for it (any more)."""
        for transfer in self._unclaimed():
            if transfer.since_ns + UNCLAIMED_NS <= now_ns:
                yield from self._remove(transfer)
                yield self._reports.ended(transfer.transfer, TransferEnd.BROKEN, detail="it was never offered")
        yield from self.gets.expire(now_ns)

    def _unclaimed(self) -> Place:
        """Return the updates that were not offered; a sum is offered when its inputs are there, which may take long."""
        return [t for t in self.incoming.transfers.values() if t.state is TransferState.EXPECTED and not t.is_sum]

    def begin_term(self, term: int) -> Iterator[Action]:
        """Void what an older scheduler planned and the new one cannot go on with; the rest goes on in its order."""
        self._term = term
        kept = self._keepable()
        for transfer in [t for t in self.incoming.transfers.values() if t.transfer not in kept]:
            yield from self._break_off(transfer)
        if self.spec.shard is None:
            self.incoming.count_no_more()
        yield from self.gets.cancel_all("the scheduler began anew")

    def end(self, reason: str) -> Generator[Action, None, tuple[TransferId, ...]]:
        """Break off whatever comes and goes; return the transfers that are being applied: their buffers are in use."""
        applying = self.incoming.applying()
        for transfer in list(self.incoming.transfers.values()):
            if transfer not in applying:
                yield from self._break_off(transfer)
            elif transfer.connection is not None:
                yield Abandon(connection=transfer.connection)
        yield from self.gets.cancel_all(reason, gone=True)
        return tuple(transfer.transfer for transfer in applying)

    def _keepable(self) -> set[TransferId]:
        return self.incoming.keepable()

    def serve(self, plan: Serve, now_ns: int) -> Iterator[Action]:
        """Take a get in."""
        yield from self.gets.serve(plan, now_ns)

    # What the store did

    def stepped(self, done: StepDone) -> Iterator[Action]:
        """Note that the store applied the head of the sequence: it is committed."""
        group = self._applied_group(done.transfers)
        commits = commits_of(group, self._present_gate(), self.spec.rule, done.step_norm)
        for commit in commits:
            self.applied.add(commit.update, commit.version, commit.tau)
            self.samples.train(commit.samples)
        self.version = commits[-1].version
        self.lead.committed([m for t in group for m in t.members], commits)
        self.lead.reported = None
        outcomes: dict[UpdateId, Outcome] = {c.update: Committed(version=c.version, tau=c.tau) for c in commits}
        for transfer in group:
            yield from self._settle(transfer, outcomes)
        yield self._reports.committed(commits)

    def step_refused(self, refused: StepRefused) -> Iterator[Action]:
        """Note that the store refused a step; nothing was changed, and who is not to blame stays or is sent again."""
        for transfer in self._applied_group(refused.transfers):
            transfer.state = TransferState.RECEIVED
            if transfer.transfer in refused.culprits:
                yield from self._turn_away(transfer, Dropped(cause=DropReason.NOT_FINITE, detail=refused.detail))
            elif transfer.transfer in refused.spoilt:
                yield from self._give_back(transfer, refused.detail)

    def _applied_group(self, transfers: tuple[TransferId, ...]) -> Place:
        group = {t.transfer: t for t in self.incoming.applying()}
        assert group.keys() == set(transfers), f"{self.spec.name}: {transfers} were applied; {list(group)} were to be"
        return [group[transfer] for transfer in transfers]

    def install_refused(self, update: UpdateId, detail: str) -> Iterator[Action]:
        """Note that the store refused the initial weights; nothing was changed."""
        refusal = Dropped(cause=DropReason.NOT_FINITE, detail=detail)
        yield from self._turn_away(self.incoming.transfers[update], refusal)

    def installed(self, update: UpdateId) -> Iterator[Action]:
        """Note that the store took the initial weights."""
        self.initialised = True
        self.applied.add(update, self.version, 0)
        outcome = Committed(version=self.version, tau=0)
        yield from self._settle(self.incoming.transfers[update], {update: outcome})
        yield self._reports.initial(self.version)

    # Server epochs

    def renew(self, epoch: int) -> None:
        """Go on under this server epoch once nothing is being applied."""
        self._next_epoch = epoch

    @property
    def is_to_renew(self) -> bool:
        """Whether it is to go on under another epoch than it still does."""
        return self._next_epoch > self.version.epoch

    def _take_epoch(self) -> Iterator[Action]:
        """Begin the epoch that was named, with all that was committed."""
        if self.is_to_renew and not self.incoming.applying():
            self._begin_epoch_at(ModelVersion(self._next_epoch, self.version.number))
            yield Report(event=self.holds())

    def _begin_epoch_at(self, version: ModelVersion) -> None:
        self.version, self.began = version, (*self.began, version)

    # What follows from the state

    def advance(self, now_ns: int) -> Iterator[Action]:
        """Commit, grant and serve whatever may now be committed, granted and served."""
        yield from self._take_epoch()
        states = [t.state for t in self.incoming.transfers.values()]
        if TransferState.RECEIVED in states and TransferState.APPLYING not in states:
            yield from self._advance_sequence()
        if TransferState.OFFERED in states:
            yield from grants(self.incoming, self._budget_bytes)
        if self.initialised:
            pinnable = None if self.incoming.applying() else self.version
            yield from self.gets.advance(pinnable, self.incoming.transfer_of, now_ns)

    def _advance_sequence(self) -> Iterator[Action]:
        for place in self.incoming.places():
            refusals = [(t, self._gate(t)) for t in place if t.is_complete]
            for transfer, refusal in refusals:
                if refusal is not None:
                    yield from self._turn_away(transfer, refusal)
            standing = [t for t in place if t.transfer in self.incoming.transfers]
            if not standing:
                continue
            if self.incoming.is_whole(standing) and not (yield from self._waits_for_replica(standing)):
                yield self._apply(standing)
            return

    def drop(self, order: Drop) -> Iterator[Action]:
        """Drop an update that is here and may not be committed; a sum with it in it is given back."""
        transfer = self._holder(order.update)
        if transfer is not None and transfer.state is TransferState.RECEIVED:
            yield from self._turn_away(transfer, Dropped(cause=order.cause, detail=order.reason))

    def _waits_for_replica(self, place: Place) -> Generator[Action, None, bool]:
        """Tell whether these must wait until the replica holds more; say so when that begins."""
        if place[0].kind is UpdateKind.INITIAL:
            return False
        held_back = self.lead.held_back(self._server, place, commits_of(place, self._present_gate(), self.spec.rule))
        if held_back is not None and held_back != self.lead.reported:
            self.lead.reported = held_back
            yield Report(event=held_back)
        return held_back is not None

    def _apply(self, place: Place) -> Action:
        for transfer in place:
            transfer.state = TransferState.APPLYING
        head = place[0]
        if isinstance(head.transfer, UpdateId) and head.kind is UpdateKind.INITIAL:
            return InstallInitial(model=self.spec.name, update=head.transfer)
        return step_of(place, self._present_gate(), self.spec)

    def _gate(self, transfer: IncomingTransfer) -> Dropped | None:
        """Say why a transfer must not be applied to the present version, or None."""
        if transfer.kind is UpdateKind.INITIAL:
            taken = Dropped(cause=DropReason.DUPLICATE, detail="the model has weights already")
            return taken if self.initialised else None
        return next((refusal for _, refusal in refusals_of(transfer, self._present_gate(), self.applied)), None)

    def _present_gate(self) -> Gate:
        return Gate(
            version=self.version,
            began=self.began,
            is_part=self.spec.shard is not None,
            initialised=self.initialised,
            synchronous=self._synchronous,
        )

    # Ends

    def _turn_away(self, transfer: IncomingTransfer, refusal: Dropped) -> Iterator[Action]:
        """Drop an update for good, or refuse a sum whole: its members are planned again, each alone."""
        name = transfer.transfer
        if isinstance(name, SumId):
            yield from self._give_back(transfer, f"{refusal.cause.value}: {refusal.detail}")
            return
        self.applied.drop(name, refusal)
        yield from self._settle(transfer, {name: refusal})
        yield self._reports.ended(name, TransferEnd.DISCARDED, refusal.cause, refusal.detail)

    def _give_back(self, transfer: IncomingTransfer, detail: str) -> Iterator[Action]:
        """Let a transfer go that settles nobody; whoever planned a sum that is refused knows it, or else its members.

        A lone update is told of like a broken one, which the scheduler voids before it plans it again.
        """
        name = transfer.transfer
        yield from self._remove(transfer)
        if transfer.connection is not None:
            yield Refuse(connection=transfer.connection, reason=detail)
        if isinstance(name, SumId) and name.term >= self._term:
            yield self._reports.ended(name, TransferEnd.VOIDED, detail=detail)
            return
        for member in transfer.members:
            yield self._reports.ended(member.update, TransferEnd.BROKEN, detail=detail)

    def _settle(self, transfer: IncomingTransfer, outcomes: dict[UpdateId, Outcome]) -> Iterator[Action]:
        yield from self._remove(transfer)
        if transfer.connection is not None:
            yield Answer(
                connection=transfer.connection,
                outcomes=tuple((m.update, outcomes[m.update]) for m in transfer.members),
            )

    def _remove(self, transfer: IncomingTransfer) -> Iterator[Action]:
        self.incoming.remove(transfer)
        if transfer.holds_buffer:
            yield Forget(transfer=transfer.transfer)

    @property
    def lacks_copy(self) -> bool:
        """A get that is due waits because all copies of the weights are being sent."""
        return self.gets.lacks_copy

    def holds(self) -> ServerHolds:
        """Announce what is here, for a scheduler that may know nothing."""
        kept = sorted(self._here(), key=lambda t: t.seq)
        return ServerHolds(
            server=self._server,
            spec=self.spec,
            version=self.version,
            initialised=self.initialised,
            applied=self.applied.snapshot(),
            received=tuple(m.update for t in kept for m in t.members),
            epoch_base=self.began[-1].number,
            replica=self.lead.replica,
            earlier=self.began[:-1],
            samples=self.samples.counts(),
        )

    def _here(self) -> Place:
        """Return what is announced: it is here, or comes whoever is the scheduler."""
        transfers = self.incoming.transfers.values()
        return [t for t in transfers if t.is_complete or (t.holds_buffer and not t.is_sum)]

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        self.incoming.validate()
        self.samples.validate()
        self.gets.validate(self.version)
        for update in self.incoming.transfer_of:
            assert self.applied.outcome(update) is None, f"{update} is here though it was settled"
