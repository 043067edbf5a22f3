"""A member's session with the scheduler: registers, keeps the stream, begins again when it breaks.

Shell-level, shared by every kind of member. What is sent while there is no session is forgotten on purpose: after each
admission the member announces what it holds, and that says everything (design, section 6).

Several schedulers may be given, of which one is in office: they are tried in turn. A member shows the newest that has
admitted it to all others, now and then, so that an older one which is still there ends. It follows none that is older
than that, and goes to one that is newer.

While there is a scheduler that hears them, signs of life are sent to it from beside this process (``mlfabric/pulse``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import grpc

from mlfabric import clock, pulse, wire
from mlfabric.addresses import split_address
from mlfabric.errors import RefusedError
from mlfabric.fail_stop import described
from mlfabric.model.specs import Member, Role, Term
from mlfabric.protocol import Instruction, MemberEvent, Welcome
from mlfabric.security import LOOPBACK, Security
from mlfabric.shell.scheduler_link import GrpcLink, SchedulerLink
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2

__all__ = ["Register", "SchedulerSession", "SessionCallbacks", "nothing"]

RETRY_S = 0.1
WATCH_S = 5.0
"""So often the other schedulers are shown which is the newest."""
ANSWER_S = 10.0
"""A scheduler that takes longer to admit a member hangs; the next one is tried."""
WAIT_NOTICE_S = 5.0
STARTING_S = 1.5
"""So long a member waits without a word: what is started together with its scheduler may well be here first."""
STARTED_S = 30.0
"""So long a service that was never in may wait, without that being worth a warning: its scheduler is being started."""
LEAVE_S = 2.0
"""So long a member that leaves waits until the scheduler has heard it."""
LONGEST_DETAIL = 4096
_NOT_NOW = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
_WAIT_FOR = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # What calls end with whose scheduler ends, or fails, while it answers them.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    *_NOT_NOW,
)

Register: TypeAlias = "Callable[[fabric_pb2_grpc.FabricServiceAsyncStub], Awaitable[fabric_pb2.Admission]]"
"""Registers by one of the RegisterAs... calls and returns the admission."""


def nothing() -> None:
    """Do nothing on an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCallbacks:
    """What a member does on its session's events.

    Args:
        admitted: called at each admission; returns the events that announce what the member holds.
        instructed: called with every instruction, in order.
    """

    admitted: Callable[[Welcome], Iterable[MemberEvent]]
    instructed: Callable[[Instruction], None]


