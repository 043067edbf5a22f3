"""The scheduler's shell: gRPC in and out, the clock, timers. Decides nothing.

All that arrives within one turn of the event loop is taken in first and planned together after it; all instructions
for one member that follow leave in one message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from mlfabric import clock, wire
from mlfabric.errors import FencedError, UsageError
from mlfabric.model.specs import Member, Role
from mlfabric.protocol import (
    Instruction,
    JobHeld,
    JobReleased,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberSilent,
    ModelRemoved,
    MonitorAt,
    Refuse,
    RefuseReason,
    TermShown,
    Tick,
    Welcome,
)
from mlfabric.scheduler.members import entry
from mlfabric.scheduler.members.job_calls import JobCalls
from mlfabric.scheduler.members.pulse_socket import Datagrams, Listener
from mlfabric.scheduler.members.silence import Found, LostBy
from mlfabric.scheduler.members.terms import Verdict
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.state import SchedulerState
from mlfabric.scheduler.status import add_history, describe
from mlfabric.security import Identity
from mlfabric.security.tokens import new_token, same_token, token_at
from mlfabric.telemetry.log_lines import about
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2

__all__ = ["FabricService"]

_Context = grpc.aio.ServicerContext[Any, Any]
_SESSION_WITHIN_S = 10.0
_LARGEST_EVENT_BYTES = 64 * 1024
_LONG_EVENTS = frozenset(
    {
        *{"server_holds", "worker_holds", "commits_reported", "replica_reported"},
        *{"samples_dropped", "samples_wanted", "samples_reported", "links_reported"},
    }
)
_BY_ALL = frozenset({"memory_reported", "member_left"})
_BY_ENDS = _BY_ALL | {"transfer_ended"}
_SPOKEN_BY = {
    Role.WORKER: _BY_ENDS
    | {"push_requested", "get_requested", "worker_holds", "not_kept", "samples_dropped", "samples_wanted"}
    | {"reduce_requested", "round_arrived", "round_broken", "round_slow", "round_kept", "state_arrived"}
    | {"state_broken", "link_probed", "steps_timed"},
    Role.SERVER: _BY_ENDS
    | {"server_holds", "initial_received", "commits_reported", "samples_reported", "model_freed"}
    | {"held_back", "prepared"},
    Role.AGGREGATOR: _BY_ENDS,
    Role.REPLICA: _BY_ENDS | {"replica_reported", "not_kept", "model_freed"},
    Role.MONITOR: _BY_ALL | {"links_reported"},
}
"""What each role may say: of pushes, gets and models, of rounds; of models, of what holds commits up."""
_TOLD_FIRST = (Role.REPLICA, Role.SERVER, Role.AGGREGATOR, Role.WORKER, Role.MONITOR)
_STATUS = {
    RefuseReason.NAME_TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    RefuseReason.LAYOUT_DIFFERS: grpc.StatusCode.INVALID_ARGUMENT,
    RefuseReason.OPTIONS_DIFFER: grpc.StatusCode.INVALID_ARGUMENT,
    RefuseReason.PROTOCOL_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    RefuseReason.OUT_OF_RANGE: grpc.StatusCode.INVALID_ARGUMENT,
    RefuseReason.NOT_YET: grpc.StatusCode.FAILED_PRECONDITION,
    RefuseReason.NOT_ITS_OWN: grpc.StatusCode.PERMISSION_DENIED,
    RefuseReason.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefuseReason.FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    RefuseReason.SUPERSEDED: grpc.StatusCode.ABORTED,
    RefuseReason.OTHER_JOB: grpc.StatusCode.ALREADY_EXISTS,
}


@dataclass(slots=True)
class _Seat:
    """A member's place in the shell: its token and certificate, and what is to be sent to it."""

    member: Member
    token: bytes
    caller: Identity | None = None
    outbox: list[session_pb2.Instruction] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    opened: bool = False
    closed: bool = False
    refusal: tuple[grpc.StatusCode, str] | None = None
    task: asyncio.Task[Any] | None = None

    def take(self) -> list[session_pb2.Instruction]:
        """Empty the outbox."""
        instructions, self.outbox = self.outbox, []
        return instructions

    def close(self) -> None:
        """End the session that keeps this place."""
        self.closed = True
        self.wake.set()


