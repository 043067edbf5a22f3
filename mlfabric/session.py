"""A member's session with the scheduler: registers, keeps the stream, begins again when it breaks.

Shell-level, shared by every kind of member. What is sent while there is no session is forgotten on purpose: after each
admission the member announces what it holds, and that says everything (design, section 6).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from mlfabric import wire
from mlfabric.addresses import split_address
from mlfabric.control import MAX_CONTROL_BYTES
from mlfabric.errors import RefusedError
from mlfabric.protocol import Instruction, MemberEvent, Welcome
from mlfabric.specs import Member
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2

__all__ = ["CHANNEL_OPTIONS", "Register", "SchedulerSession", "SessionCallbacks"]

RETRY_S = 0.2
WAIT_NOTICE_S = 5.0
STARTING_S = 1.5
"""So long a member waits without a word: what is started together with its scheduler may well be here first."""
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", MAX_CONTROL_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.use_local_subchannel_pool", 1),
]
_NOT_NOW = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
_WAIT_FOR = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, *_NOT_NOW)

Register: TypeAlias = "Callable[[fabric_pb2_grpc.FabricServiceAsyncStub], Awaitable[fabric_pb2.Admission]]"
"""Registers by one of the RegisterAs... calls and returns the admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCallbacks:
    """What a member does on its session's events.

    Args:
        admitted: called at each admission; returns the events that announce what the member holds.
        instructed: called with every instruction, in order.
        lost: called when the stream broke.
    """

    admitted: Callable[[Welcome], Iterable[MemberEvent]]
    instructed: Callable[[Instruction], None]
    lost: Callable[[str], None]


class SchedulerSession:
    """One member's session.

    Args:
        scheduler: ``host:port`` of the scheduler.
        member: who registers.
        register: how.
        callbacks: see there.
    """

    def __init__(self, scheduler: str, member: Member, register: Register, callbacks: SessionCallbacks) -> None:
        self.scheduler = scheduler
        self.member = member
        self._register = register
        self._callbacks = callbacks
        self._outbox: list[session_pb2.Event] = []
        self._wake = asyncio.Event()
        self._open = False
        self._leaving = False
        self._ended = asyncio.Event()
        self._log = logging.getLogger(f"mlfabric.{member.role.value}")
        self._noticed = ""
        self._noticed_s = 0.0
        self._waits_since_s: float | None = None

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
            RefusedError: the scheduler refuses this member for good; says why.
            UsageError: the scheduler's address is none.
        """
        split_address(self.scheduler, "scheduler")
        async with grpc.aio.insecure_channel(self.scheduler, options=CHANNEL_OPTIONS) as channel:
            stub = fabric_pb2_grpc.FabricServiceStub(channel)
            while True:
                admission = await self._admission(stub)
                detail = await self._talk(stub, admission)
                if self._leaving:
                    return
                self._callbacks.lost(detail)
                self._log.warning("lost the scheduler at %s (%s); will join again", self.scheduler, detail)
                await asyncio.sleep(RETRY_S)

    async def _admission(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        while True:
            try:
                admission = await self._register(stub)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _WAIT_FOR:
                    raise RefusedError(f"the scheduler at {self.scheduler} refuses: {error.details()}") from error
                self._notice(error)
                await asyncio.sleep(RETRY_S)
            else:
                self._waits_since_s = None
                if self._noticed:
                    self._log.warning("%s joined the scheduler at %s", self.member.name, self.scheduler)
                    self._noticed = ""
                return admission

    def _notice(self, error: grpc.aio.AioRpcError) -> None:
        """Say what is waited for: when it has been for a moment, when it is something else, and now and again."""
        now_s = asyncio.get_running_loop().time()
        self._waits_since_s = self._waits_since_s or now_s
        if now_s - self._waits_since_s < STARTING_S:
            return
        unreachable = error.code() not in _NOT_NOW
        what = f"the scheduler at {self.scheduler}" if unreachable else (error.details() or "the scheduler")
        if what != self._noticed or now_s - self._noticed_s >= WAIT_NOTICE_S:
            self._noticed, self._noticed_s = what, now_s
            self._log.warning("%s waits for %s", self.member.name, what.removeprefix("waiting for "))

    async def _talk(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub, admission: fabric_pb2.Admission) -> str:
        """Keep the stream until it breaks; return why."""
        call = stub.Session()
        writer: asyncio.Task[None] | None = None
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
            self._open = True
            self._ended.clear()
            await call.write(hello)
            writer = asyncio.create_task(self._write(call))
            async for response in call:
                for message in response.instructions:
                    self._callbacks.instructed(wire.from_instruction(message, self.member.name))
            return "it ended the stream"
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        except asyncio.InvalidStateError as error:
            return str(error)
        finally:
            self._open = False
            self._ended.set()
            if writer is not None:
                writer.cancel()
            call.cancel()

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

    async def leave(self, detail: str, patience_s: float = 2.0) -> None:
        """Say good-bye and wait until the scheduler has heard it; ``run`` then returns."""
        self._leaving = True
        if not self._open:
            return
        self._outbox.append(session_pb2.Event(member_left=session_pb2.MemberLeft(detail=detail)))
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), patience_s)

    def _take(self) -> list[session_pb2.Event]:
        events, self._outbox = self._outbox, []
        return events
