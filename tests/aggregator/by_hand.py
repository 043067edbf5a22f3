"""A real aggregator on loopback, with scheduler, senders and receivers played by hand."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import grpc
import numpy as np

import mlfabric
from mlfabric import wire
from mlfabric.channels import Frame, FrameKind
from mlfabric.model.specs import Layout, ModelSpec, TensorKind, TensorSpec
from mlfabric.protocol import (
    GetId,
    HostModel,
    Instruction,
    ModelVersion,
    Outcome,
    Sum,
    SumId,
    SumInput,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from mlfabric.v1 import data_pb2, fabric_pb2, fabric_pb2_grpc, session_pb2
from tests.aggregator.stage import committed, sum_id, sum_order, ticket, update
from tests.fabric.harness import PATIENCE_S, Line

ELEMENTS = 600_000
SPEC = ModelSpec(
    name="net",
    layout=Layout(
        (
            TensorSpec(name="w", shape=(ELEMENTS,), dtype="float32"),
            TensorSpec(name="stats", shape=(8,), dtype="float32", kind=TensorKind.BUFFER),
        )
    ),
)
TINY = ModelSpec(name="tiny", layout=Layout((TensorSpec(name="w", shape=(8,), dtype="float32"),)))
SIZE = SPEC.layout.size_bytes


class SchedulerByHand(fabric_pb2_grpc.FabricServiceServicer):
    """Admits aggregators and tells them what the test says."""

    def __init__(self) -> None:
        self.registered: queue.Queue[fabric_pb2.RegisterAsAggregatorRequest] = queue.Queue()
        self.events: queue.Queue[session_pb2.Event] = queue.Queue()
        self.epoch = 1
        self._responses: dict[str, queue.Queue[fabric_pb2.SessionResponse | None]] = {}
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8))
        fabric_pb2_grpc.add_FabricServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def RegisterAsAggregator(self, request: Any, context: Any) -> Any:
        self._responses[request.member.name] = queue.Queue()
        self.registered.put(request)
        admission = fabric_pb2.Admission(term=self.epoch, session_token=b"t")
        return fabric_pb2.RegisterAsAggregatorResponse(admission=admission)

    def Session(self, requests: Any, context: Any) -> Iterator[Any]:
        first = next(requests)
        responses = self._responses[first.member]

        def read() -> None:
            try:
                for request in requests:
                    for event in request.events:
                        if event.HasField("member_left"):
                            responses.put(None)
                        self.events.put(event)
            except grpc.RpcError:
                pass
            responses.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(responses.get, None)

    def tell(self, *instructions: Instruction) -> None:
        """Send instructions to whom they are for."""
        for instruction in instructions:
            message = wire.to_instruction(instruction)
            self._responses[instruction.to].put(fabric_pb2.SessionResponse(term=self.epoch, instructions=[message]))

    def end_sessions(self) -> None:
        """End every stream; their members register again."""
        for responses in self._responses.values():
            responses.put(None)

    def ended(self, sender: str = "a") -> TransferEnded:
        """Wait for the next report about a transfer."""
        while True:
            message = self.events.get(timeout=PATIENCE_S)
            if message.WhichOneof("event") == "transfer_ended":
                event = wire.from_event(message, sender)
                assert isinstance(event, TransferEnded)
                return event

    def close(self) -> None:
        for responses in self._responses.values():
            responses.put(None)
        self._server.stop(None).wait()


class Accepted(Line):
    """A connection that the aggregator opened to us."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        accepted.settimeout(PATIENCE_S)

    def payload(self, n_bytes: int) -> np.ndarray[Any, Any]:
        """Receive bytes of a payload as float32."""
        raw = self._exactly(n_bytes)
        assert raw is not None, "the connection ended within a payload"
        return np.frombuffer(raw, dtype=np.float32)


