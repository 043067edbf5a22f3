"""Members for benchmarks of the scheduler: workers and a server that speak its protocol and move no byte.

Each has a registration and a session stream of its own, as real members do. The server says of everything that it is
told to expect that it has arrived and is committed, so the scheduler's tables stay as they are in a running job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import grpc

from benchmarks.processes import HOST
from mlfabric import wire
from mlfabric.model.specs import Layout, Member, ModelSpec, Role, TensorSpec
from mlfabric.protocol import ModelVersion, ServerHolds
from mlfabric.v1 import fabric_pb2, session_pb2, types_pb2

__all__ = ["SERVER", "SPEC", "Listener", "SimulatedServer", "SimulatedWorker"]

REPORT_S = 0.002
# Small enough that the server's emulated ingress never is what limits: 4 KB on 10 Gbit/s take 3 us.
SPEC = ModelSpec(name="model", layout=Layout((TensorSpec(name="w", shape=(1024,), dtype="float32"),)))
SERVER = "server-0"

Call: TypeAlias = "grpc.aio.StreamStreamCall[fabric_pb2.SessionRequest, fabric_pb2.SessionResponse]"


class Listener(Protocol):
    """Who has a worker ask."""

    @property
    def version(self) -> int:
        """The model's newest version, from which the next update is computed."""

    def resolved_below(self, worker: str) -> int:
        """The counter below which a worker's pushes are over."""

    async def decided(self, worker: SimulatedWorker) -> None:
        """Take note that a worker was answered."""


def _member(name: str, role: Role) -> types_pb2.Member:
    address = f"{HOST}:9" if role is Role.SERVER else ""
    return wire.to_member(Member(name=name, role=role, incarnation=1, host=f"host-{name}", address=address))


async def _open(stub: Any, name: str, admission: fabric_pb2.Admission) -> Call:
    call: Call = stub.Session()
    await call.write(fabric_pb2.SessionRequest(member=name, incarnation=1, session_token=admission.session_token))
    return call


@dataclass
class SimulatedServer:
    """The server that holds nothing: what it is told to expect is committed a moment later."""

    stub: Any
    version: int = 0
    expected: dict[tuple[str, int], session_pb2.Expect] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self) -> None:
        request = fabric_pb2.RegisterAsServerRequest(
            member=_member(SERVER, Role.SERVER), models=[wire.to_spec(SPEC)], server_epochs=[1]
        )
        admission = (await self.stub.RegisterAsServer(request, wait_for_ready=True)).admission
        self.call = await _open(self.stub, SERVER, admission)
        holds = ServerHolds(server=SERVER, spec=SPEC, version=ModelVersion(1, 0), initialised=True)
        await self.call.write(fabric_pb2.SessionRequest(events=[wire.to_event(holds)]))
        self.tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._report())]

    def resolved_below(self, worker: str) -> int:
        """The counter below which a worker's pushes are over, as far as they are committed."""
        return self.committed.get(worker, -1) + 1

    async def _read(self) -> None:
        while isinstance(response := await self.call.read(), fabric_pb2.SessionResponse):
            for instruction in response.instructions:
                if instruction.HasField("expect"):
                    update = instruction.expect.members[0].update
                    if self.committed.get(update.worker, -1) < update.counter:
                        self.expected[update.worker, update.counter] = instruction.expect
            self.wake.set()

    async def _report(self) -> None:
        while True:
            await self.wake.wait()
            await asyncio.sleep(REPORT_S)
            self.wake.clear()
            expected, self.expected = sorted(self.expected.values(), key=lambda e: e.seq), {}
            if expected:
                await self.call.write(fabric_pb2.SessionRequest(events=self._events(expected)))

    def _events(self, expected: list[session_pb2.Expect]) -> list[session_pb2.Event]:
        commits, events = [], []
        for order in expected:
            update, base = order.members[0].update, order.members[0].computed_from
            tau = self.version - base.number
            self.version += 1
            self.committed[update.worker] = update.counter
            version = types_pb2.ModelVersion(epoch=1, number=self.version)
            commits.append(session_pb2.Commit(update=update, version=version, tau=tau, lr=0.1, step_norm=1.0))
            ended = session_pb2.TransferEnded(
                member=SERVER, model=SPEC.name, update=update, end=session_pb2.TRANSFER_END_RECEIVED
            )
            events.append(session_pb2.Event(transfer_ended=ended))
        reported = session_pb2.CommitsReported(server=SERVER, model=SPEC.name, commits=commits)
        return [*events, session_pb2.Event(commits_reported=reported)]


class SimulatedWorker:
    """A worker that asks, and notes how long the answer takes."""

    def __init__(self, name: str, listener: Listener) -> None:
        self.name = name
        self.counter = 0
        self.asked_s = 0.0
        self._listener = listener

    async def join(self, stub: Any) -> None:
        request = fabric_pb2.RegisterAsWorkerRequest(
            member=_member(self.name, Role.WORKER), model=wire.to_spec(SPEC), holds_initial=False
        )
        self.call = await _open(stub, self.name, (await stub.RegisterAsWorker(request, wait_for_ready=True)).admission)
        self.task = asyncio.create_task(self._read())

    async def ask(self, due_s: float) -> None:
        """Ask to push; latency counts from ``due_s``."""
        self.asked_s = due_s
        push = session_pb2.PushRequested(
            update=types_pb2.RequestId(worker=self.name, incarnation=1, counter=self.counter),
            model=SPEC.name,
            size_bytes=SPEC.layout.size_bytes,
            computed_from=types_pb2.ModelVersion(epoch=1, number=self._listener.version),
            norm=1.0,
            kind=session_pb2.UPDATE_KIND_GRADIENT,
            resolved_below=self._listener.resolved_below(self.name),
        )
        await self.call.write(fabric_pb2.SessionRequest(events=[session_pb2.Event(push_requested=push)]))

    async def _read(self) -> None:
        while isinstance(response := await self.call.read(), fabric_pb2.SessionResponse):
            for instruction in response.instructions:
                kind = instruction.WhichOneof("instruction")
                if kind not in ("send", "drop"):
                    continue
                if getattr(instruction, kind).update.counter == self.counter:
                    self.counter += 1
                    await self._listener.decided(self)
