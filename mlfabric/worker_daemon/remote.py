"""A worker daemon in a process of its own, as its training process sees it: the same interface as one in a thread.

Gradients are copied once, into shared memory; the model is received right where this process reads it. Tensors that are
reduced are copied there and back. Shared memory is used again, and bounded (``buffer_pool``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeAlias

import grpc

from mlfabric import pulse, wire
from mlfabric.errors import FabricClosedError, RefusedError, UnavailableError, UsageError
from mlfabric.forking import IN_A_COPY, tell_copies
from mlfabric.protocol import JobClaim, Lost, ModelVersion, ReduceOp, SamplesWanted, Welcome
from mlfabric.samples import Samples
from mlfabric.specs import ModelSpec
from mlfabric.v1 import daemon_pb2, daemon_pb2_grpc, session_pb2
from mlfabric.worker_daemon.attempts import ReduceBuffers
from mlfabric.worker_daemon.buffer_pool import BufferPool
from mlfabric.worker_daemon.sending import GivenUpError, Growth, Parcel
from mlfabric.worker_daemon.shared import Segment
from mlfabric.worker_daemon.thread import CountFuture, DrawFuture, OutcomeFuture, VersionFuture

__all__ = ["RemoteDaemon"]

SAID_AFTER_S = 1.0
COMES_WITHIN_S = 10.0
_CHANNEL_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]

NO_JOB = JobClaim()

log = logging.getLogger(__name__)

_Call: TypeAlias = "grpc.aio.StreamStreamCall[daemon_pb2.AttachRequest, daemon_pb2.AttachResponse]"


@dataclass(slots=True)
class _OpenPush:
    segment: Segment
    outcome: OutcomeFuture


@dataclass(frozen=True, slots=True)
class _OpenReduce:
    given: Segment
    result: Segment
    into: memoryview
    workers: CountFuture


class RemoteDaemon:
    """The daemon at ``address`` (``unix:/path`` or ``127.0.0.1:port``).

    Args:
        address: where ``mlfabric worker`` listens.
        name: this worker's name.
        spec: the model it trains.
        initial: its initial weights.
        job: what it says of its job.

    Raises:
        UnavailableError: there is not enough shared memory.
    """

    def __init__(self, address: str, name: str, spec: ModelSpec, initial: Parcel, job: JobClaim = NO_JOB) -> None:
        self._address = address
        self._name = name
        self._job = job
        self._spec = spec
        size_bytes = spec.layout.size_bytes
        family = Segment.new_family()
        self._image = Segment.create(size_bytes, family)
        self._initial = Segment.create(size_bytes, family)
        _fill(self._initial, initial.pieces)
        self._pool = BufferPool(partial(Segment.create, family=family), attrgetter("size_bytes"), self._drop)
        self._pushes: dict[int, _OpenPush] = {}
        self._gets: dict[int, VersionFuture] = {}
        self._reduces: dict[int, _OpenReduce] = {}
        self._draws: dict[int, DrawFuture] = {}
        self._calls = 0
        self._lock = threading.Lock()
        self._joined: concurrent.futures.Future[Welcome] = concurrent.futures.Future()
        self._over = False
        self._why_closed = "this worker has left the fabric, or its daemon ended; register again for more"
        self._loop = asyncio.new_event_loop()
        self._requests: asyncio.Queue[daemon_pb2.AttachRequest] = asyncio.Queue()
        self._thread = threading.Thread(target=self._run, name=f"mlfabric {name}", daemon=True)

    def buffer(self) -> memoryview:
        """Return the memory that models are received in."""
        return self._image.buffer

    def join(self) -> Welcome:
        """Join the fabric; see ``Daemon``.

        Raises:
            RefusedError: the scheduler refuses this worker or its model.
            UnavailableError: no daemon answers at the address within ten seconds.
        """
        initial = _announced(self._initial)
        image = _announced(self._image)
        process = pulse.this_process()
        opened = daemon_pb2.OpenWorker(
            name=self._name,
            model=wire.to_spec(self._spec),
            image=image,
            initial=initial,
            job=wire.to_claim(self._job),
            process=None if process is None else daemon_pb2.Process(pid=process.pid, started=process.started),
        )
        self._requests.put_nowait(daemon_pb2.AttachRequest(open=opened))
        self._thread.start()
        tell_copies(self)
        try:
            return self._joined.result()
        except BaseException:
            self._end()
            raise

    def push(
        self,
        parcel: Parcel,
        norm: float,
        computed_from: ModelVersion,
        get_into: memoryview | None,
        samples: Samples = (),
    ) -> tuple[OutcomeFuture, VersionFuture | None]:
        """Push an update, and get what follows it; see ``Daemon``."""
        outcome: OutcomeFuture = OutcomeFuture()
        version: VersionFuture | None = VersionFuture() if get_into is not None else None
        with self._lock:
            self._check_open()
            (segment,) = self._take(self._spec.layout.size_bytes)
            _fill(segment, parcel.pieces)
            call, self._calls = self._calls, self._calls + 2
            self._pushes[call] = _OpenPush(segment, outcome)
            if version is not None:
                self._gets[call + 1] = version
        push = daemon_pb2.PushUpdate(
            call=call,
            update=_announced(segment),
            norm=norm,
            computed_from=wire.to_version(computed_from),
            and_get=version is not None,
            samples=wire.to_samples(samples),
        )
        self._send(daemon_pb2.AttachRequest(push=push))
        return outcome, version

    def drop_samples(self, samples: Samples) -> None:
        """Say that samples were used in vain; see ``Daemon``."""
        self._check_open()
        dropped = session_pb2.SamplesDropped(samples=wire.to_samples(samples))
        self._send(daemon_pb2.AttachRequest(samples_dropped=dropped))

    def draw(self, wanted: SamplesWanted) -> DrawFuture:
        """Draw samples; see ``Daemon``."""
        granted = DrawFuture()
        with self._lock:
            self._check_open()
            call, self._calls = self._calls, self._calls + 2
            self._draws[call] = granted
        self._send(daemon_pb2.AttachRequest(draw=daemon_pb2.DrawSamples(call=call, wanted=wire.to_wanted(wanted))))
        return granted

    def grown(self, growth: Growth, ready_bytes: int) -> None:
        """Refuse: what grows here is not seen there; ``register_as_worker`` checks it before."""
        raise UsageError("an update that grows needs the daemon in this process; leave MLFABRIC_DAEMON unset")

    def give_up(self, growth: Growth, reason: GivenUpError) -> None:
        """Refuse, as :meth:`grown`."""
        self.grown(growth, 0)

    def get(self, buffer: memoryview, min_version: ModelVersion) -> VersionFuture:
        """Get the model into ``buffer``, which must be this daemon's own; see ``Daemon``."""
        assert buffer is self._image.buffer, "a remote daemon receives models in its own buffer"
        version = VersionFuture()
        with self._lock:
            self._check_open()
            call, self._calls = self._calls, self._calls + 2
            self._gets[call] = version
        get = daemon_pb2.GetModel(call=call, min_version=wire.to_version(min_version))
        self._send(daemon_pb2.AttachRequest(get=get))
        return version

    def reduce(self, buffers: ReduceBuffers, op: ReduceOp, together: int) -> CountFuture:
        """Take part in an AllReduce; see ``Daemon``.

        Raises:
            UnavailableError: there is not enough shared memory.
        """
        workers = CountFuture()
        with self._lock:
            self._check_open()
            given, result = self._take(len(buffers.given), len(buffers.result))
            opened = _OpenReduce(given, result, buffers.result, workers)
            _fill(opened.given, (buffers.given,))
            call, self._calls = self._calls, self._calls + 2
            self._reduces[call] = opened
        reduce = daemon_pb2.ReduceTensor(
            call=call,
            given=_announced(opened.given),
            result=_announced(opened.result),
            dtype=buffers.dtype,
            op=wire.to_reduce_op(op),
            together=together,
            size_bytes=len(buffers.given),
        )
        self._send(daemon_pb2.AttachRequest(reduce=reduce))
        return workers

    def in_a_copy(self) -> None:
        """Be closed: the thread is not in this process, and the memory is the other's."""
        self._over, self._why_closed = True, IN_A_COPY

    def leave(self, detail: str, drain_s: float) -> None:
        """Leave the fabric; see ``Daemon``."""
        if not self._over and self._thread.is_alive():
            self._send(daemon_pb2.AttachRequest(leave=daemon_pb2.LeaveFabric(detail=detail, drain_s=drain_s)))
            self._thread.join(drain_s + 5.0)
        self._end()

    def _end(self) -> None:
        self._over = True
        self._image.remove_family()

    def _check_open(self) -> None:
        if self._over:
            raise FabricClosedError(self._why_closed)

    def _take(self, *sizes_bytes: int) -> list[Segment]:
        """Return segments that are not in use, at least as long; called under the lock."""
        return self._pool.take(sizes_bytes, self._bytes_in_use)

    def _bytes_in_use(self) -> int:
        pushed = [push.segment.size_bytes for push in self._pushes.values()]
        return sum(pushed) + sum(2 * len(reduce.into) for reduce in self._reduces.values())

    def _give_back(self, *segments: Segment) -> None:
        for segment in segments:
            self._pool.give(segment)

    def _drop(self, segment: Segment) -> None:
        """Remove a segment here, and have the daemon forget it."""
        segment.remove()
        self._send(daemon_pb2.AttachRequest(forget=daemon_pb2.ForgetSegments(paths=[str(segment.path)])))

    # The stream, in its own thread

    def _send(self, request: daemon_pb2.AttachRequest) -> None:
        # The loop may end at any moment: then every open call is failed by the stream's end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._requests.put_nowait, request)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._talk())

    async def _talk(self) -> None:
        detail = "the daemon ended the stream"
        try:
            async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
                await self._reach(channel)
                stub = daemon_pb2_grpc.DaemonServiceStub(channel)
                call = stub.Attach()
                writer = asyncio.create_task(self._write(call))
                try:
                    async for response in call:
                        self._take_in(response)
                finally:
                    writer.cancel()
        except grpc.aio.AioRpcError as error:
            detail = error.details() or error.code().name
            if not self._joined.done():
                refused = error.code() is not grpc.StatusCode.UNAVAILABLE
                where = f"the daemon at {self._address}"
                self._joined.set_exception(
                    RefusedError(f"{where}: {detail}")
                    if refused
                    else UnavailableError(f"cannot reach {where}: {detail}; start it with: mlfabric worker")
                )
        finally:
            self._fail_all(detail)

    async def _reach(self, channel: grpc.aio.Channel) -> None:
        """Wait a while for a daemon that was started together with this process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAID_AFTER_S):
                return await channel.channel_ready()
        log.warning("%s waits for the daemon at %s; start it with: mlfabric worker", self._name, self._address)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMES_WITHIN_S - SAID_AFTER_S):
                await channel.channel_ready()

    async def _write(self, call: _Call) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._requests.get())

    def _take_in(self, response: daemon_pb2.AttachResponse) -> None:
        match response.WhichOneof("response"):
            case "opened":
                self._joined.set_result(_welcome(self._name, response.opened))
            case "settled":
                with self._lock:
                    push = self._pushes.pop(response.settled.call)
                    self._give_back(push.segment)
                push.outcome.set_result(wire.from_outcome(response.settled.outcome))
            case "got":
                with self._lock:
                    got = self._gets.pop(response.got.call)
                got.set_result(wire.from_version(response.got.version))
            case "drawn":
                with self._lock:
                    drawn = self._draws.pop(response.drawn.call)
                drawn.set_result(wire.from_granted(response.drawn.granted, self._name, "from its daemon"))
            case "reduced":
                self._reduced(response.reduced)
            case other:
                assert other == "left", f"{response} came from the daemon"

    def _reduced(self, reduced: daemon_pb2.TensorReduced) -> None:
        """Copy a result to where it belongs; segments of one that failed are used no more: they may be filled yet."""
        with self._lock:
            opened = self._reduces.pop(reduced.call)
        if reduced.error:
            self._drop(opened.given)
            self._drop(opened.result)
            opened.workers.set_exception(RefusedError(reduced.error))
            return
        opened.into[:] = opened.result.buffer[: len(opened.into)]
        with self._lock:
            self._give_back(opened.given, opened.result)
        opened.workers.set_result(reduced.workers)

    def _fail_all(self, detail: str) -> None:
        self._over = True
        with self._lock:
            for push in self._pushes.values():
                push.outcome.set_result(Lost(detail=f"the daemon at {self._address} is gone: {detail}"))
            for get in self._gets.values():
                get.set_exception(FabricClosedError(f"the daemon at {self._address} is gone: {detail}"))
            for reduce in self._reduces.values():
                reduce.workers.set_exception(FabricClosedError(f"the daemon at {self._address} is gone: {detail}"))
            for drawn in self._draws.values():
                drawn.set_exception(FabricClosedError(f"the daemon at {self._address} is gone: {detail}"))
            self._draws.clear()
            self._pushes.clear()
            self._gets.clear()
            self._reduces.clear()


def _announced(segment: Segment) -> daemon_pb2.Segment:
    return daemon_pb2.Segment(path=str(segment.path), size_bytes=segment.size_bytes)


def _fill(segment: Segment, pieces: Iterable[memoryview]) -> None:
    at = 0
    for piece in pieces:
        segment.buffer[at : at + piece.nbytes] = piece.cast("B") if piece.format != "B" else piece
        at += piece.nbytes


def _welcome(name: str, opened: daemon_pb2.WorkerOpened) -> Welcome:
    return Welcome(
        to=name,
        incarnation=0,
        epoch=opened.epoch,
        tau_max=opened.tau_max,
        server="",
        server_address="",
        initialise=False,
        monitor_address="",
        reason="joined through a daemon of its own",
    )