class SchedulerSession:
    """One member's session.

    Args:
        scheduler: ``host:port`` of the scheduler, or of several, joined by commas.
        member: who registers.
        register: how.
        callbacks: see there.
        security: of this member.
        link: what carries its calls and signs of life.

    Attributes:
        token: what shows that this member speaks; drawn anew by the scheduler at each admission.
    """

    def __init__(
        self,
        scheduler: str,
        member: Member,
        register: Register,
        callbacks: SessionCallbacks,
        security: Security = LOOPBACK,
        link: SchedulerLink | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.member = replace(member, pulse_key=secrets.token_bytes(pulse.KEY_BYTES))
        self._register = register
        self._callbacks = callbacks
        self._security = security
        self._link = link or GrpcLink()
        self._was_in = False
        self._call: grpc.aio.StreamStreamCall[fabric_pb2.SessionRequest, fabric_pb2.SessionResponse] | None = None
        self._opened_ns = 0
        self._outbox: list[session_pb2.Event] = []
        self._wake = asyncio.Event()
        self._open = False
        self._leaving = False
        self._ended = asyncio.Event()
        self._log = logging.getLogger(f"mlfabric.{member.role.value}")
        self._noticed = ""
        self._noticed_s = 0.0
        self._level = logging.WARNING
        self._waits_since_s: float | None = None
        self._addresses = scheduler.split(",")
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._moving_to = ""
        self.token = b""

    @property
    def addresses(self) -> str:
        """The schedulers' addresses as they were given, beginning with that of the one which is followed."""
        return ",".join(self._addresses)

    @property
    def is_open(self) -> bool:
        """Tell whether the stream is up."""
        return self._open

    def send(self, event: MemberEvent) -> None:
        """Send an event in order; without a session it is forgotten (see the header)."""
        if self._open:
            self._outbox.append(wire.to_event(event))
            self._wake.set()

    async def run(self) -> None:
        """Register and keep the stream until cancelled or left.

        Raises:
            RefusedError: the scheduler refuses this member for good, or TLS between the two has never been and cannot
                be; says why.
            UsageError: the scheduler's address is none, or it must not be dialled without TLS.
        """
        for address in self._addresses:
            split_address(address, "scheduler")
        try:
            while True:
                # Connections of its own each time: one over a link that was down for long is slow to find out.
                async with contextlib.AsyncExitStack() as stack:
                    for address in self._addresses:
                        channel = self._link.dial(address, self._security)
                        self._channels[address] = await stack.enter_async_context(channel)
                    stub, admission = await self._admission()
                    await self._send_pulses(admission.pulse_port)
                    detail = await self._talk(stub, admission)
                if self._leaving:
                    return
                self._log.warning("lost the scheduler at %s (%s); will join again", self._addresses[0], detail)
                await asyncio.sleep(RETRY_S)
        finally:
            self._link.forget(self.member.pulse_key)

    async def _send_pulses(self, port: int) -> None:
        """Have signs of life sent to the scheduler, if it hears any."""
        loop = asyncio.get_running_loop()
        if not port:
            self._link.forget(self.member.pulse_key)
            return
        try:
            host, _ = split_address(self._addresses[0], "scheduler")
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            self._log.warning("no signs of life are sent to %s: %s", self._addresses[0], error)
            return
        self._link.watch(
            pulse.Watch(
                key=self.member.pulse_key,
                address=str(found[0][4][0]),
                port=port,
                recalled=lambda sent_ns: _soon(loop, self._recalled, sent_ns),
            )
        )

    def _recalled(self, sent_ns: int) -> None:
        """Begin again: the scheduler heard a pulse of that instant, and has no session of this member."""
        if self._call is not None and self._open and self._opened_ns < sent_ns:
            self._call.cancel()

    async def _admission(self) -> tuple[fabric_pb2_grpc.FabricServiceAsyncStub, fabric_pb2.Admission]:
        """Be admitted by the first of the schedulers that is in office."""
        while True:
            address = self._addresses[0]
            stub = fabric_pb2_grpc.FabricServiceStub(self._channels[address])
            try:
                # Not wait_for: in Python 3.11 that forgets to be cancelled if the call fails at the same moment.
                async with asyncio.timeout(ANSWER_S):
                    admission = await self._register(stub)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _WAIT_FOR:
                    raise RefusedError(f"the scheduler at {address} refuses: {error.details()}") from None
                is_heard = error.code() in _NOT_NOW
                await self._notice(error.details() or "the scheduler" if is_heard else "")
            except TimeoutError:
                await self._notice("")
            else:
                self._was_in = True
                term = Term(admission.term, admission.instance)
                if term >= self.member.seen:
                    self.member = replace(self.member, seen=term)
                    self._note_joined(address)
                    return stub, admission
                await self._notice(f"a newer scheduler than that at {address}, of term {term.number}")
            self._addresses.append(self._addresses.pop(0))
            await asyncio.sleep(RETRY_S)

    def _note_joined(self, address: str) -> None:
        self._waits_since_s = None
        if self._noticed:
            self._log.log(self._level, "%s joined the scheduler at %s", self.member.name, address)
            self._noticed = ""

    async def _notice(self, lacking: str) -> None:
        """Say what is waited for: when it has been for a moment, when it is something else, and now and again.

        Args:
            lacking: what a scheduler that answers says is not there yet; "" if none answers.

        Raises:
            RefusedError: it would be waited for in vain.
        """
        now_s = asyncio.get_running_loop().time()
        self._waits_since_s = self._waits_since_s or now_s
        if now_s - self._waits_since_s < STARTING_S:
            return
        what = lacking or f"the scheduler at {self.scheduler}"
        is_news = what != self._noticed and bool(lacking or not self._noticed or len(self._addresses) == 1)
        if is_news or now_s - self._noticed_s >= WAIT_NOTICE_S:
            self._noticed, self._noticed_s = what, now_s
            because = "" if lacking else await self._look_for_tls_faults()
            is_starting = self.member.role is not Role.WORKER and now_s - self._waits_since_s < STARTED_S
            self._level = logging.INFO if is_starting and not (self._was_in or because) else logging.WARNING
            self._log.log(
                self._level, "%s waits for %s%s", self.member.name, what.removeprefix("waiting for "), because
            )

    async def _look_for_tls_faults(self) -> str:
        """Say in brackets what is wrong with TLS between this member and the schedulers; "" if nothing is known to be.

        Raises:
            RefusedError: TLS has never been and cannot be, with none of them.
        """
        looks = [self._link.fault(address, self._security) for address in self._addresses]
        faults = await asyncio.gather(*looks)
        if all(faults) and not self._was_in:
            raise RefusedError(f"cannot join the scheduler at {self.scheduler}: {faults[0]}")
        found = next(filter(None, faults), "")
        return f" ({found})" if found else ""

    async def _talk(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub, admission: fabric_pb2.Admission) -> str:
        """Keep the stream until it breaks; return why."""
        call = self._call = stub.Session()
        self.token = admission.session_token
        tasks: list[asyncio.Task[None]] = []
        self._moving_to = ""
        try:
            welcome = wire.from_admission(admission, self.member.name, self.member.incarnation)
            self._outbox = [wire.to_event(event) for event in self._callbacks.admitted(welcome)]
            hello = fabric_pb2.SessionRequest(
                member=self.member.name,
                incarnation=self.member.incarnation,
                session_token=admission.session_token,
                events=self._take(),
            )
            # Open from here on: what is sent while the greeting is on its way follows it, nothing falls between.
            self._open, self._opened_ns = True, clock.monotonic_ns()
            self._ended.clear()
            await call.write(hello)
            tasks = [asyncio.create_task(self._write(call)), asyncio.create_task(self._watch(call))]
            async for response in call:
                for message in response.instructions:
                    self._callbacks.instructed(wire.from_instruction(message, self.member.name))
            return "it ended the stream"
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        except asyncio.InvalidStateError as error:
            return str(error)
        except asyncio.CancelledError:
            if not call.cancelled() or _is_cancelled():
                raise
            if self._moving_to:
                return f"a newer one is at {self._moving_to}"
            return "it says that this member is not with it"
        finally:
            self._open, self._call = False, None
            self._ended.set()
            for task in tasks:
                task.cancel()
            call.cancel()

    async def _watch(
        self, call: grpc.aio.StreamStreamCall[fabric_pb2.SessionRequest, fabric_pb2.SessionResponse]
    ) -> None:
        """Show the other schedulers which is the newest; end the stream, to go to one that is newer."""
        while others := self._addresses[1:]:
            await asyncio.sleep(WATCH_S)
            for address in others:
                stub = fabric_pb2_grpc.FabricServiceStub(self._channels[address])
                request = fabric_pb2.ShowTermRequest(seen=wire.to_term(self.member.seen))
                try:
                    own = wire.from_term((await stub.ShowTerm(request, timeout=WATCH_S)).own)
                except grpc.aio.AioRpcError:
                    continue
                if own > self.member.seen:
                    self.member = replace(self.member, seen=own)
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    self._moving_to = address
                    call.cancel()
                    return

    async def _write(
        self, call: grpc.aio.StreamStreamCall[fabric_pb2.SessionRequest, fabric_pb2.SessionResponse]
    ) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._outbox:
                    await call.write(fabric_pb2.SessionRequest(events=self._take()))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def leave(self, detail: str, *, failed: bool = False) -> None:
        """Say good-bye and wait until the scheduler has heard it; ``run`` then returns.

        Args:
            detail: why.
            failed: the member cannot go on: nobody is to wait for it, and its replica may take its place.
        """
        self._leaving = True
        if not self._open:
            return
        left = session_pb2.MemberLeft(detail=detail[:LONGEST_DETAIL], failed=failed)
        self._outbox.append(session_pb2.Event(member_left=left))
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), LEAVE_S)

    @contextlib.asynccontextmanager
    async def told_of_failure(self) -> AsyncIterator[None]:
        """Tell the scheduler, and the log, why the member cannot go on if the block fails while it is here."""
        try:
            yield
        except Exception as error:
            if self._open:
                self._log.error("%s cannot go on: %s", self.member.name, described(error))
                await self.leave(described(error), failed=True)
            raise

    def _take(self) -> list[session_pb2.Event]:
        events, self._outbox = self._outbox, []
        return events


def _is_cancelled() -> bool:
    """Tell whether the running task is to end, or only a call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[int], None], argument: int) -> None:
    """Call from another thread, unless the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, argument)
