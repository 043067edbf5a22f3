"""A scheduler's state machine on a stage: members join in one line, time is a number, reasons are left out of lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mlfabric.model.samples import Samples
from mlfabric.model.specs import Layout, Member, ModelSpec, Role, TensorSpec, Term
from mlfabric.protocol import (
    Commit,
    CommitsReported,
    DropReason,
    Expect,
    Expected,
    Following,
    GetId,
    GetRequested,
    InitialReceived,
    Instruction,
    LinkRate,
    LinksReported,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberSilent,
    ModelVersion,
    PushRequested,
    Send,
    Serve,
    ServerHolds,
    Tick,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
    WorkerHolds,
)
from mlfabric.scheduler.context import SEQ_BITS, SchedulerConfig, TicketMaker
from mlfabric.scheduler.state import SchedulerState
from mlfabric.scheduler.updates.pushes import Pushes

MS = 1_000_000
GIGABIT = 1_000_000_000
SECRET = b"sixteen bytes or"
LAYOUT = Layout((TensorSpec(name="w", shape=(250_000,), dtype="float32"),))  # 8 ms at 1 Gbit/s
SPEC = ModelSpec(name="net", layout=LAYOUT, tau_max=4)


def of(kind: type | tuple[type, ...], instructions: Iterable[Instruction]) -> list[Any]:
    """Return the instructions of a kind."""
    return [i for i in instructions if isinstance(i, kind)]


def ticket(number: int) -> bytes:
    """Return the ticket that the scheduler makes after ``number - 1`` others."""
    maker = TicketMaker(SECRET)
    return [maker.next() for _ in range(number)][-1]


def seq(number: int, epoch: int = 1) -> int:
    return (epoch << SEQ_BITS) + number


def bare(instructions: list[Instruction]) -> list[Instruction]:
    """Leave the reasons out, each must have one, and how long models are planned to take."""
    assert all(i.reason for i in instructions), instructions
    return [replace(i, reason="", span_ns=0) if isinstance(i, Serve) else replace(i, reason="") for i in instructions]


def member(name: str, role: Role, incarnation: int = 1, **fields) -> Member:
    plain = Member(name=name, role=role, incarnation=incarnation, host=f"h-{name}", up_bps=GIGABIT, down_bps=GIGABIT)
    return replace(plain, **fields)


class Stage:
    """One scheduler and the clock."""

    def __init__(self, term: int = 1, instance: int = 0, **settings) -> None:
        self.now_ns = 1000 * MS
        self.state = SchedulerState(SchedulerConfig(term=Term(term, instance), ticket_secret=SECRET, **settings))
        self.state.context.numbers.last_server_epoch = term - 1  # so that server epochs have short names

    @property
    def pushes(self) -> Pushes:
        return self.state.models["net"].pushes

    def tell(self, event: MemberEvent) -> list[Instruction]:
        """Hand over one event, check the invariants, return what follows."""
        instructions = self.state.handle(event, self.now_ns)
        self.state.validate()
        return bare(instructions)

    def tick(self) -> list[Instruction]:
        """Tick if the machine is due now."""
        due_ns = self.state.next_wakeup_ns(self.now_ns)
        return self.tell(Tick()) if due_ns is not None and due_ns <= self.now_ns else []

    def due_ms(self) -> float:
        """Return how long it takes until the machine is due."""
        due_ns = self.state.next_wakeup_ns(self.now_ns)
        assert due_ns is not None
        return (due_ns - self.now_ns) / MS

    def wait(self, ms: float) -> None:
        self.now_ns += round(ms * MS)

    def ask(self, event: MemberEvent) -> list[Instruction]:
        """Hand over an event and tick, as the shell does."""
        return self.tell(event) + self.tick()

    def ask_all(self, *events: MemberEvent) -> list[Instruction]:
        """Hand over events that come at one instant, and tick after them."""
        return [told for event in events for told in self.tell(event)] + self.tick()

    # Members

    def server(
        self, name: str = "s", incarnation: int = 1, held: tuple[ModelSpec, ...] = (), **fields
    ) -> list[Instruction]:
        fields.setdefault("server_epochs", (1,) * len(held))
        said = {field: fields.pop(field) for field in ("server_epochs", "succeeds", "machine_bytes") if field in fields}
        joins = member(name, Role.SERVER, incarnation, address=f"{name}:1", **fields)
        return self.tell(MemberJoined(member=joins, held=held, **said))

    def worker(self, name: str, incarnation: int = 1, spec: ModelSpec = SPEC, **fields) -> list[Instruction]:
        holds_initial = fields.pop("holds_initial", True)
        joins = member(name, Role.WORKER, incarnation, **fields)
        event = MemberJoined(member=joins, spec=spec, holds_initial=holds_initial)
        return self.tell(event)

    def aggregator(self, name: str, incarnation: int = 1, most_updates: int = 0, **fields) -> list[Instruction]:
        joins = member(name, Role.AGGREGATOR, incarnation, address=f"{name}:1", **fields)
        return self.tell(MemberJoined(member=joins, most_updates=most_updates))

    def monitor(self, name: str, host: str) -> list[Instruction]:
        return self.tell(MemberJoined(member=member(name, Role.MONITOR, host=host, address=f"{name}:9")))

    def replica(
        self, name: str = "r", incarnation: int = 1, address: str = "", is_seeded: bool = False, **bounds
    ) -> list[Instruction]:
        joins = member(name, Role.REPLICA, incarnation, address=address or f"{name}:1")
        return self.tell(MemberJoined(member=joins, follows=Following(server="s", is_seeded=is_seeded, **bounds)))

    def silent(self, name: str, incarnation: int = 1) -> list[Instruction]:
        return self.tell(MemberSilent(name=name, incarnation=incarnation))

    def left(self, name: str, incarnation: int = 1) -> list[Instruction]:
        return self.tell(MemberLeft(name=name, incarnation=incarnation, detail="done"))

    def lost(self, name: str, incarnation: int = 1, has_ended: bool = False) -> list[Instruction]:
        why = "its process is stopped"
        return self.tell(MemberLost(name=name, incarnation=incarnation, detail=why, has_ended=has_ended))

    def says(self, worker: str, *pushes: PushRequested, **fields) -> list[Instruction]:
        """Let a worker that has joined say what it holds."""
        return self.ask(WorkerHolds(worker=worker, pushes=pushes, gets=fields.pop("gets", ()), **fields))

    def rate(self, host: str, up: bool, bps: int) -> list[Instruction]:
        """Let a monitor report the rate of a link."""
        return self.ask(LinksReported(monitor="m", rates=(LinkRate(host=host, up=up, bps=bps, age_ns=0),)))

    def weights(self, version: int = 0, epoch: int = 1) -> list[Instruction]:
        """Let the server have initial weights."""
        return self.tell(InitialReceived(server="s", model="net", version=ModelVersion(epoch, version)))

    def trained(self, *workers: str, version: int = 0, spec: ModelSpec = SPEC, server: bool = True) -> Stage:
        """Let a server (if it has not joined yet) and workers join, with weights at a version."""
        if server:
            self.server()
        for name in workers:
            self.worker(name, spec=spec)
        self.weights(version)
        return self


def update(worker: str, counter: int = 0, incarnation: int = 1) -> UpdateId:
    return UpdateId(worker, incarnation, counter)


def push(worker: str, counter: int = 0, computed_from: int = 0, **fields) -> PushRequested:
    return PushRequested(
        update=update(worker, counter, fields.pop("incarnation", 1)),
        model="net",
        size_bytes=fields.pop("size_bytes", LAYOUT.size_bytes),
        computed_from=ModelVersion(1, computed_from),
        norm=fields.pop("norm", 1.0),
        **fields,
    )


def initial(worker: str, counter: int = 0) -> PushRequested:
    return replace(push(worker, counter), computed_from=ModelVersion(0, 0), kind=UpdateKind.INITIAL)


def get(worker: str, counter: int = 0, after: UpdateId | None = None) -> GetRequested:
    name = GetId(worker, 1, counter)
    return GetRequested(get=name, model="net", min_version=ModelVersion(0, 0), after_update=after)


def sent(request: PushRequested, number: int, made: int, rate_bps: int = 0) -> Send:
    """Return the Send for the ``number``-th seq and the ``made``-th ticket."""
    return Send(
        to=request.update.worker,
        update=request.update,
        receiver="s",
        address="s:1",
        seq=seq(number),
        ticket=ticket(made),
        rate_bps=rate_bps,
        reason="",
    )


def expected(request: PushRequested, number: int, made: int, after: tuple[UpdateId, ...] = (), tau_max=4) -> Expect:
    return Expect(
        to="s",
        transfer=request.update,
        members=(Expected(request.update, request.computed_from, request.resolved_below, request.norm),),
        model="net",
        seq=seq(number),
        ticket=ticket(made),
        size_bytes=request.size_bytes,
        tau_max=tau_max,
        kind=request.kind,
        after=after,
        reason="",
    )


def committed_together(*names: UpdateId, number: int) -> CommitsReported:
    """Return the report of a sum that made the version ``number`` and those before it."""
    commits = tuple(
        Commit(update=name, version=ModelVersion(1, number - len(names) + 1 + j), tau=j, lr=0.1, step_norm=1.0)
        for j, name in enumerate(names)
    )
    return CommitsReported(server="s", model="net", commits=commits)


def committed(name: UpdateId, number: int, tau: int = 0, epoch: int = 1, samples: Samples = ()) -> CommitsReported:
    version = ModelVersion(epoch, number)
    commit = Commit(update=name, version=version, tau=tau, lr=0.1, step_norm=1.0, samples=samples)
    return CommitsReported(server="s", model="net", commits=(commit,))


def ended(
    name: TransferId | GetId, end: TransferEnd, cause: DropReason | None = None, detail: str = "", by: str = "s"
) -> TransferEnded:
    return TransferEnded(member=by, model="net", transfer=name, end=end, cause=cause, detail=detail)


def holds(version: int, **fields) -> ServerHolds:
    spec = fields.pop("spec", SPEC)
    initialised = fields.pop("initialised", True)
    at = ModelVersion(fields.pop("epoch", 1), version)
    return ServerHolds(server="s", spec=spec, version=at, initialised=initialised, **fields)
