"""Connections: frames over a byte stream, in both directions at once; a connection is not reopened after an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mlfabric.channels.base import Frame, Stream, TransferRecord
from mlfabric.channels.frame_receiver import FrameReceiver
from mlfabric.channels.frame_sender import FrameSender
from mlfabric.channels.limits import Limits
from mlfabric.channels.open_stream import OpenStream
from mlfabric.channels.progress import Filling

__all__ = ["Connection", "Handler"]


class Connection:
    """A framed connection to one peer; it is not reopened after an error. Made inside a running event loop.

    Args:
        stream: the bytes; owned by the connection from now on.
        limits: of the endpoint.
        on_closed: called once, when the stream has been given back.
    """

    def __init__(self, stream: Stream, limits: Limits, on_closed: Callable[[Connection], None]) -> None:
        self._stream = OpenStream(stream, lambda: on_closed(self))
        self._sender = FrameSender(self._stream, limits)
        self._receiver = FrameReceiver(self._stream, limits)

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._stream.peer

    def when_heard(self, call: Callable[[], None]) -> None:
        """Call back once, when the first whole frame has come."""
        self._receiver.when_heard(call)

    @property
    def unread_bytes(self) -> int:
        """Payload bytes that were announced and have not been received or discarded yet."""
        return self._receiver.unread_bytes

    @property
    def waiting_bytes(self) -> int:
        """How many bytes have come and were not read yet; 0 where an emulated link has yet to let them through."""
        return self._receiver.waiting_bytes

    def spread(self, rate_bps: int) -> None:
        """Have the transport space out what is sent from now on at about a rate, until told otherwise; 0 not at all.

        So streams that meet at a slow link, each at its share of it, find no queue there that bursts have made. It is
        no limit: first packets and small frames go at once, and a transport that cannot do it sends as it can. What was
        slowed down by this counts as paced.
        """
        self._sender.spread(rate_bps)

    def hold_back(self, rate_bps: int) -> None:
        """Have little more on its way from now on than a rate carries in a round trip; 0 lifts that.

        Who sends at once all that is there fills the queue before a slow link, and what has to be passed on waits
        behind it. This is no limit: where links let it, a stream goes several times as fast as its rate. Transports
        that cannot do it, and streams that are fast enough, send as they did.

        Args:
            rate_bps: at which it is expected to go.

        Raises:
            TransferError: the connection broke; it is closed.
        """
        with self._stream.breaking:
            self._stream.raw.hold_back(rate_bps)

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
        return await self._sender.send(frame, payload, rate_bps)

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
        return await self._sender.send_stream(frame, filling, rate_bps)

    async def receive(self) -> Frame:
        """Receive the next frame, header and meta only.

        Raises:
            ConnectionClosedError: the peer closed the connection between two frames.
            TransferError: the connection broke, or what came is not a frame that is allowed; it is closed.
            UsageError: the payload of the frame before has not been received or discarded yet.
        """
        return await self._receiver.receive()

    async def receive_into(self, buffer: memoryview, length: int) -> TransferRecord:
        """Receive exactly the next ``length`` bytes of the announced payload.

        Args:
            buffer: contiguous and writable, of ``length`` bytes at least.
            length: all that is left of the payload, or a part of it.

        Raises:
            TransferError: the connection broke; it is closed and the buffer is torn.
            UsageError: the buffer is too small or read-only, or less than ``length`` was announced.
        """
        return await self._receiver.receive_into(buffer, length)

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
        return await self._receiver.receive_through(pieces, took)

    async def discard(self, length: int) -> TransferRecord:
        """Receive the next ``length`` bytes of the announced payload and throw them away."""
        return await self._receiver.discard(length)

    def close(self) -> None:
        """Close the connection; what is waiting in it gets a TransferError.

        Frames that were sent still reach the peer, unless bytes of the peer's lie unread here: TCP then resets.
        """
        # Who sends a payload that is torn here may wait for room, and only a reset ends that wait.
        self._stream.stop(abrupt=self._receiver.unread_bytes > 0)
        self._stream.release_if_idle()

    async def wait_closed(self) -> None:
        """Wait until nothing of the connection is left."""
        await self._stream.wait_closed()


Handler = Callable[[Connection], Awaitable[None]]
"""Serves one accepted connection; the connection is closed when it returns."""
