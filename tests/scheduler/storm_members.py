"""The members in a storm: as plain as can be, and as ready to break as the weather wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mlfabric.protocol import (
    AppliedIds,
    CancelSum,
    Commit,
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    DropReason,
    Expect,
    InitialReceived,
    Instruction,
    MemberJoined,
    MemberLeft,
    ModelVersion,
    Outcome,
    PushRequested,
    Resolve,
    Send,
    ServerHolds,
    Sum,
    SumId,
    TransferEnd,
    TransferId,
    UpdateId,
    Void,
    WorkerHolds,
)
from mlfabric.specs import Member, Role
from tests.scheduler.stage import LAYOUT, MS
from tests.scheduler.storm import Party, Storm

EARLY_NS = 500 * MS


class Receiver(Party):
    """Who is offered transfers, maybe before it was told of them."""

    def __init__(self, world: Storm, name: str) -> None:
        super().__init__(world, name)
        self.early: dict[bytes, tuple[TransferId, Party]] = {}

    def offered(self, transfer: TransferId, ticket: bytes, source: Party) -> None:
        if not self.take(transfer, ticket, source):
            self.early[ticket] = (transfer, source)
            self.world.at(self.world.now_ns + EARLY_NS, lambda: self.refuse(ticket))

    def take(self, transfer: TransferId, ticket: bytes, source: Party) -> bool:
        raise NotImplementedError

    def refuse(self, ticket: bytes) -> None:
        if (early := self.early.pop(ticket, None)) is not None:
            early[1].broke(early[0])

    def claim(self, ticket: bytes) -> None:
        if (early := self.early.pop(ticket, None)) is not None:
            self.offered(early[0], ticket, early[1])


class Server(Receiver):
    """Commits what is complete in the order of seq, each update once."""

    role = Role.SERVER

    def __init__(self, world: Storm) -> None:
        super().__init__(world, "s")
        self.epoch = 0
        self.expected: dict[TransferId, Expect] = {}
        self.sources: dict[TransferId, Party] = {}
        self.applied: dict[UpdateId, Committed | Dropped] = {}

    def joining(self, member: Member) -> MemberJoined:
        return MemberJoined(member=member, held=(self.world.spec,), server_epochs=(1,))

    def joined(self) -> None:
        if self.epoch < self.world.epoch:
            self.epoch = self.world.epoch
            for transfer in [t for t in self.expected if t not in self.sources]:
                del self.expected[transfer]
        received = [m.update for t in self.sources for m in self.expected[t].members]
        known = {u: o for u, o in self.applied.items() if isinstance(o, Committed)}
        ids = [
            AppliedIds(
                worker=worker,
                incarnation=1,
                low=0,
                recent=tuple((u.counter, o.version, o.tau) for u, o in known.items() if u.worker == worker),
            )
            for worker in sorted({u.worker for u in known})
        ]
        self.say(
            ServerHolds(
                server="s",
                spec=self.world.spec,
                version=ModelVersion(1, self.world.version),
                initialised=True,
                applied=tuple(ids),
                received=tuple(received),
            )
        )
        self.say(InitialReceived(server="s", model="net", version=ModelVersion(1, self.world.version)))

    def told(self, instruction: Instruction) -> None:
        match instruction:
            case Expect():
                self._expect(instruction)
            case Void() if instruction.transfer in self.sources:
                pass
            case Void() if isinstance(instruction.transfer, UpdateId) and instruction.transfer in self.applied:
                self._report_again(instruction.transfer)
            case Void():
                self.expected.pop(instruction.transfer, None)
                self.ended(instruction.transfer, TransferEnd.VOIDED)

    def _expect(self, order: Expect) -> None:
        mine = {m.update for m in order.members}
        if isinstance(order.transfer, UpdateId) and order.transfer in self.applied:
            self._report_again(order.transfer)
            return
        for other in [
            t for t, e in self.expected.items() if t != order.transfer and mine & {m.update for m in e.members}
        ]:
            if other in self.sources:
                self.ended(order.transfer, TransferEnd.VOIDED)
                return
            del self.expected[other]
            self.ended(other, TransferEnd.VOIDED)
        self.expected[order.transfer] = order
        self.claim(order.ticket)
        self._advance()

    def _report_again(self, update: UpdateId) -> None:
        outcome = self.applied[update]
        if isinstance(outcome, Dropped):
            self.ended(update, TransferEnd.DISCARDED, outcome.cause)
            return
        commit = Commit(update=update, version=outcome.version, tau=outcome.tau, lr=0.1, step_norm=1.0)
        self.say(CommitsReported(server="s", model="net", commits=(commit,)))

    def take(self, transfer: TransferId, ticket: bytes, source: Party) -> bool:
        if isinstance(transfer, UpdateId) and (outcome := self.applied.get(transfer)) is not None:
            source.learnt(transfer, {transfer: outcome})
            return True
        order = self.expected.get(transfer)
        if order is None or order.ticket != ticket:
            return False
        self.sources[transfer] = source
        self.ended(transfer, TransferEnd.RECEIVED)
        self._advance()
        return True

    def blows(self) -> list[Callable[[], None]]:
        return [self.fall_silent, self.break_some]

    def break_some(self) -> None:
        """Lose the connection of a transfer that is still to come."""
        coming = [t for t in self.expected if t not in self.sources]
        if coming:
            transfer = self.world.random.choice(coming)
            del self.expected[transfer]
            self.ended(transfer, TransferEnd.BROKEN)

    def _advance(self) -> None:
        while self.expected:
            transfer, order = min(self.expected.items(), key=lambda e: e[1].seq)
            if transfer not in self.sources:
                return
            del self.expected[transfer]
            self._commit(order, self.sources.pop(transfer))

    def _commit(self, order: Expect, source: Party) -> None:
        taus = [self.world.version + j - m.computed_from.number for j, m in enumerate(order.members)]
        fits = all(0 <= tau <= order.tau_max for tau in taus)
        if fits and not any(m.update in self.applied for m in order.members):
            commits = []
            for member, tau in zip(order.members, taus, strict=True):
                self.world.version += 1
                outcome = Committed(version=ModelVersion(1, self.world.version), tau=tau)
                self.applied[member.update] = outcome
                commits.append(Commit(update=member.update, version=outcome.version, tau=tau, lr=0.1, step_norm=1.0))
            self.say(CommitsReported(server="s", model="net", commits=tuple(commits)))
            source.learnt(order.transfer, {m.update: self.applied[m.update] for m in order.members})
        elif isinstance(order.transfer, SumId):
            self.ended(order.transfer, TransferEnd.VOIDED)
            source.broke(order.transfer)
        elif order.transfer not in self.applied:
            dropped = self.applied[order.transfer] = Dropped(cause=DropReason.DELAY_BOUND)
            self.ended(order.transfer, TransferEnd.DISCARDED, DropReason.DELAY_BOUND)
            source.learnt(order.transfer, {order.transfer: dropped})


class Aggregator(Receiver):
    """Adds up what comes and passes it on once all of it is here."""

    role = Role.AGGREGATOR

    def __init__(self, world: Storm, name: str) -> None:
        super().__init__(world, name)
        self.sums: dict[SumId, Sum] = {}
        self.here: dict[SumId, dict[TransferId, Party]] = {}
        self.epoch = 0

    def joined(self) -> None:
        if self.epoch < self.world.epoch:
            self.epoch = self.world.epoch
            self._lose_all()

    def told(self, instruction: Instruction) -> None:
        match instruction:
            case Sum() if instruction.sum not in self.sums:
                self.sums[instruction.sum], self.here[instruction.sum] = instruction, {}
                for given in instruction.inputs:
                    self.claim(given.ticket)
            case CancelSum():
                self._lose(instruction.sum)

    def take(self, transfer: TransferId, ticket: bytes, source: Party) -> bool:
        for name, order in self.sums.items():
            if (transfer, ticket) in {(i.transfer, i.ticket) for i in order.inputs}:
                if isinstance(source, Worker) and source.spoilt == transfer:
                    self.ended(transfer, TransferEnd.DISCARDED, DropReason.NOT_FINITE)
                    source.learnt(transfer, {transfer: Dropped(cause=DropReason.NOT_FINITE)})
                    self._lose(name)
                    self.ended(name, TransferEnd.TORN)
                    return True
                self.here[name][transfer] = source
                self.ended(transfer, TransferEnd.RECEIVED)
                if len(self.here[name]) == len(order.inputs):
                    self.world.later(1, self.world.slowest_ms, partial(self._pass_on, order))
                return True
        return False

    def _pass_on(self, order: Sum) -> None:
        receiver = self.world.members[order.receiver]
        assert isinstance(receiver, Receiver)
        if order.sum in self.sums:
            receiver.offered(order.sum, order.ticket, self)

    def blows(self) -> list[Callable[[], None]]:
        return [self.fall_silent, self.tear_some, self.die]

    def tear_some(self) -> None:
        if self.sums:
            name = self.world.random.choice(list(self.sums))
            self._lose(name)
            self.ended(name, TransferEnd.TORN)

    def die(self) -> None:
        if self.session is None:
            return
        left = MemberLeft(name=self.name, incarnation=self.incarnation, detail="storm")
        self.incarnation += 1
        self.session = None
        self._lose_all()
        for ticket in list(self.early):
            self.refuse(ticket)
        self.world.hear(left)
        self.world.later(1, 200, self.join)

    def _lose_all(self) -> None:
        for name in list(self.sums):
            self._lose(name)

    def _lose(self, name: SumId) -> None:
        order = self.sums.pop(name, None)
        if order is not None:
            for transfer, source in self.here.pop(name).items():
                source.broke(transfer)

    def broke(self, transfer: TransferId) -> None:
        if isinstance(transfer, SumId) and transfer in self.sums:
            self._lose(transfer)
            self.ended(transfer, TransferEnd.TORN)

    def learnt(self, transfer: TransferId, outcomes: dict[UpdateId, Outcome]) -> None:
        if not isinstance(transfer, SumId) or transfer not in self.sums:
            return
        del self.sums[transfer]
        for given, source in self.here.pop(transfer).items():
            source.learnt(given, outcomes)


class Worker(Party):
    """Pushes one update after the other, and asks again when an attempt broke."""

    role = Role.WORKER

    def __init__(self, world: Storm, name: str, updates: int) -> None:
        super().__init__(world, name)
        self.left = updates
        self.counter = 0
        self.open: dict[UpdateId, PushRequested] = {}
        self.attempt: bytes | None = None
        self.next: Send | None = None
        self.spoilt: UpdateId | None = None
        self.outcomes: dict[UpdateId, Outcome] = {}

    @property
    def is_done(self) -> bool:
        return not self.left and not self.open

    def joining(self, member: Member) -> MemberJoined:
        return MemberJoined(member=member, spec=self.world.spec, holds_initial=True)

    def joined(self) -> None:
        self.say(WorkerHolds(worker=self.name, pushes=tuple(self.open.values()), gets=()))
        if not self.open:
            self._push()

    def _push(self) -> None:
        if not self.left or self.open or self.session is None:
            return
        self.left -= 1
        name = UpdateId(self.name, 1, self.counter)
        self.counter += 1
        request = PushRequested(
            update=name,
            model="net",
            size_bytes=LAYOUT.size_bytes,
            computed_from=ModelVersion(1, self.world.version),
            norm=1.0,
            resolved_below=name.counter,
        )
        self.open[name] = request
        self.say(request)

    def blows(self) -> list[Callable[[], None]]:
        return [self.fall_silent, self.spoil]

    def spoil(self) -> None:
        """Make the open update one that is not finite."""
        self.spoilt = next(iter(self.open), None)

    def told(self, instruction: Instruction) -> None:
        match instruction:
            case Send() if instruction.update in self.open:
                if self.attempt is None:
                    self._send(instruction)
                elif self.attempt != instruction.ticket:
                    self.next = instruction
            case Drop() | Resolve():
                outcome = instruction.outcome if isinstance(instruction, Resolve) else Dropped(cause=instruction.cause)
                self.learnt(instruction.update, {instruction.update: outcome})

    def _send(self, order: Send) -> None:
        self.attempt = order.ticket
        receiver = self.world.members[order.receiver]
        assert isinstance(receiver, Receiver)
        self.world.later(1, self.world.slowest_ms, lambda: self._arrive(order, receiver))

    def _arrive(self, order: Send, receiver: Receiver) -> None:
        if self.attempt == order.ticket and order.update in self.open:
            if self.world.random.random() < self.world.broken:
                self.broke(order.update)
            else:
                receiver.offered(order.update, order.ticket, self)

    def broke(self, transfer: TransferId) -> None:
        if transfer not in self.open or self.attempt is None:
            return
        self.attempt, following, self.next = None, self.next, None
        if following is not None:
            self._send(following)
        else:
            self.world.later(20, 40, self._ask_again)

    def _ask_again(self) -> None:
        if self.attempt is None:
            for request in self.open.values():
                self.say(request)

    def learnt(self, transfer: TransferId, outcomes: dict[UpdateId, Outcome]) -> None:
        assert isinstance(transfer, UpdateId)
        if self.open.pop(transfer, None) is not None:
            self.outcomes[transfer] = outcomes[transfer]
            self.attempt, self.next = None, None
            self.world.later(0, 30, self._push)


def lost(workers: Iterable[Worker], server: Server) -> list[UpdateId]:
    """Return the updates of which worker and server do not think the same."""
    return [
        name
        for worker in workers
        for name, outcome in worker.outcomes.items()
        if isinstance(outcome, Committed) != isinstance(server.applied.get(name), Committed)
    ]