class Stand:
    """A scheduler, aggregators that it has admitted, and a place where they bring their sums."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.scheduler = SchedulerByHand()  # type: ignore[abstract]  # aggregators make no other calls
        self.stack.callback(self.scheduler.close)
        self.listen_anew()
        self.aggregators: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stack.close()

    def listen_anew(self) -> None:
        """Take sums at another address from now on: over connections that are new, too."""
        self._place = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._place.settimeout(PATIENCE_S)
        self.address = f"127.0.0.1:{self._place.getsockname()[1]}"

    def aggregator(self, name: str = "a", **options: Any) -> Any:
        """Start an aggregator and let it know the models."""
        started = mlfabric.register_as_aggregator(
            mlfabric.AggregatorOptions(scheduler=self.scheduler.address, name=name, host=f"host-{name}", **options)
        )
        self.stack.callback(self._end, started)
        self.aggregators[name] = started
        self.scheduler.registered.get(timeout=PATIENCE_S)
        for spec in (SPEC, TINY):
            self.scheduler.tell(HostModel(to=name, spec=spec, reason="for sums"))
        return started

    @staticmethod
    def _end(aggregator: Any) -> None:
        aggregator.stop()
        aggregator._service._state.validate()

    def metric(self, name: str, aggregator: str = "a") -> float:
        """Return the sum of a metric over its labels."""
        registry = self.aggregators[aggregator]._service._metrics.registry
        samples = (sample for family in registry.collect() for sample in family.samples)
        return float(sum(sample.value for sample in samples if sample.name == name))

    def offer(self, transfer: TransferId, to: str = "a", spec: ModelSpec = SPEC, **changes: Any) -> Line:
        """Offer an input on a connection of its own, as a worker does; changes are to the frame and what it says."""
        line = self.connect(to)
        offer_on(line, transfer, spec, **changes)
        return line

    def connect(self, to: str = "a") -> Line:
        """Open a data connection to an aggregator."""
        line: Line = self.stack.enter_context(Line(self.aggregators[to]._service.address))
        return line

    def accept(self) -> Accepted:
        """Wait for a connection that an aggregator opens."""
        accepted, _ = self._place.accept()
        return self.stack.enter_context(Accepted(accepted))


def frame_of(line: Line, kind: FrameKind) -> Frame:
    """Receive a frame of this kind."""
    frame = line.receive()
    assert frame is not None, f"the connection ended; wanted {kind.name}"
    assert frame.kind is kind, frame
    return frame


def offer_on(line: Line, transfer: TransferId, spec: ModelSpec = SPEC, **changes: Any) -> None:
    """Offer an input."""
    say: dict[str, Any] = {"size_bytes": spec.layout.size_bytes, "image": b""}
    say |= {key: changes.pop(key) for key in ("size_bytes", "image") if key in changes}
    meta = data_pb2.OfferMeta(transfer=wire.to_transfer_id(transfer), host="host-w", **say)
    frame: dict[str, Any] = {"ticket": ticket(transfer), "digest": spec.layout.digest} | changes
    line.send(Frame(kind=FrameKind.OFFER, meta=meta.SerializeToString(), **frame))


def payload(line: Line, transfer: TransferId, image: bytes) -> None:
    """Send an input's bytes, once they are granted."""
    frame_of(line, FrameKind.GRANT)
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(transfer), length=len(image)), image)


def seal(line: Line, transfer: TransferId) -> None:
    """Seal an input."""
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(transfer)))


def send(line: Line, transfer: TransferId, image: bytes) -> None:
    """Send an input and seal it."""
    payload(line, transfer, image)
    seal(line, transfer)


def outcomes_of(line: Line) -> dict[UpdateId, Outcome]:
    """Receive outcomes."""
    return wire.from_outcomes(data_pb2.OutcomeMeta.FromString(frame_of(line, FrameKind.OUTCOME).meta))


def refusal_of(line: Line) -> str:
    """Receive a refusal and return its reason."""
    return data_pb2.RefuseMeta.FromString(frame_of(line, FrameKind.REFUSE).meta).reason


