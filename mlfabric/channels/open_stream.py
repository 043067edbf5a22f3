"""The stream of a connection, as both its directions use it: until an error or a closing ends it for both.

A direction that was left in the middle has broken its framing, so the stream is closed, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlfabric.channels.base import Direction, Stream
from mlfabric.errors import TransferError, UsageError

__all__ = ["OpenStream"]


class OpenStream:
    """A stream that two directions share; made inside a running event loop.

    Args:
        stream: the bytes; owned from now on.
        released: called once, when the stream has been given back.
    """

    def __init__(self, stream: Stream, released: Callable[[], None]) -> None:
        self.raw = stream
        self.sending, self.receiving = _Use(self, Direction.OUT), _Use(self, Direction.IN)
        self.breaking = _Breaking(self)
        self._released = released
        loop = asyncio.get_running_loop()
        self.stopping: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self.raw.peer

    def check_open(self) -> None:
        """Raise TransferError if the connection was closed at this end."""
        if self.stopping.done():
            raise TransferError(f"the connection to {self.peer} was closed at this end")

    @contextmanager
    def interrupted_by_stop(self) -> Iterator[None]:
        """Let closing the connection end a wait that is not the stream's, the way ``asyncio.timeout`` ends one."""
        task = asyncio.current_task()
        assert task is not None, "connections are used by tasks"
        inside, interrupted = True, False

        def interrupt(_stopping: asyncio.Future[None]) -> None:
            nonlocal interrupted
            if inside:
                interrupted = True
                task.cancel()

        self.stopping.add_done_callback(interrupt)
        try:
            yield
        except asyncio.CancelledError:
            if interrupted and task.cancelling() == 1:
                self.check_open()
            raise
        finally:
            inside = False
            self.stopping.remove_done_callback(interrupt)
            if interrupted:
                task.uncancel()

    def stop(self, *, abrupt: bool) -> None:
        """End what is under way; the bytes are given back once nobody uses them any more."""
        if not self.stopping.done():
            self.stopping.set_result(None)
            self.raw.stop(abrupt=abrupt)

    def release_if_idle(self) -> None:
        """Give the bytes back if they are to be and nobody uses them."""
        if self.stopping.done() and not (self.sending.is_on or self.receiving.is_on or self._closed.done()):
            self.raw.close()
            self._closed.set_result(None)
            self._released()

    async def wait_closed(self) -> None:
        """Wait until nothing of the connection is left."""
        await asyncio.shield(self._closed)


class _Use:
    """One direction of a connection while a task uses it; left by an error, the connection is closed.

    It is entered for every frame and piece, so it is no generator; nor is the next one.
    """

    def __init__(self, stream: OpenStream, direction: Direction) -> None:
        self.is_on = False
        self._stream = stream
        self._direction = direction

    def __enter__(self) -> None:
        self._stream.check_open()
        if self.is_on:
            which = f"this direction ({self._direction.value}) of the connection to {self._stream.peer}"
            raise UsageError(f"another task is using {which}")
        self.is_on = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.is_on = False
        if error is not None:
            self._stream.stop(abrupt=True)
        self._stream.release_if_idle()


class _Breaking:
    """Turns the stream's own errors into TransferErrors, and no others."""

    def __init__(self, stream: OpenStream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._stream.check_open()
            raise TransferError(f"the connection to {self._stream.peer} broke: {error}") from error