@dataclass(slots=True)
class _Ending:
    """See ``FabricService._ending``; it is entered for every event, so it is no generator."""

    end: Callable[[Exception], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.end(error)


class FabricService(fabric_pb2_grpc.FabricServiceServicer):
    """Carries out the scheduler's side of the wire contract.

    Args:
        state: the state machine; nobody else may touch it.
        meter: counts what is decided.
        renew: makes a state machine of a term greater than this one, if members have seen that.
        pulses: where signs of life arrive; None hears none.

    Attributes:
        failed: gets the exception when the state machine has broken one of its invariants, or was fenced off.
    """

    def __init__(
        self,
        state: SchedulerState,
        meter: Meter,
        renew: Callable[[int], SchedulerState],
        pulses: Datagrams | None = None,
    ) -> None:
        self._state = state
        self._renew = renew
        self._meter = meter
        self._seats: dict[str, _Seat] = {}
        self._term = state.context.config.term.number
        self._limits = state.context.config.limits
        self._timer: asyncio.TimerHandle | None = None
        self._settling = False
        self._torn: dict[str, str] = {}
        self._jobs = JobCalls(lambda: self._state, self._take_in_from_people)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = logging.getLogger("mlfabric.scheduler")
        self._listener = Listener(pulses, self._lose, self._ending)

    def close(self) -> None:
        """Listen for nobody any more."""
        self._listener.close()

    # Events in, instructions out

    def _take_in(self, event: MemberEvent) -> list[Instruction]:
        """Hand an event to the state machine, pass on what follows, plan at the end of this turn."""
        with self._ending():
            instructions = self._meter.handle(self._state, event, clock.monotonic_ns())
            if self._log.isEnabledFor(logging.DEBUG):
                self._log_decisions(instructions)
            self._post(instructions)
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)
        return instructions

    def _ending(self) -> _Ending:
        """Let what the block raises end the process, and not only the call that met it."""
        return _Ending(self._end)

    def _settle(self) -> None:
        """Tick if the state machine is due, and set the timer for when it will be."""
        self._settling = False
        with self._ending():
            self._go_on()

    def _go_on(self) -> None:
        if self._state.verdict is not Verdict.STAYS:
            self._give_way()
        self._log_what_is_torn()
        due_ns = self._state.next_wakeup_ns(clock.monotonic_ns())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is None:
            return
        wait_ns = due_ns - clock.monotonic_ns()
        if wait_ns <= 0:
            self._take_in(Tick())
        else:
            self._timer = asyncio.get_running_loop().call_later(wait_ns / 1e9, self._take_in, Tick())

    def _give_way(self) -> None:
        """Begin anew above the term that a member has shown; end if another scheduler is in office."""
        own, seen = self._term, self._state.seen.number
        if self._state.verdict is Verdict.RISES:
            try:
                self._state = self._renew(seen)
            except UsageError as error:
                self._end(error)
                return
            self._term = self._state.context.config.term.number
            self.recall(f"a member has seen term {seen}: going on as term {self._term} instead of {own}")
        else:
            self._end(FencedError(f"term {own} has been succeeded by term {seen}; this one ends"))
            self.recall("it has been succeeded")

    def _end(self, error: Exception) -> None:
        """Let the process end with this error, unless it ends already."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def recall(self, reason: str) -> None:
        """End all sessions; members come back by themselves, and show the newest scheduler that they have seen."""
        self._log.warning("ending %s sessions: %s", len(self._seats), reason)
        for seat in self._seats.values():
            seat.close()
        self._jobs.recall()

    def _log_decisions(self, instructions: Iterable[Instruction]) -> None:
        for told in instructions:
            self._log.debug("%s: %s: %s", told.to, type(told).__name__, told.reason, extra=about(told))

    def _log_what_is_torn(self) -> None:
        for name, whole in self._state.wholes.items():
            if whole.torn and whole.torn != self._torn.get(name):
                self._log.error("%s", whole.torn)
            self._torn[name] = whole.torn

    def _post(self, instructions: Iterable[Instruction]) -> None:
        """Put instructions into outboxes; receivers are told first, so that they are ready when a sender comes."""
        told: dict[str, _Seat] = {}
        for instruction in instructions:
            seat = self._seats.get(instruction.to)
            if seat is not None and not isinstance(instruction, (Welcome, Refuse)):
                if len(seat.outbox) >= self._limits.outbox:
                    self._shut_out(instruction.to, seat)
                    continue
                full = self._with_token(instruction) if isinstance(instruction, MonitorAt) else instruction
                seat.outbox.append(wire.to_instruction(full))
                told[instruction.to] = seat
        for seat in sorted(told.values(), key=_rank_of) if told else ():
            seat.wake.set()

    def _with_token(self, order: MonitorAt) -> MonitorAt:
        return replace(order, token=self._token_at(order.address, order.to))

    def _token_at(self, address: str, member: str) -> bytes:
        """Return what a member shows to the monitor at an address; empty if there is none."""
        monitors = [seat for seat in self._seats.values() if seat.member.role is Role.MONITOR]
        keys = (seat.token for seat in monitors if seat.member.address == address)
        return next((token_at(key, member) for key in keys), b"")

    # Registration

    async def RegisterAsWorker(
        self, request: fabric_pb2.RegisterAsWorkerRequest, context: _Context
    ) -> fabric_pb2.RegisterAsWorkerResponse:
        """Admit a worker and the model that it trains."""
        async with _usage(context):
            event = MemberJoined(
                member=wire.from_member(request.member, Role.WORKER),
                spec=wire.from_spec(request.model),
                holds_initial=request.holds_initial,
                job=wire.from_claim(request.job),
            )
        return fabric_pb2.RegisterAsWorkerResponse(admission=await self._admit(event, context))

    async def RegisterAsServer(
        self, request: fabric_pb2.RegisterAsServerRequest, context: _Context
    ) -> fabric_pb2.RegisterAsServerResponse:
        """Admit a server and the models that it holds already."""
        async with _usage(context):
            event = MemberJoined(
                member=wire.from_member(request.member, Role.SERVER),
                held=tuple(wire.from_spec(spec) for spec in request.models),
                server_epochs=wire.from_server_epochs(request),
                promoted=request.promoted,
                succeeds=request.succeeds,
                keeps=request.keeps,
                machine_bytes=request.machine_bytes,
            )
        return fabric_pb2.RegisterAsServerResponse(admission=await self._admit(event, context, request.promoted_token))

    async def RegisterAsMonitor(
        self, request: fabric_pb2.RegisterAsMonitorRequest, context: _Context
    ) -> fabric_pb2.RegisterAsMonitorResponse:
        """Admit a monitor."""
        async with _usage(context):
            event = MemberJoined(member=wire.from_member(request.member, Role.MONITOR))
        return fabric_pb2.RegisterAsMonitorResponse(admission=await self._admit(event, context))

    async def RegisterAsReplica(
        self, request: fabric_pb2.RegisterAsReplicaRequest, context: _Context
    ) -> fabric_pb2.RegisterAsReplicaResponse:
        """Admit a replica."""
        async with _usage(context):
            event = MemberJoined(
                member=wire.from_member(request.member, Role.REPLICA), follows=wire.from_following(request)
            )
        return fabric_pb2.RegisterAsReplicaResponse(admission=await self._admit(event, context))

    async def RegisterAsAggregator(
        self, request: fabric_pb2.RegisterAsAggregatorRequest, context: _Context
    ) -> fabric_pb2.RegisterAsAggregatorResponse:
        """Admit an aggregator."""
        async with _usage(context):
            event = MemberJoined(
                member=wire.from_member(request.member, Role.AGGREGATOR), most_updates=request.most_updates
            )
        return fabric_pb2.RegisterAsAggregatorResponse(admission=await self._admit(event, context))

    async def _admit(self, event: MemberJoined, context: _Context, heir_token: bytes = b"") -> fabric_pb2.Admission:
        """Admit who registers; ``heir_token`` is that of the replica which a server was until now."""
        name, caller = event.member.name, await entry.may_join(event, context)
        if event.promoted and self._seat_of(event.promoted, heir_token, caller) is None:
            why = f"waiting for replica {event.promoted!r}, which is to take the place of {name}, and nobody else"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        if self._listener.is_stopped(event.member):
            why = f"waiting for a process of {name}, which is stopped"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        former = self._seats.get(name)
        if former is not None and _is_impostor(event.member, former.member):
            why = f"{name!r} is taken by another process; choose another name or stop that one"
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, why)
        seat = self._seats[name] = _Seat(event.member, new_token(), caller)
        answer = next(a for a in self._take_in(event) if isinstance(a, (Welcome, Refuse)))
        if isinstance(answer, Refuse):
            del self._seats[name]
            if former is not None:
                self._seats[name] = former
            self._log.info("refused %s: %s", name, answer.reason)
            await context.abort(_STATUS[answer.cause], answer.reason)
        if former is not None:
            former.close()
        self._listener.watch(event.member)
        asyncio.get_running_loop().call_later(_SESSION_WITHIN_S, self._give_up, name, seat)
        self._log.info("%s %s: %s", event.member.role.value, event.member.name, answer.reason)
        welcome = replace(answer, monitor_token=self._token_at(answer.monitor_address, name))
        return wire.to_admission(welcome, seat.token, self._listener.port)

    # Sessions

    async def Session(
        self, request_iterator: AsyncIterator[fabric_pb2.SessionRequest], context: _Context
    ) -> AsyncIterator[fabric_pb2.SessionResponse]:
        """Keep a member's stream: its events in, its instructions out."""
        try:
            async with asyncio.timeout(_SESSION_WITHIN_S):
                hello = await anext(request_iterator, None)
        except TimeoutError:
            waited = f"nothing was said on this session for {_SESSION_WITHIN_S} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"{waited}; begin with a name and its token")
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        hello = hello or fabric_pb2.SessionRequest()
        name, caller = hello.member, await entry.caller(context)
        seat = self._seat_of(name, hello.session_token, caller)
        if seat is None:
            detail = f"no registration of {name!r} under this token; register first"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, detail)
        seat.opened, seat.task = True, asyncio.current_task()
        self._take_in_all(name, seat, hello)
        reader = asyncio.create_task(self._read(name, seat, request_iterator))
        try:
            while not seat.closed:
                await seat.wake.wait()
                seat.wake.clear()
                if seat.outbox:
                    yield fabric_pb2.SessionResponse(term=self._term, instructions=seat.take())
            if seat.refusal is not None:
                await context.abort(*seat.refusal)  # here only: while the stream is written to, a status may be lost
        finally:
            reader.cancel()
            self._vacate(name, seat)

    def _seat_of(self, name: str, token: bytes, caller: Identity | None) -> _Seat | None:
        """Return the place of a member if who speaks in its name has its token, and registered it; else None."""
        seat = self._seats.get(name)
        return seat if seat is not None and same_token(seat.token, token) and seat.caller == caller else None

    def _give_up(self, name: str, seat: _Seat) -> None:
        """Do not wait any longer for the session of a member that has only registered."""
        if not seat.opened:
            self._vacate(name, seat)

    def _shut_out(self, name: str, seat: _Seat) -> None:
        """End the session of a member that does not read what it is told; when it comes back it is told anew."""
        if seat.closed:
            return
        self._log.warning("%s does not read what it is told: %s instructions wait", name, len(seat.outbox))
        seat.close()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._vacate, name, seat)
        if seat.task is not None:
            loop.call_soon(seat.task.cancel)  # its stream may be waiting for the member to read

    def _lose(self, found: Found, incarnation: int) -> None:
        """End the session of a member that does not answer any more; it may join again."""
        seat = self._seats.pop(found.member, None)
        self._log.warning("%s is waited for no longer: %s", found.member, found.cause.value)
        self._meter.metrics.lost(found.cause.name.lower())
        event = MemberLost(
            name=found.member,
            incarnation=incarnation,
            detail=found.cause.value,
            has_ended=found.cause is LostBy.ENDED,
        )
        self._take_in(event)
        if seat is not None:
            seat.close()

    def _vacate(self, name: str, seat: _Seat) -> None:
        if self._seats.get(name) is seat:
            del self._seats[name]
            self._take_in(MemberSilent(name=name, incarnation=seat.member.incarnation))

    async def _read(self, name: str, seat: _Seat, requests: AsyncIterator[fabric_pb2.SessionRequest]) -> None:
        try:
            async for request in requests:
                self._take_in_all(name, seat, request)
        except DecodeError as error:
            self._refuse(seat, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            seat.close()

    def _refuse(self, seat: _Seat, status: grpc.StatusCode, detail: str) -> None:
        """End a session for what its member said; soon, also if the member does not read."""
        seat.refusal = seat.refusal or (status, detail)
        seat.close()
        if seat.task is not None:
            asyncio.get_running_loop().call_later(_SESSION_WITHIN_S, seat.task.cancel)

    def _take_in_all(self, name: str, seat: _Seat, request: fabric_pb2.SessionRequest) -> None:
        """Take in what a member says, up to the first event that is refused."""
        spoken = _SPOKEN_BY[seat.member.role]
        try:
            for message in request.events:
                if seat.closed:  # another session of this member has begun; what this one still says is too late
                    return
                which = message.WhichOneof("event")
                if which is not None and which not in spoken:
                    role = seat.member.role
                    article = "an" if role is Role.AGGREGATOR else "a"
                    said = f"{name}: {article} {role.value} said {which}"
                    raise UsageError(f"{said}; allowed: {', '.join(sorted(spoken))}")
                if which not in _LONG_EVENTS and message.ByteSize() > _LARGEST_EVENT_BYTES:
                    given = f"{name}: {which} of {message.ByteSize()} bytes"
                    detail = f"{given}; allowed: up to {_LARGEST_EVENT_BYTES}"
                    return self._refuse(seat, grpc.StatusCode.RESOURCE_EXHAUSTED, detail)
                if which == "member_left":
                    self._say_goodbye(name, seat, message.member_left)
                    return
                event = wire.from_event(message, name)
                refusal = self._state.refusal(event)
                if refusal is not None:
                    return self._refuse(seat, _STATUS[refusal[0]], refusal[1])
                self._take_in(event)
        except UsageError as error:
            self._refuse(seat, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _say_goodbye(self, name: str, seat: _Seat, left: session_pb2.MemberLeft) -> None:
        del self._seats[name]
        self._listener.forget(name)
        incarnation = seat.member.incarnation
        if left.failed:
            self._log.error("%s cannot go on: %s", name, left.detail)
            self._take_in(MemberLost(name=name, incarnation=incarnation, detail=left.detail, has_ended=True))
        else:
            self._log.info("%s left: %s", name, left.detail)
            self._take_in(MemberLeft(name=name, incarnation=incarnation, detail=left.detail))
        seat.close()

    # Single calls: in nobody's name

    async def ShowTerm(self, request: fabric_pb2.ShowTermRequest, context: _Context) -> fabric_pb2.ShowTermResponse:
        """Take in the newest scheduler that a member has seen; tell which this is."""
        await entry.check_is_member(context)
        own = self._state.context.config.term
        async with _usage(context):
            event = TermShown(seen=wire.from_term(request.seen))
        self._take_in(event)
        return fabric_pb2.ShowTermResponse(own=wire.to_term(own))

    async def HoldJob(
        self, request: fabric_pb2.HoldJobRequest, context: _Context
    ) -> AsyncIterator[fabric_pb2.HoldJobResponse]:
        """Name a job, and let it go on for as long as the stream stands."""
        async with contextlib.aclosing(self._jobs.hold(request, context)) as responses:
            async for response in responses:
                yield response

    async def RemoveModel(
        self, request: fabric_pb2.RemoveModelRequest, context: _Context
    ) -> fabric_pb2.RemoveModelResponse:
        """End a model that nobody trains."""
        return await self._jobs.remove(request, context)

    def _take_in_from_people(self, event: JobHeld | JobReleased | ModelRemoved) -> None:
        if not self.failed.done():
            self._take_in(event)

    async def GetStatus(self, request: fabric_pb2.GetStatusRequest, context: _Context) -> fabric_pb2.GetStatusResponse:
        """Describe the fabric."""
        status = describe(self._state, self._meter, clock.monotonic_ns(), all_samples=request.all_samples)
        if request.HasField("history_since") and self._meter.journal is not None:
            add_history(status, self._meter.journal, request.history_since)
        return status


def _rank_of(seat: _Seat) -> int:
    return _TOLD_FIRST.index(seat.member.role)


def _is_impostor(member: Member, former: Member) -> bool:
    """Tell whether who registers gives itself out for a process that is here, and cannot have its key."""
    is_same = member.incarnation == former.incarnation
    return is_same and bool(former.pulse_key) and not same_token(former.pulse_key, member.pulse_key)


@contextlib.asynccontextmanager
async def _usage(context: _Context) -> AsyncIterator[None]:
    """Answer a malformed message with INVALID_ARGUMENT."""
    try:
        yield
    except UsageError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
