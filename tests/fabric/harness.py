"""A fabric on loopback for tests: scheduler and server in threads, workers through the public door, and a worker played
by hand for everything that a real one would never do.

At the end of each test the state machines of scheduler and server are validated.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self

import grpc
import torch

import mlfabric
from mlfabric import wire
from mlfabric.channels import Frame, FrameKind, TcpOptions
from mlfabric.channels.frames import HEADER_BYTES, decode_header, encode_header
from mlfabric.config import WorkerSettings
from mlfabric.model.specs import PROTOCOL_VERSION, Member, ModelSpec, Role, RuleSpec
from mlfabric.protocol import MemberEvent, ModelVersion, PushRequested, UpdateId
from mlfabric.protocol.lineage import name_of_epoch
from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner
from mlfabric.server.service import ServerOptions
from mlfabric.v1 import data_pb2, fabric_pb2, fabric_pb2_grpc, session_pb2, types_pb2
from mlfabric.worker_daemon.tensors import ModelTensors

__all__ = [
    "Fabric",
    "RawWorker",
    "SchedulerThread",
    "dropped",
    "fabric",
    "gradients",
    "small_model",
    "spec_of",
    "wait_until",
]

PATIENCE_S = 30.0
MAX_PAYLOAD_BYTES = 1 << 40


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of ``condition``, asked every few milliseconds."""
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        value = condition()
        if value:
            return value
        done.wait(0.005)
    raise AssertionError(f"{what}: not within {PATIENCE_S} s")


def dropped(handle: mlfabric.PushHandle, *causes: mlfabric.DropReason) -> mlfabric.Dropped:
    """Wait for an update's outcome, which is that it was dropped for one of these causes."""
    outcome = handle.result(PATIENCE_S)
    assert isinstance(outcome, mlfabric.Dropped)
    assert outcome.cause in causes
    return outcome


def small_model(seed: int = 0) -> torch.nn.Sequential:
    """Return a model of two layers whose weights depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def gradients(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter a gradient that depends on its values and the seed, whatever other threads draw."""
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), torch.ones(16, 2)).backward()


