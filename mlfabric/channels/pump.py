"""Sending a buffer while it is being filled. Used inside one event loop."""

from __future__ import annotations

import asyncio

from mlfabric import clock
from mlfabric.channels.backlog import Backlog
from mlfabric.channels.base import Stream
from mlfabric.channels.progress import Filling

__all__ = ["Pump"]

MOST_BYTES = 1024 * 1024


class Pump:
    """Sends what becomes ready in the very callback that says so: no task is woken for it, unless there is no room.

    Pieces may be short, so that what is passed on is not held up; a task that is woken for each would cost more than
    all else that is done with it.

    Attributes:
        backlog: how much was sent while more was ready than the network took.

    Args:
        filling: may fail; then so does the pump, with the same error, even after the last byte.
    """

    def __init__(self, stream: Stream, filling: Filling) -> None:
        self._stream = stream
        self._payload = filling.payload
        self._progress = filling.progress
        self._at = 0
        self._stopped = asyncio.get_running_loop().create_future()
        self._is_held_up = False
        self.backlog = Backlog(stream.path())

    async def run(self) -> None:
        """Send all of it.

        Raises:
            OSError: the stream failed.
            Exception: what the filling failed with.
        """
        with self._progress.listening(self._go_on):
            self._go_on()
            await self._stopped
            while self._at < len(self._payload):
                await self._stream.writable()
                self._stopped = asyncio.get_running_loop().create_future()
                self._go_on()
                await self._stopped
        self._progress.check()

    def look(self) -> None:
        """Let the backlog be judged up to now; at the end once the last byte has left.

        Raises:
            OSError: the stream failed.
        """
        unacknowledged = self._stream.unacknowledged_bytes()
        self.backlog.look(self._at, unacknowledged, clock.monotonic_ns(), held_up=self._is_held_up)

    def _go_on(self) -> None:
        """Send what is ready; stop at the end, when there is no room, and at an error."""
        if self._stopped.done():
            return
        try:
            self.look()
            is_over = self._is_held_up = self._send_ready()
        except Exception as error:
            self._stopped.set_exception(error)
            return
        if is_over:
            self._stopped.set_result(None)

    def _send_ready(self) -> bool:
        """Tell whether there is nothing to be done before somebody waits for room, or at all."""
        self._progress.check()
        ready = self._progress.ready_bytes
        while self._at < ready:
            n = self._stream.write_now(self._payload[self._at : min(ready, self._at + MOST_BYTES)])
            if n == 0:
                return True
            self._at += n
        return self._at == len(self._payload)
