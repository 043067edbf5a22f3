"""A buffer that is received from one member while it is sent on to others: a node of a distribution tree (paper 10.3).

The buffer is the receiver's own, so handing a model on takes no memory beside it.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

from mlfabric.channels import Connection, TransferRecord
from mlfabric.channels.progress import Progress
from mlfabric.channels.views import contiguous
from mlfabric.errors import LayoutError, TransferError, UsageError
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.specs import ALIGNMENT_BYTES

__all__ = ["Relay"]

_PIECES = 16
"""What nobody is handed is received in about so many, for it is known piece by piece what has come."""


class Relay:
    """One payload on its way through; ``send_stream(frame, relay)`` hands it on, any number of times.

    Args:
        buffer: contiguous and writable, as long as the payload. What arrives is handed on chunk by chunk, as plans
            count on it.
        is_last: nobody is handed it: then it is received in few pieces, which costs much less than many chunks.
    """

    def __init__(self, buffer: memoryview, *, is_last: bool = False) -> None:
        if buffer.readonly or not buffer.nbytes:
            given = f"{'read-only' if buffer.readonly else 'writable'} buffer of {buffer.nbytes} bytes"
            raise UsageError(f"a relay was given a {given}; give a writable one as long as the payload")
        (self._payload,) = contiguous([buffer])
        self._progress = Progress(len(self._payload))
        length = len(self._payload)
        fewest_bytes = length // _PIECES // ALIGNMENT_BYTES * ALIGNMENT_BYTES if is_last else 0
        self._chunk_bytes = max(fewest_bytes, chunk_bytes(length))
        self._started = False

    @property
    def payload(self) -> memoryview:
        """The whole buffer."""
        return self._payload

    @property
    def progress(self) -> Progress:
        """How much of it has arrived."""
        return self._progress

    def fail(self, error: Exception) -> None:
        """Give the payload up: whoever fills or sends it gets ``error``."""
        self._progress.fail(error)

    async def receive(self, connection: Connection, length: int) -> TransferRecord:
        """Receive the announced payload.

        Args:
            connection: has just received the frame that announces the payload.
            length: of the payload, in bytes.

        Raises:
            UsageError: the relay has been filled before; nothing was received.
            LayoutError: the length is not the buffer's; nothing was received.
            TransferError: the connection broke; what arrived is void.
            Exception: what the relay failed with meanwhile.
        """
        self._progress.check()
        if self._started:
            raise UsageError("a relay was filled before; make a new one for each payload")
        if length != len(self._payload):
            raise LayoutError(f"a payload of {length} bytes for a relay; allowed: {len(self._payload)}")
        self._started = True
        try:
            return await self._fill(connection)
        except Exception as error:
            self.fail(error)
            raise
        except asyncio.CancelledError:
            self.fail(TransferError(f"receiving from {connection.peer} was given up"))
            raise

    async def _fill(self, connection: Connection) -> TransferRecord:
        chunk, length = self._chunk_bytes, len(self._payload)
        ends = [*range(chunk, length, chunk), length]
        parts = [self._payload[start:end] for start, end in pairwise((0, *ends))]
        ready = iter(ends)

        def took() -> None:
            self._progress.check()
            self._progress.advance(next(ready))

        return await connection.receive_through(parts, took)
