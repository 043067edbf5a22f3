"""The worker daemon as a process of its own, beside training processes of the same machine (``mlfabric worker``).

Control comes over a stream of ``daemon.proto``, tensors lie in shared memory that the training process made. One
stream is one worker; when it breaks, its training process is gone: the worker leaves the fabric and its memory is
removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.config import WorkerSettings
from mlfabric.control import Decoding, server_limits
from mlfabric.errors import FabricError, RefusedError, UsageError
from mlfabric.fail_stop import Tasks
from mlfabric.protocol import ModelVersion, Outcome, SamplesGranted, UpdateId
from mlfabric.pulse import Process
from mlfabric.telemetry import MetricsPage, WorkerMetrics
from mlfabric.v1 import daemon_pb2, daemon_pb2_grpc
from mlfabric.worker_daemon.attempts import ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.daemon import DaemonOptions, WorkerDaemon
from mlfabric.worker_daemon.sending import Parcel
from mlfabric.worker_daemon.shared import Segment

__all__ = ["BesideOptions", "serve"]

log = logging.getLogger("mlfabric.worker")
DEATH_DRAIN_S = 5.0
DRAIN_S = 30.0
MOST_TRAINERS = 1024
"""The most training processes that are served at a time."""
MOST_CALLS = 8192
"""The most calls of one training process that are open: more than a scheduler takes from a worker."""
MOST_SEGMENTS = 2 * MOST_CALLS
"""The most pieces of memory that one training process shares."""
OPEN_WITHIN_S = 10.0
LONGEST_DRAIN_S = 24 * 3600.0
_ANSWERS = {"push": 1, "get": 1, "reduce": 1, "draw": 1}
_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True)
class BesideOptions:
    """How a daemon beside training processes runs.

    Args:
        settings: its surroundings; ``daemon`` is the address it listens on: ``unix:/path``, or ``host:port`` of the
            loopback interface.
    """

    settings: WorkerSettings

    def __post_init__(self) -> None:
        address = self.settings.daemon
        if not address.startswith(("unix:", "127.0.0.1:", "localhost:", "[::1]:")):
            raise UsageError(f"daemon address {address!r}; allowed: unix:/path, or 127.0.0.1:port: it shares memory")


async def serve(options: BesideOptions, stop: asyncio.Event) -> None:
    """Serve training processes until ``stop`` is set.

    Raises:
        UsageError: the address cannot be listened on.
    """
    server = grpc.aio.server(
        interceptors=[Decoding()], options=server_limits(MOST_TRAINERS), maximum_concurrent_rpcs=MOST_TRAINERS
    )
    metrics = WorkerMetrics()
    service = DaemonService(options.settings, metrics)
    daemon_pb2_grpc.add_DaemonServiceServicer_to_server(service, server)
    address = options.settings.daemon
    try:
        if not server.add_insecure_port(address):
            raise RuntimeError("no port")
    except RuntimeError as error:
        raise UsageError(f"cannot listen on {address}: in use or not allowed; choose another address") from error
    page = None
    if options.settings.metrics_port is not None:
        tcp = options.settings.tcp
        page = MetricsPage(metrics.registry, tcp.bind, options.settings.metrics_port, tcp.security)
        page.start()
    await server.start()
    log.info("worker daemon at %s", address)
    try:
        await stop.wait()
        await service.drain()
    finally:
        await server.stop(DEATH_DRAIN_S)
        if page is not None:
            page.stop()


class DaemonService(daemon_pb2_grpc.DaemonServiceServicer):
    """Keeps one attachment for each training process."""

    def __init__(self, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._attached: set[_Attachment] = set()

    async def Attach(
        self, request_iterator: AsyncIterator[daemon_pb2.AttachRequest], context: _Context
    ) -> AsyncIterator[daemon_pb2.AttachResponse]:
        """Be one training process's daemon for as long as its stream lasts."""
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                first = await anext(request_iterator, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no worker was opened within {OPEN_WITHIN_S} s")
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if first is None or first.WhichOneof("request") != "open":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must open a worker")
        assert first is not None
        attachment: _Attachment | None = None
        try:
            attachment = _Attachment(self._settings, self._metrics, first.open)
            self._attached.add(attachment)
            yield await attachment.join()
            async for response in attachment.talk(request_iterator):
                yield response
        except _TooMuchError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except FabricError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if attachment is not None:
                self._attached.discard(attachment)
                await attachment.close()

    async def drain(self) -> None:
        """Let every worker leave, each after its open pushes."""
        detail = "its daemon was told to end"
        await asyncio.gather(*(attachment.leave(detail, DRAIN_S) for attachment in self._attached))


class _TooMuchError(FabricError):
    """A training process has more of something open than it may."""


class _Attachment:
    """One training process: its worker and its shared memory."""

    def __init__(self, settings: WorkerSettings, metrics: WorkerMetrics, opened: daemon_pb2.OpenWorker) -> None:
        self._answers: asyncio.Queue[daemon_pb2.AttachResponse | BaseException | None] = asyncio.Queue()
        self._open_calls = 0
        spec = wire.from_spec(opened.model)
        self._digest = spec.layout.digest
        self._size_bytes = spec.layout.size_bytes
        self._segments: dict[str, Segment] = {}
        self._image = self._segment(opened.image, self._size_bytes)
        initial = self._segment(opened.initial, self._size_bytes)
        options = DaemonOptions(
            scheduler=settings.scheduler,
            name=opened.name or settings.name,
            host=settings.host,
            tcp=settings.tcp,
            job=wire.from_claim(opened.job),
            processes=(Process(opened.process.pid, opened.process.started),) if opened.HasField("process") else (),
        )
        self._name = options.name
        self._daemon = WorkerDaemon(options, spec, self._parcel(initial), metrics)
        self._leaving: asyncio.Task[None] | None = None
        self._is_alone = asyncio.Event()

    def _segment(self, announced: daemon_pb2.Segment, size_bytes: int) -> Segment:
        if announced.size_bytes != size_bytes:
            raise UsageError(f"a segment of {announced.size_bytes} bytes came; the model has {size_bytes}")
        return self._mapped(announced)

    def _mapped(self, announced: daemon_pb2.Segment) -> Segment:
        """Return a segment, mapped when it is first announced, with the size that it had then."""
        known = self._segments.get(announced.path)
        if known is None:
            if len(self._segments) >= MOST_SEGMENTS:
                raise _TooMuchError(f"a segment came on top of {MOST_SEGMENTS}; allowed: as many")
            known = self._segments[announced.path] = Segment.attach(announced.path, announced.size_bytes)
        if known.size_bytes != announced.size_bytes:
            raise UsageError(
                f"{announced.path} was announced with {known.size_bytes} bytes before, and now with "
                f"{announced.size_bytes}; allowed: one size"
            )
        return known

    def _forget(self, paths: Iterable[str]) -> None:
        """Map segments no longer, once no call uses them any more."""
        for path in paths:
            self._segments.pop(path, None)

    def _parcel(self, segment: Segment) -> Parcel:
        return Parcel(pieces=(segment.buffer,), digest=self._digest, is_unchanged=lambda: True)

    async def join(self) -> daemon_pb2.AttachResponse:
        """Join the fabric and say so."""
        welcome = await self._daemon.start()
        return daemon_pb2.AttachResponse(opened=daemon_pb2.WorkerOpened(tau_max=welcome.tau_max, epoch=welcome.epoch))

    async def talk(self, requests: AsyncIterator[daemon_pb2.AttachRequest]) -> AsyncIterator[daemon_pb2.AttachResponse]:
        """Carry out the training process's calls; give the answers, until it or its worker has left.

        Raises:
            FabricError: the fabric has ended for this worker; says why.
        """
        reader = Tasks(lambda failed: self._answers.put_nowait(failed.error)).spawn(self._read(requests))
        try:
            while (answer := await self._answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                self._open_calls -= 1
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[daemon_pb2.AttachRequest]) -> None:
        detail = "its training process is gone"
        drain_s = DEATH_DRAIN_S
        try:
            async for request in requests:
                self._count(request)
                match request.WhichOneof("request"):
                    case "push":
                        self._push(request.push)
                    case "get":
                        self._get(request.get.call, wire.from_version(request.get.min_version), None)
                    case "reduce":
                        self._reduce(request.reduce)
                    case "draw":
                        self._draw(request.draw)
                    case "forget":
                        self._forget(request.forget.paths)
                    case "samples_dropped":
                        self._daemon.drop_samples(wire.from_samples(request.samples_dropped.samples))
                    case "leave":
                        detail, drain_s = request.leave.detail, _drain_s(request.leave)
                        break
                    case _:
                        raise UsageError("a worker is opened once; then come its calls")
        except DecodeError as error:
            self._answers.put_nowait(UsageError(str(error)))
        except FabricError as error:
            self._answers.put_nowait(error)
        else:
            await self.leave(detail, drain_s)

    def _count(self, request: daemon_pb2.AttachRequest) -> None:
        """Count the answers that a request will have, until they are taken."""
        self._open_calls += _ANSWERS.get(request.WhichOneof("request") or "", 0) + request.push.and_get
        if self._open_calls > MOST_CALLS:
            raise _TooMuchError(f"{self._open_calls} calls are open; allowed: {MOST_CALLS}")

    def _push(self, call: daemon_pb2.PushUpdate) -> None:
        segment = self._segment(call.update, self._size_bytes)
        version = wire.from_version(call.computed_from)
        update, handle = self._daemon.push(self._parcel(segment), call.norm, version, wire.from_samples(call.samples))
        handle.add_done_callback(lambda done: self._settled(call.call, done))
        if call.and_get:
            self._get(call.call + 1, ModelVersion(0, 0), update)

    def _settled(self, call: int, done: asyncio.Future[Outcome]) -> None:
        error = done.exception()
        if error is not None:
            self._answers.put_nowait(error)
            return
        settled = daemon_pb2.CallSettled(call=call, outcome=wire.to_outcome(done.result()))
        self._answers.put_nowait(daemon_pb2.AttachResponse(settled=settled))

    def _get(self, call: int, min_version: ModelVersion, after: UpdateId | None) -> None:
        got = self._daemon.get(self._image.buffer, min_version, after)
        got.add_done_callback(lambda done: self._got(call, done))

    def _draw(self, call: daemon_pb2.DrawSamples) -> None:
        granted = self._daemon.draw(wire.from_wanted(call.wanted, self._name))
        granted.add_done_callback(lambda done: self._drawn(call.call, done))

    def _drawn(self, call: int, done: asyncio.Future[SamplesGranted]) -> None:
        error = done.exception()
        if error is None:
            drawn = daemon_pb2.SamplesDrawn(call=call, granted=wire.to_granted(done.result()))
            self._answers.put_nowait(daemon_pb2.AttachResponse(drawn=drawn))
        elif self._leaving is None:
            self._answers.put_nowait(error)

    def _got(self, call: int, done: asyncio.Future[ModelVersion]) -> None:
        error = done.exception()
        if error is None:
            got = daemon_pb2.ModelGot(call=call, version=wire.to_version(done.result()))
            self._answers.put_nowait(daemon_pb2.AttachResponse(got=got))
        elif self._leaving is None:
            self._answers.put_nowait(error)

    def _reduce(self, call: daemon_pb2.ReduceTensor) -> None:
        op = wire.from_reduce_tensor(call)
        buffers = ReduceBuffers(
            given=self._part(call.given, call.size_bytes),
            result=self._part(call.result, padded_bytes(call.size_bytes)),
            dtype=call.dtype,
        )
        reduced = self._daemon.reduce(buffers, op, call.together)
        reduced.add_done_callback(lambda done: self._reduced(call.call, done))

    def _part(self, announced: daemon_pb2.Segment, size_bytes: int) -> memoryview:
        if announced.size_bytes < size_bytes:
            raise UsageError(f"a segment of {announced.size_bytes} bytes came for a tensor; it needs {size_bytes}")
        return self._mapped(announced).buffer[:size_bytes]

    def _reduced(self, call: int, done: asyncio.Future[int]) -> None:
        error = done.exception()
        if error is None or isinstance(error, RefusedError):
            workers = 0 if error is not None else done.result()
            reduced = daemon_pb2.TensorReduced(call=call, workers=workers, error="" if error is None else str(error))
            self._answers.put_nowait(daemon_pb2.AttachResponse(reduced=reduced))
        elif self._leaving is None:
            self._answers.put_nowait(error)

    async def leave(self, detail: str, drain_s: float) -> None:
        """Wait for open pushes for at most ``drain_s``, leave the fabric, end the answers; once."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(detail, drain_s))
        await asyncio.shield(self._leaving)

    async def _leave(self, detail: str, drain_s: float) -> None:
        log.info("%s leaves: %s", self._name, detail)
        draining = asyncio.create_task(self._daemon.drain(drain_s))
        alone = asyncio.create_task(self._is_alone.wait())
        await asyncio.wait((draining, alone), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, alone):
            task.cancel()
        await asyncio.gather(draining, alone, return_exceptions=True)
        await self._daemon.close(detail)
        self._answers.put_nowait(daemon_pb2.AttachResponse(left=daemon_pb2.WorkerLeft()))
        self._answers.put_nowait(None)

    async def close(self) -> None:
        """Leave, if that has not happened, wait for nothing any more, and remove the shared memory."""
        self._is_alone.set()
        await self.leave("its training process is gone", 0.0)
        self._image.remove_family()


def _drain_s(leave: daemon_pb2.LeaveFabric) -> float:
    """Return how long a worker that leaves waits.

    Raises:
        UsageError: not a time.
    """
    if not 0 <= leave.drain_s <= LONGEST_DRAIN_S:
        raise UsageError(f"LeaveFabric.drain_s={leave.drain_s}; allowed: 0 to {LONGEST_DRAIN_S:.0f}")
    return leave.drain_s