class SchedulerThread:
    """A scheduler in a thread."""

    def __init__(self, **options: Any) -> None:
        self._started: queue.Queue[str | BaseException] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self.runner = SchedulerRunner(SchedulerOptions(**{"port": 0, **options}))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        answer = self._started.get(timeout=PATIENCE_S)
        if isinstance(answer, BaseException):
            self._thread.join()
            raise answer
        self.address = answer

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.address.rpartition(":")[2])

    @property
    def state(self) -> Any:
        """Its state machine; to be read only."""
        return self.runner._state

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (mlfabric.FabricError, AssertionError) as error:
            self._started.put(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.runner.run(self._stop, self._started.put)

    def wait(self) -> None:
        """Wait until it ends by itself, and raise what ended it."""
        ended = self._started.get(timeout=PATIENCE_S)
        self._thread.join(PATIENCE_S)
        if isinstance(ended, BaseException):
            raise ended

    def stop(self) -> None:
        """End it and check its state."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "the scheduler does not stop"
            self.state.validate()


class Fabric:
    """Scheduler and servers, and the workers made here; all end with it."""

    def __init__(self, **scheduler: Any) -> None:
        self._stack = ExitStack()
        self.servers: list[mlfabric.Server] = []
        self.scheduler = SchedulerThread(**scheduler)
        self._stack.callback(self._end_scheduler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def _end_scheduler(self) -> None:
        self.scheduler.stop()

    def server(self, **options: Any) -> mlfabric.Server:
        """Start a server."""
        server = mlfabric.register_as_server(ServerOptions(scheduler=self.scheduler.address, **options))
        self._stack.callback(self._end_server, server)
        self.servers.append(server)
        return server

    def aggregator(self, **options: Any) -> mlfabric.Aggregator:
        """Start an aggregator."""
        options = {"scheduler": self.scheduler.address, **options}
        aggregator = mlfabric.register_as_aggregator(mlfabric.AggregatorOptions(**options))
        self._stack.callback(aggregator.stop)
        return aggregator

    @staticmethod
    def _end_server(server: mlfabric.Server) -> None:
        server.stop()
        server._service._state.validate()

    def worker(self, model: Any, name: str = "w0", **options: Any) -> Any:
        """Register a worker: an ``mlfabric.Worker``, into whose parts tests look."""
        worker = mlfabric.register_as_worker(model, settings=self.settings(name), **options)
        self._stack.callback(worker.leave)
        return worker

    def settings(self, name: str = "w0") -> WorkerSettings:
        """Return the surroundings of a worker here."""
        return WorkerSettings(scheduler=self.scheduler.address, name=name, host=f"host-{name}", tcp=TcpOptions())

    def restart_scheduler(self, **options: Any) -> None:
        """End the scheduler and start another on its port."""
        self.scheduler.stop()
        self.start_scheduler(**options)

    def start_scheduler(self, **options: Any) -> None:
        """Start another scheduler on the port of the one that has ended; the kernel may hold that for a moment."""
        port = self.scheduler.port

        def started() -> SchedulerThread | None:
            try:
                return SchedulerThread(port=port, **options)
            except mlfabric.UsageError:
                return None

        self.scheduler = wait_until(started, f"port {port} is free again")

    def raw_worker(self, model: Any, name: str = "raw", holds_initial: bool = False, **options: Any) -> RawWorker:
        """Register a worker that is played by hand; it joins and opens its session."""
        raw: RawWorker = self.enter(RawWorker(self.scheduler.address, spec_of(model, **options), name))
        raw.holds_initial = holds_initial
        raw.join()
        return raw

    def register_empty_server(self, spec: ModelSpec) -> None:
        """Register a server that holds a model by its word alone, and keep quiet."""
        by_word(self.stub(), Role.SERVER, "word-only", models=[wire.to_spec(spec)], server_epochs=[1])

    def enter(self, context: AbstractContextManager[Any]) -> Any:
        """End something together with this fabric."""
        return self._stack.enter_context(context)

    def stub(self) -> Any:
        """Return a blocking stub of the scheduler."""
        return fabric_pb2_grpc.FabricServiceStub(self.enter(grpc.insecure_channel(self.scheduler.address)))

    def version(self, epoch: int, number: int) -> ModelVersion:
        """Return a version in the n-th server epoch that the present scheduler has named."""
        return ModelVersion(name_of_epoch(self.scheduler.state.context.config.term.number, epoch), number)

    def status(self) -> fabric_pb2.GetStatusResponse:
        """Ask the scheduler."""
        with grpc.insecure_channel(self.scheduler.address) as channel:
            return fabric_pb2_grpc.FabricServiceStub(channel).GetStatus(fabric_pb2.GetStatusRequest())


@contextmanager
def fabric(**server: Any) -> Iterator[Fabric]:
    """Run a scheduler and a server."""
    with Fabric() as running:
        running.server(**server)
        yield running


def by_word(stub: Any, role: Role, name: str, *, protocol_version: int = PROTOCOL_VERSION, **fields: Any) -> Any:
    """Register a member that is there by its word alone; return the answer.

    Args:
        fields: of the request, besides the member.
    """
    member = Member(
        name=name, role=role, incarnation=1, host="h", address="127.0.0.1:9", protocol_version=protocol_version
    )
    call = f"RegisterAs{role.value.capitalize()}"
    request = getattr(fabric_pb2, f"{call}Request")(member=wire.to_member(member), **fields)
    return getattr(stub, call)(request)


def spec_of(model: Any, name: str = "model", **options: Any) -> ModelSpec:
    """Return the specification that a worker of this model registers."""
    return ModelSpec(name=name, layout=ModelTensors(model).layout, rule=options.pop("rule", RuleSpec()), **options)


class RawWorker:
    """A worker whose every message is made by the test."""

    def __init__(self, scheduler: str, spec: ModelSpec, name: str = "raw", incarnation: int = 1) -> None:
        self.name, self.spec, self.incarnation = name, spec, incarnation
        self.member = Member(name=name, role=Role.WORKER, incarnation=incarnation, host="raw-host")
        self._stack = ExitStack()
        channel = self._stack.enter_context(grpc.insecure_channel(scheduler))
        self.stub = fabric_pb2_grpc.FabricServiceStub(channel)
        self._requests: queue.Queue[fabric_pb2.SessionRequest | None] = queue.Queue()
        self._instructions: queue.Queue[session_pb2.Instruction | None] = queue.Queue()
        self.holds_initial = False
        self.error: grpc.RpcError | None = None
        self.admission = fabric_pb2.Admission()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._requests.put(None)
        self._stack.close()

    def register(self) -> fabric_pb2.Admission:
        """Register; raises grpc.RpcError if refused."""
        request = fabric_pb2.RegisterAsWorkerRequest(
            member=wire.to_member(self.member), model=wire.to_spec(self.spec), holds_initial=self.holds_initial
        )
        return self.stub.RegisterAsWorker(request, timeout=PATIENCE_S).admission

    def join(self) -> None:
        """Register as soon as a server is there, and open the session."""
        self.admission = wait_until(self._admitted, f"{self.name} is admitted")
        self.open_session(self.admission.session_token)

    def _admitted(self) -> fabric_pb2.Admission | None:
        try:
            return self.register()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return None

    def open_session(self, token: bytes) -> None:
        """Open the stream."""
        self._requests.put(
            fabric_pb2.SessionRequest(member=self.name, incarnation=self.incarnation, session_token=token)
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for response in self.stub.Session(iter(self._requests.get, None)):
                for instruction in response.instructions:
                    self._instructions.put(instruction)
        except grpc.RpcError as error:
            self.error = error
        self._instructions.put(None)

    def tell(self, *events: MemberEvent) -> None:
        """Send events on the session."""
        self.say(*(wire.to_event(event) for event in events))

    def say(self, *messages: session_pb2.Event) -> None:
        """Send messages on the session, whatever they say."""
        self._requests.put(fabric_pb2.SessionRequest(events=messages))

    def told(self, *kinds: str) -> Any:
        """Wait for the next instruction of one of these kinds; None if the stream ends first."""
        while (instruction := self._instructions.get(timeout=PATIENCE_S)) is not None:
            kind = instruction.WhichOneof("instruction")
            if kind in kinds:
                return getattr(instruction, kind)
        return None

    def request(self, **changes: Any) -> PushRequested:
        """Return the request of a next, good update, with changes."""
        update = UpdateId(self.name, self.incarnation, self._count)
        self._count += 1
        good: dict[str, Any] = {
            "update": update,
            "model": self.spec.name,
            "size_bytes": self.spec.layout.size_bytes,
            "computed_from": ModelVersion(self.admission.server_epoch, 0),
            "norm": 1.0,
        }
        return PushRequested(**{**good, **changes})

    def connect(self, address: str) -> Line:
        """Open a data connection that ends with this worker."""
        return self._stack.enter_context(Line(address))

    def offer(self, send: Any, *, digest: int | None = None, size_bytes: int | None = None) -> Line:
        """Offer an update that the scheduler told us to send; return the connection."""
        line = self.connect(send.address)
        layout = self.spec.layout
        size_bytes = layout.size_bytes if size_bytes is None else size_bytes
        meta = data_pb2.OfferMeta(
            transfer=types_pb2.TransferId(update=send.update), size_bytes=size_bytes, host="raw-host"
        )
        digest = layout.digest if digest is None else digest
        line.send(Frame(kind=FrameKind.OFFER, ticket=send.ticket, digest=digest, meta=meta.SerializeToString()))
        return line


class Line:
    """A plain socket that speaks frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        """Send a frame and bytes after it, however many."""
        self.socket.sendall(encode_header(frame, paced=False) + frame.meta + payload)

    def receive(self) -> Frame | None:
        """Receive the next frame without its payload; None if the connection ended."""
        raw = self._exactly(HEADER_BYTES)
        if raw is None:
            return None
        header = decode_header(raw, max_payload_bytes=MAX_PAYLOAD_BYTES)
        meta = self._exactly(header.meta_bytes)
        assert meta is not None, "the connection ended within a frame"
        return Frame(kind=header.kind, ticket=header.ticket, length=header.length, digest=header.digest, meta=meta)

    def is_closed(self) -> bool:
        """Wait for the end of the connection; False if something else came."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, n_bytes: int) -> bytes | None:
        got = b""
        while len(got) < n_bytes:
            try:
                more = self.socket.recv(n_bytes - len(got))
            except ConnectionResetError:
                return None
            if not more:
                return None
            got += more
        return got