def take_back(line: Line, shown: bytes, reason: str) -> None:
    """Refuse what was offered, or take back what one has offered."""
    meta = data_pb2.RefuseMeta(reason=reason).SerializeToString()
    line.send(Frame(kind=FrameKind.REFUSE, ticket=shown, meta=meta))


def say_outcomes(line: Line, told: dict[UpdateId, Outcome]) -> None:
    """Answer a sum."""
    meta = wire.to_outcomes(told).SerializeToString()
    line.send(Frame(kind=FrameKind.OUTCOME, ticket=bytes(16), meta=meta))


def image(value: float, stats: float = 0.0, spec: ModelSpec = SPEC) -> bytes:
    """Return an image whose parameters all have one value, and its statistics another."""
    values = np.full(spec.layout.size_bytes // 4, value, dtype=np.float32)
    if spec is SPEC:
        values[ELEMENTS:] = stats
    return values.tobytes()


def want(line: Line, get: GetId) -> None:
    """Say that a buffer is there for a model."""
    meta = data_pb2.WantMeta(get=wire.to_get_id(get), host="host-w")
    line.send(Frame(kind=FrameKind.WANT, ticket=ticket(get), meta=meta.SerializeToString()))


def model_frame(version: int) -> Frame:
    """Return the frame that announces a model."""
    meta = data_pb2.ModelMeta(version=wire.to_version(ModelVersion(1, version)), host="host-s")
    return Frame(
        kind=FrameKind.MODEL,
        ticket=ticket("out"),
        length=SIZE,
        digest=SPEC.layout.digest,
        meta=meta.SerializeToString(),
    )


def order(stand: Stand, counter: int, *inputs: SumInput, **changes: Any) -> Sum:
    """Return the order to bring the sum of these to the stand."""
    return sum_order(counter, inputs, **{"model": SPEC.name, "address": stand.address, **changes})


def takes(transfer: TransferId, first: float = 1.0, second: float = 0.0, size_bytes: int = SIZE) -> SumInput:
    return SumInput(transfer=transfer, ticket=ticket(transfer), first=first, second=second, size_bytes=size_bytes)


def granted_sum(line: Any, which: SumId, n_bytes: int) -> np.ndarray[Any, Any]:
    """Take a sum as a server does, up to its seal; return what came."""
    offered = data_pb2.OfferMeta.FromString(frame_of(line, FrameKind.OFFER).meta)
    assert (offered.transfer.sum.term, offered.transfer.sum.counter, offered.size_bytes) == (*which, n_bytes)
    line.send(Frame(kind=FrameKind.GRANT, ticket=ticket("out")))
    assert frame_of(line, FrameKind.PAYLOAD).length == n_bytes
    found: np.ndarray[Any, Any] = line.payload(n_bytes)
    return found


def a_good_sum_is_made(stand: Stand, counter: int = 99) -> None:
    """Make one more sum from end to end: the service lives."""
    one, other = update("good-a", counter), update("good-b", counter)
    stand.scheduler.tell(order(stand, counter, takes(one), takes(other)))
    lines = {one: stand.offer(one), other: stand.offer(other)}
    for value, (transfer, line) in enumerate(lines.items(), start=1):
        send(line, transfer, image(float(value)))
    receiver = stand.accept()
    assert np.all(granted_sum(receiver, sum_id(counter), SIZE)[:ELEMENTS] == 3.0)
    assert frame_of(receiver, FrameKind.PAYLOAD).length == 0
    told: dict[UpdateId, Outcome] = {one: committed(1), other: committed(2)}
    say_outcomes(receiver, told)
    assert [outcomes_of(line) for line in lines.values()] == [{one: committed(1)}, {other: committed(2)}]


def torn(stand: Stand, counter: int) -> str:
    """Wait until a sum is reported torn; return why."""
    while (ended := stand.scheduler.ended()).end is not TransferEnd.TORN:
        pass
    assert ended.transfer == sum_id(counter)
    return ended.detail
