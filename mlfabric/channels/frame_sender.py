"""The sending direction of a connection: frames in order, rate limits, and what the records of it tell about links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfabric import clock
from mlfabric.channels.base import Direction, Frame, TransferRecord
from mlfabric.channels.frames import encode_header
from mlfabric.channels.limiter import TokenBucket
from mlfabric.channels.limits import Limits
from mlfabric.channels.open_stream import OpenStream
from mlfabric.channels.pacer import Pacer
from mlfabric.channels.progress import Filling
from mlfabric.channels.pump import Pump
from mlfabric.channels.views import chunked, contiguous, total_bytes
from mlfabric.errors import UsageError

__all__ = ["FrameSender"]

STARVED_SHARE = 0.05
SPREAD_SHARE = 0.8
"""What was faster than this share of the rate at which it was spread out may have been slowed down by that."""


class FrameSender:
    """Sends frames over a stream.

    Args:
        stream: of the connection.
        limits: of the endpoint.
    """

    def __init__(self, stream: OpenStream, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._spread_bps = 0

    def spread(self, rate_bps: int) -> None:
        """See :meth:`Connection.spread`."""
        if rate_bps != self._spread_bps and self._stream.raw.spread(rate_bps):
            self._spread_bps = rate_bps

    async def send(self, frame: Frame, payload: Sequence[memoryview] = (), rate_bps: int = 0) -> TransferRecord | None:
        """See :meth:`Connection.send`."""
        views = contiguous(payload)
        if total_bytes(views) != frame.length:
            raise UsageError(f"the frame announces {frame.length} payload bytes, given {total_bytes(views)}")
        pacer = self._upward(rate_bps)
        with self._stream.sending:
            head = self._head(frame, pacer, paced=rate_bps > 0 or self._spread_bps > 0)
            if not frame.length:
                await self._write(head)
                return None
            return await self._send_payload(head, views, pacer, paced=rate_bps > 0)

    def _upward(self, rate_bps: int) -> Pacer:
        own = (TokenBucket(rate_bps),) if rate_bps else ()
        return Pacer(self._limits.up + own, self._stream.stopping)

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
        record = self._record(total_bytes(views), started_ns, paced=paced)
        if paced or not self._spread_bps:
            return record
        with self._stream.breaking:
            delivered = record.bytes - self._stream.raw.unacknowledged_bytes()
        return self._with_busy(record, max(0, delivered), record.ended_ns - record.started_ns)

    async def send_stream(self, frame: Frame, filling: Filling, rate_bps: int = 0) -> TransferRecord:
        """See :meth:`Connection.send_stream`."""
        if not frame.length:
            raise UsageError(f"a {frame.kind.name} frame without payload was given to send_stream; use send")
        if len(filling.payload) != frame.length:
            given = f"the buffer has {len(filling.payload)}"
            raise UsageError(f"the frame announces {frame.length} payload bytes; {given}")
        pacer = self._upward(rate_bps)
        with self._stream.sending:
            await self._write(self._head(frame, pacer, paced=True))
            with self._stream.interrupted_by_stop():
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
        return self._record(length, started_ns, paced=paced or starved)

    async def _send_freely(self, filling: Filling) -> TransferRecord:
        """Send a buffer as it becomes ready, at full speed."""
        started_ns, pump = clock.monotonic_ns(), Pump(self._stream.raw, filling)
        with self._stream.breaking:
            await pump.run()
        await self._drain()
        with self._stream.breaking:
            pump.look()
        took_ns, busy = clock.monotonic_ns() - started_ns, pump.backlog
        starved = took_ns - busy.ns > STARVED_SHARE * took_ns
        record = self._record(len(filling.payload), started_ns, paced=starved)
        return self._with_busy(record, busy.bytes, busy.ns)

    def _with_busy(self, record: TransferRecord, n_bytes: int, took_ns: int) -> TransferRecord:
        """Add to a record what the links carried while they alone held it up, unless spreading may have."""
        spread = self._was_spread(n_bytes, took_ns)
        return record if spread or not n_bytes else replace(record, busy_bytes=n_bytes, busy_ns=took_ns)

    async def _write(self, pieces: Sequence[memoryview]) -> None:
        with self._stream.breaking:
            await self._stream.raw.write(pieces)

    async def _drain(self) -> None:
        with self._stream.breaking:
            await self._stream.raw.drain()
        self._stream.check_open()

    def _record(self, n_bytes: int, started_ns: int, *, paced: bool) -> TransferRecord:
        ended_ns = clock.monotonic_ns()
        return TransferRecord(
            direction=Direction.OUT,
            bytes=n_bytes,
            paced=paced or self._was_spread(n_bytes, ended_ns - started_ns),
            started_ns=started_ns,
            ended_ns=ended_ns,
        )

    def _was_spread(self, n_bytes: int, took_ns: int) -> bool:
        """Tell whether the rate at which it was spread out, and not the links, may have held up what was sent."""
        held_bits = self._spread_bps * SPREAD_SHARE * took_ns / 1e9
        return 8 * n_bytes > held_bits > 0
