"""Connections: frames over a byte stream.

Here live framing, the order of calls, rate limits, records, and what an error or a cancellation does: a direction that
was left in the middle has broken its framing, so the connection is closed, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mlfabric import clock
from mlfabric.channels.base import ConnectionClosedError, Direction, Frame, Stream, TransferRecord
from mlfabric.channels.frames import HEADER_BYTES, Header, check_magic, decode_header, encode_header
from mlfabric.channels.limiter import TokenBucket
from mlfabric.channels.limits import Limits
from mlfabric.channels.pacer import Pacer
from mlfabric.channels.progress import Filling
from mlfabric.channels.pump import Pump
from mlfabric.channels.views import chunked, contiguous, total_bytes
from mlfabric.errors import TransferError, UsageError

__all__ = ["Connection", "Handler"]

SCRATCH_BYTES = 1024 * 1024
STARVED_SHARE = 0.05
SPREAD_SHARE = 0.8
"""What was faster than this share of the rate at which it was spread out may have been slowed down by that."""
EMPTY = memoryview(b"")


class Connection:
    """A framed connection to one peer; it is not reopened after an error. Made inside a running event loop.

    Args:
        stream: the bytes; owned by the connection from now on.
        limits: of the endpoint.
        on_closed: called once, when the stream has been given back.
    """

    def __init__(self, stream: Stream, limits: Limits, on_closed: Callable[[Connection], None]) -> None:
        self._stream = stream
        self._limits = limits
        self._on_closed = on_closed
        self._sending, self._receiving = _Use(self, Direction.OUT), _Use(self, Direction.IN)
        self._breaking = _Breaking(self)
        self._unread_bytes = 0
        self._incoming_paced = False
        self._spread_bps = 0
        self._heard: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        self._stopping: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._stream.peer

    def when_heard(self, call: Callable[[], None]) -> None:
        """Call back once, when the first whole frame has come."""
        self._heard = call

    @property
    def unread_bytes(self) -> int:
        """Payload bytes that were announced and have not been received or discarded yet."""
        return self._unread_bytes

    @property
    def waiting_bytes(self) -> int:
        """How many bytes have come and were not read yet; 0 where an emulated link has yet to let them through."""
        if self._limits.down or self._stopping.done():
            return 0
        with self._breaking:
            return self._stream.waiting_bytes()

    def spread(self, rate_bps: int) -> None:
        """Have the transport space out what is sent from now on at about a rate, until told otherwise; 0 not at all.

        So streams that meet at a slow link, each at its share of it, find no queue there that bursts have made. It is
        no limit: first packets and small frames go at once, and a transport that cannot do it sends as it can. What was
        slowed down by this counts as paced.
        """
        if rate_bps != self._spread_bps and self._stream.spread(rate_bps):
            self._spread_bps = rate_bps

    async def send(self, frame: Frame, payload: Sequence[memoryview] = (), rate_bps: int = 0) -> TransferRecord | None:
        """Send a frame and its payload without copying it.

        Args:
            frame: what to send; its ``length`` is the payload's size.
            payload: contiguous buffers that follow each other on the wire; not to be changed until this returns.
            rate_bps: hold the payload to this rate; 0 sends at full speed.

        Returns:
            The transfer's record; None for a frame without payload.

        Raises:
            UsageError: the payload is not ``frame.length`` bytes long, or another task is sending; nothing was sent.
            TransferError: the connection broke; it is closed.
        """
        views = contiguous(payload)
        if total_bytes(views) != frame.length:
            raise UsageError(f"the frame announces {frame.length} payload bytes, given {total_bytes(views)}")
        pacer = self._upward(rate_bps)
        with self._sending:
            head = self._head(frame, pacer, paced=rate_bps > 0 or self._spread_bps > 0)
            if not frame.length:
                await self._write(head)
                return None
            return await self._send_payload(head, views, pacer, paced=rate_bps > 0)

    def _upward(self, rate_bps: int) -> Pacer:
        own = (TokenBucket(rate_bps),) if rate_bps else ()
        return Pacer(self._limits.up + own, self._stopping)

    def _head(self, frame: Frame, pacer: Pacer, *, paced: bool) -> list[memoryview]:
        """Return what goes before a payload, paid for."""
        head = memoryview(encode_header(frame, paced=paced) + frame.meta)
        pacer.charge(len(head))
        return [head]

    async def _send_payload(
        self, head: list[memoryview], views: Sequence[memoryview], pacer: Pacer, *, paced: bool
    ) -> TransferRecord:
        started_ns = clock.monotonic_ns()
        with pacer:
            for group in chunked(views, pacer.chunk_bytes):
                await pacer.admit(total_bytes(group))
                await self._write([*head, *group])
                head = []
            await self._drain()
        record = self._record(Direction.OUT, total_bytes(views), started_ns, paced=paced)
        if paced or not self._spread_bps:
            return record
        with self._breaking:
            delivered = record.bytes - self._stream.unacknowledged_bytes()
        return self._with_busy(record, max(0, delivered), record.ended_ns - record.started_ns)

    async def send_stream(self, frame: Frame, filling: Filling, rate_bps: int = 0) -> TransferRecord:
        """Send a frame whose payload becomes ready piece by piece, without copying it.

        The receiver is told that the payload is paced, since nobody knows beforehand how often it will have to wait for
        its bytes; a payload that is ready is better sent by :meth:`send`.

        Args:
            frame: what to send; its ``length`` is the payload's size, > 0.
            filling: the buffer that is being filled with it.
            rate_bps: hold the payload to this rate; 0 sends at full speed.

        Returns:
            The transfer's record, paced also if a relevant share of the time was spent waiting for bytes.

        Raises:
            UsageError: the frame announces no payload, or the buffer is not ``frame.length`` bytes long, or another
                task is sending; nothing was sent.
            TransferError: the connection broke, or was closed meanwhile; it is closed.
            Exception: what the filling failed with; the payload is torn and the connection closed.
        """
        if not frame.length:
            raise UsageError(f"a {frame.kind.name} frame without payload was given to send_stream; use send")
        if len(filling.payload) != frame.length:
            given = f"the buffer has {len(filling.payload)}"
            raise UsageError(f"the frame announces {frame.length} payload bytes; {given}")
        pacer = self._upward(rate_bps)
        with self._sending:
            await self._write(self._head(frame, pacer, paced=True))
            with self._interrupted_by_stop():
                if pacer.is_free:
                    return await self._send_freely(filling)
                return await self._send_held(filling, pacer, paced=rate_bps > 0)

    async def _send_held(self, filling: Filling, pacer: Pacer, *, paced: bool) -> TransferRecord:
        """Send a buffer as it becomes ready, as fast as rate limits allow."""
        started_ns, waited_ns = clock.monotonic_ns(), 0
        at, length = 0, len(filling.payload)
        with pacer:
            while at < length:
                asked_ns = clock.monotonic_ns()
                end = min(await filling.progress.reached(at + 1), at + pacer.chunk_bytes)
                waited_ns += clock.monotonic_ns() - asked_ns
                await pacer.admit(end - at)
                await self._write([filling.payload[at:end]])
                at = end
            filling.progress.check()
            await self._drain()
        starved = waited_ns > STARVED_SHARE * (clock.monotonic_ns() - started_ns)
        return self._record(Direction.OUT, length, started_ns, paced=paced or starved)

    async def _send_freely(self, filling: Filling) -> TransferRecord:
        """Send a buffer as it becomes ready, at full speed."""
        started_ns, pump = clock.monotonic_ns(), Pump(self._stream, filling)
        with self._breaking:
            await pump.run()
        await self._drain()
        with self._breaking:
            pump.look()
        took_ns, busy = clock.monotonic_ns() - started_ns, pump.backlog
        starved = took_ns - busy.ns > STARVED_SHARE * took_ns
        record = self._record(Direction.OUT, len(filling.payload), started_ns, paced=starved)
        return self._with_busy(record, busy.bytes, busy.ns)

    def _with_busy(self, record: TransferRecord, n_bytes: int, took_ns: int) -> TransferRecord:
        """Add to a record what the links carried while they alone held it up, unless spreading may have."""
        spread = self._was_spread(n_bytes, took_ns)
        return record if spread or not n_bytes else replace(record, busy_bytes=n_bytes, busy_ns=took_ns)

    async def _write(self, pieces: Sequence[memoryview]) -> None:
        with self._breaking:
            await self._stream.write(pieces)

    async def _drain(self) -> None:
        with self._breaking:
            await self._stream.drain()
        self._check_open()

    async def receive(self) -> Frame:
        """Receive the next frame, header and meta only.

        Raises:
            ConnectionClosedError: the peer closed the connection between two frames.
            TransferError: the connection broke, or what came is not a frame that is allowed; it is closed.
            UsageError: the payload of the frame before has not been received or discarded yet.
        """
        if self._unread_bytes:
            raise UsageError(
                f"{self._unread_bytes} payload bytes are still to be received: receive_into or discard first"
            )
        with self._receiving:
            header = await self._receive_header()
            meta = bytearray(header.meta_bytes)
            if meta:
                await self._fill(memoryview(meta))
        if self._heard is not None:
            self._heard()
            self._heard = None
        if self._limits.down:
            Pacer(self._limits.down, self._stopping).charge(HEADER_BYTES + header.meta_bytes)
        self._unread_bytes = header.length
        self._incoming_paced = header.paced
        return Frame(
            kind=header.kind, ticket=header.ticket, length=header.length, digest=header.digest, meta=bytes(meta)
        )

    async def _receive_header(self) -> Header:
        raw = bytearray(HEADER_BYTES)
        at = await self._read(memoryview(raw), 1)
        if at == 0:
            raise ConnectionClosedError(f"{self.peer} closed the connection between two frames")
        check_magic(raw[:at])
        if at < HEADER_BYTES:
            await self._fill(memoryview(raw)[at:])
        return decode_header(raw, max_payload_bytes=self._limits.max_payload_bytes)

    async def receive_into(self, buffer: memoryview, length: int) -> TransferRecord:
        """Receive exactly the next ``length`` bytes of the announced payload.

        Args:
            buffer: contiguous and writable, of ``length`` bytes at least.
            length: all that is left of the payload, or a part of it.

        Raises:
            TransferError: the connection broke; it is closed and the buffer is torn.
            UsageError: the buffer is too small or read-only, or less than ``length`` was announced.
        """
        if buffer.readonly or buffer.nbytes < length:
            given = f"{'read-only' if buffer.readonly else 'writable'} buffer of {buffer.nbytes} bytes"
            raise UsageError(f"given a {given}; wanted a writable one of {length} bytes or more")
        (view,) = contiguous([buffer]) or (buffer,)
        return await self._receive_payload(length, lambda at, n: view[at : at + n])

    async def receive_through(
        self, pieces: Sequence[memoryview], took: Callable[[], Awaitable[None] | None]
    ) -> TransferRecord:
        """Receive the next bytes of the announced payload piece by piece, each into its own buffer or all into one.

        Nobody is woken between two pieces, so short ones cost little more than one long one.

        Args:
            pieces: contiguous and writable, none empty; they are filled one after the other.
            took: called in the event loop whenever a piece is full, before the next one is begun. What it returns is
                awaited first; None goes on at once.

        Raises:
            TransferError: the connection broke; it is closed.
            UsageError: a piece is read-only or empty, or less than all of them was announced; nothing was received.
            Exception: whatever ``took`` raised, or what it returned; the rest of the payload is still to be received.
        """
        views, length = contiguous(pieces), total_bytes(pieces)
        if len(views) < len(pieces) or any(view.readonly for view in views) or not views:
            raise UsageError("given a read-only or empty piece, or none; wanted writable ones of 1 byte or more")
        self._check_announced(length)
        started_ns = clock.monotonic_ns()
        rest = iter(views)
        while (view := next(rest, None)) is not None:
            if self._limits.down:
                ended_ns, later = (await self.receive_into(view, len(view))).ended_ns, took()
            else:
                ended_ns, later = await self._read_on(view, rest, took)
            if later is not None:
                await later
        return self._record(Direction.IN, length, started_ns, paced=self._incoming_paced, ended_ns=ended_ns)

    async def _read_on(
        self, first: memoryview, rest: Iterator[memoryview], took: Callable[[], Awaitable[None] | None]
    ) -> tuple[int, Awaitable[None] | None]:
        """Fill pieces until one is to be waited for or none is left; return when the last was full, and what for."""
        view, ended_ns = first, 0
        later: Awaitable[None] | None = None
        failure: Exception | None = None

        def full() -> memoryview:
            nonlocal view, ended_ns, later, failure
            ended_ns = clock.monotonic_ns()
            self._unread_bytes -= len(view)
            try:
                later = took()
            except Exception as error:  # no fault of the connection's: it is whole between two pieces
                failure = error
            view = EMPTY if later is not None or failure is not None else next(rest, EMPTY)
            return view

        with self._receiving, self._breaking:
            if not await self._stream.read_through(first, full):
                self._check_open()
                raise TransferError(f"{self.peer} closed the connection in the middle of a frame")
        if failure is not None:
            raise failure
        return ended_ns, later

    async def discard(self, length: int) -> TransferRecord:
        """Receive the next ``length`` bytes of the announced payload and throw them away."""
        scratch = memoryview(bytearray(min(length, SCRATCH_BYTES)) if length > 0 else b"")
        return await self._receive_payload(length, lambda _at, n: scratch[:n])

    async def _receive_payload(self, length: int, place: Callable[[int, int], memoryview]) -> TransferRecord:
        self._check_announced(length)
        pacer = Pacer(self._limits.down, self._stopping)
        started_ns, at = clock.monotonic_ns(), 0
        with self._receiving, pacer:
            while at < length:
                view = place(at, min(pacer.chunk_bytes, length - at))
                await pacer.admit(len(view))
                self._check_open()
                await self._fill(view)
                at += len(view)
        self._unread_bytes -= length
        return self._record(Direction.IN, length, started_ns, paced=self._incoming_paced)

    def _check_announced(self, length: int) -> None:
        if not 0 <= length <= self._unread_bytes:
            raise UsageError(
                f"asked for {length} payload bytes; {self._unread_bytes} are announced and not yet received"
            )

    async def _fill(self, view: memoryview) -> None:
        if await self._read(view, len(view)) < len(view):
            raise TransferError(f"{self.peer} closed the connection in the middle of a frame")

    async def _read(self, view: memoryview, at_least: int) -> int:
        if not at_least:
            return 0
        with self._breaking:
            n = await self._stream.read_into(view, at_least)
        if n < at_least:
            self._check_open()
        return n

    def _record(
        self, direction: Direction, n_bytes: int, started_ns: int, *, paced: bool, ended_ns: int = 0
    ) -> TransferRecord:
        ended_ns, out = ended_ns or clock.monotonic_ns(), direction is Direction.OUT
        return TransferRecord(
            direction=direction,
            bytes=n_bytes,
            paced=paced or (out and self._was_spread(n_bytes, ended_ns - started_ns)),
            started_ns=started_ns,
            ended_ns=ended_ns,
        )

    def _was_spread(self, n_bytes: int, took_ns: int) -> bool:
        """Tell whether the rate at which it was spread out, and not the links, may have held up what was sent."""
        held_bits = self._spread_bps * SPREAD_SHARE * took_ns / 1e9
        return 8 * n_bytes > held_bits > 0

    def _check_open(self) -> None:
        if self._stopping.done():
            raise TransferError(f"the connection to {self.peer} was closed at this end")

    @contextmanager
    def _interrupted_by_stop(self) -> Iterator[None]:
        """Let closing the connection end a wait that is not the stream's, the way ``asyncio.timeout`` ends one."""
        task = asyncio.current_task()
        assert task is not None, "connections are used by tasks"
        inside, interrupted = True, False

        def interrupt(_stopping: asyncio.Future[None]) -> None:
            nonlocal interrupted
            if inside:
                interrupted = True
                task.cancel()

        self._stopping.add_done_callback(interrupt)
        try:
            yield
        except asyncio.CancelledError:
            if interrupted and task.cancelling() == 1:
                self._check_open()
            raise
        finally:
            inside = False
            self._stopping.remove_done_callback(interrupt)
            if interrupted:
                task.uncancel()

    def close(self) -> None:
        """Close the connection; what is waiting in it gets a TransferError.

        Frames that were sent still reach the peer, unless bytes of the peer's lie unread here: TCP then resets.
        """
        # Who sends a payload that is torn here may wait for room, and only a reset ends that wait.
        self._stop(abrupt=self._unread_bytes > 0)
        self._release_if_idle()

    def _stop(self, *, abrupt: bool) -> None:
        if not self._stopping.done():
            self._stopping.set_result(None)
            self._stream.stop(abrupt=abrupt)

    def _release_if_idle(self) -> None:
        if self._stopping.done() and not (self._sending.is_on or self._receiving.is_on or self._closed.done()):
            self._stream.close()
            self._closed.set_result(None)
            self._on_closed(self)

    async def wait_closed(self) -> None:
        """Wait until nothing of the connection is left."""
        await asyncio.shield(self._closed)


class _Use:
    """One direction of a connection while a task uses it; left by an error, the connection is closed.

    It is entered for every frame and piece, so it is no generator; nor is the next one.
    """

    def __init__(self, connection: Connection, direction: Direction) -> None:
        self.is_on = False
        self._connection = connection
        self._direction = direction

    def __enter__(self) -> None:
        self._connection._check_open()
        if self.is_on:
            which = f"this direction ({self._direction.value}) of the connection to {self._connection.peer}"
            raise UsageError(f"another task is using {which}")
        self.is_on = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.is_on = False
        if error is not None:
            self._connection._stop(abrupt=True)
        self._connection._release_if_idle()


class _Breaking:
    """Turns the stream's own errors into TransferErrors, and no others."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._connection._check_open()
            raise TransferError(f"the connection to {self._connection.peer} broke: {error}") from error


Handler = Callable[[Connection], Awaitable[None]]
"""Serves one accepted connection; the connection is closed when it returns."""
