"""The receiving direction of a connection: frames in order, each with exactly the payload that it announces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from mlfabric import clock
from mlfabric.channels.base import ConnectionClosedError, Direction, Frame, TransferRecord
from mlfabric.channels.frames import HEADER_BYTES, Header, check_magic, decode_header
from mlfabric.channels.limits import Limits
from mlfabric.channels.open_stream import OpenStream
from mlfabric.channels.pacer import Pacer
from mlfabric.channels.views import contiguous, total_bytes
from mlfabric.errors import TransferError, UsageError

__all__ = ["FrameReceiver"]

SCRATCH_BYTES = 1024 * 1024
EMPTY = memoryview(b"")


class FrameReceiver:
    """Receives frames from a stream; ``unread_bytes`` are announced and not received or discarded yet.

    Args:
        stream: of the connection.
        limits: of the endpoint.
    """

    def __init__(self, stream: OpenStream, limits: Limits) -> None:
        self.unread_bytes = 0
        self._stream = stream
        self._limits = limits
        self._is_paced = False
        self._heard: Callable[[], None] | None = None

    def when_heard(self, call: Callable[[], None]) -> None:
        """See :meth:`Connection.when_heard`."""
        self._heard = call

    @property
    def waiting_bytes(self) -> int:
        """See :attr:`Connection.waiting_bytes`."""
        if self._limits.down or self._stream.stopping.done():
            return 0
        with self._stream.breaking:
            return self._stream.raw.waiting_bytes()

    async def receive(self) -> Frame:
        """See :meth:`Connection.receive`."""
        if self.unread_bytes:
            raise UsageError(
                f"{self.unread_bytes} payload bytes are still to be received: receive_into or discard first"
            )
        with self._stream.receiving:
            header = await self._receive_header()
            meta = bytearray(header.meta_bytes)
            if meta:
                await self._fill(memoryview(meta))
        if self._heard is not None:
            self._heard()
            self._heard = None
        if self._limits.down:
            Pacer(self._limits.down, self._stream.stopping).charge(HEADER_BYTES + header.meta_bytes)
        self.unread_bytes = header.length
        self._is_paced = header.paced
        return Frame(
            kind=header.kind, ticket=header.ticket, length=header.length, digest=header.digest, meta=bytes(meta)
        )

    async def _receive_header(self) -> Header:
        raw = bytearray(HEADER_BYTES)
        at = await self._read(memoryview(raw), 1)
        if at == 0:
            raise ConnectionClosedError(f"{self._stream.peer} closed the connection between two frames")
        check_magic(raw[:at])
        if at < HEADER_BYTES:
            await self._fill(memoryview(raw)[at:])
        return decode_header(raw, max_payload_bytes=self._limits.max_payload_bytes)

    async def receive_into(self, buffer: memoryview, length: int) -> TransferRecord:
        """See :meth:`Connection.receive_into`."""
        if buffer.readonly or buffer.nbytes < length:
            given = f"{'read-only' if buffer.readonly else 'writable'} buffer of {buffer.nbytes} bytes"
            raise UsageError(f"given a {given}; wanted a writable one of {length} bytes or more")
        (view,) = contiguous([buffer]) or (buffer,)
        return await self._receive_payload(length, lambda at, n: view[at : at + n])

    async def receive_through(
        self, pieces: Sequence[memoryview], took: Callable[[], Awaitable[None] | None]
    ) -> TransferRecord:
        """See :meth:`Connection.receive_through`."""
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
        return self._record(length, started_ns, ended_ns)

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
            self.unread_bytes -= len(view)
            try:
                later = took()
            except Exception as error:  # no fault of the connection's: it is whole between two pieces
                failure = error
            view = EMPTY if later is not None or failure is not None else next(rest, EMPTY)
            return view

        with self._stream.receiving, self._stream.breaking:
            if not await self._stream.raw.read_through(first, full):
                self._stream.check_open()
                raise TransferError(f"{self._stream.peer} closed the connection in the middle of a frame")
        if failure is not None:
            raise failure
        return ended_ns, later

    async def discard(self, length: int) -> TransferRecord:
        """See :meth:`Connection.discard`."""
        scratch = memoryview(bytearray(min(length, SCRATCH_BYTES)) if length > 0 else b"")
        return await self._receive_payload(length, lambda _at, n: scratch[:n])

    async def _receive_payload(self, length: int, place: Callable[[int, int], memoryview]) -> TransferRecord:
        self._check_announced(length)
        pacer = Pacer(self._limits.down, self._stream.stopping)
        started_ns, at = clock.monotonic_ns(), 0
        with self._stream.receiving, pacer:
            while at < length:
                view = place(at, min(pacer.chunk_bytes, length - at))
                await pacer.admit(len(view))
                self._stream.check_open()
                await self._fill(view)
                at += len(view)
        self.unread_bytes -= length
        return self._record(length, started_ns, clock.monotonic_ns())

    def _check_announced(self, length: int) -> None:
        if not 0 <= length <= self.unread_bytes:
            raise UsageError(
                f"asked for {length} payload bytes; {self.unread_bytes} are announced and not yet received"
            )

    async def _fill(self, view: memoryview) -> None:
        if await self._read(view, len(view)) < len(view):
            raise TransferError(f"{self._stream.peer} closed the connection in the middle of a frame")

    async def _read(self, view: memoryview, at_least: int) -> int:
        if not at_least:
            return 0
        with self._stream.breaking:
            n = await self._stream.raw.read_into(view, at_least)
        if n < at_least:
            self._stream.check_open()
        return n

    def _record(self, n_bytes: int, started_ns: int, ended_ns: int) -> TransferRecord:
        return TransferRecord(
            direction=Direction.IN, bytes=n_bytes, paced=self._is_paced, started_ns=started_ns, ended_ns=ended_ns
        )
