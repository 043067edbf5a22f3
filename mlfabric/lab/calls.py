"""gRPC in memory: the stubs and the service of the wire contract are the real ones, and so are the bytes of messages.

A call is a line of two ways. Messages may be late and never overtake each other; a line that breaks loses what is under
way, and its ends notice that at different times. A line over hosts that are cut off, or to a process that is stopped,
breaks when pings have stayed unanswered for too long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from mlfabric.lab.links import NATURE, Links, Way
from mlfabric.lab.processes import PROCESS, Process

__all__ = ["Calls", "MemoryServer"]

ANSWER_S = 10.0
"""An end breaks a line on which the other has answered no ping for so long."""
_UNAVAILABLE, _OK = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK


class _AbortedError(Exception):
    """The service has ended a call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _Context:
    """What a service knows of a call."""

    def auth_context(self) -> dict[str, Any]:
        """Return nothing: the connection is plain."""
        return {}

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call."""
        raise _AbortedError(code, details)


class _Inbox:
    """Messages that have come to one end, and how the call ended."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.end: BaseException | None = None

    def put(self, message: bytes) -> None:
        """Take a message."""
        if self.end is None:
            self._messages.append(message)
            self._wake()

    def close(self, end: BaseException) -> None:
        """Take nothing more; the first reason counts."""
        if self.end is None:
            self.end = end
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> bytes:
        """Wait for the next message.

        Raises:
            BaseException: how the call ended, after the last message.
        """
        while not self._messages:
            if self.end is not None:
                raise self.end
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._messages.popleft()


class Line:
    """One call under way between a member and a scheduler.

    Args:
        calls: the network.
        client: who calls.
        address: of the scheduler.
        method: full name.
    """

    def __init__(self, calls: Calls, client: Process, address: str, method: str) -> None:
        self.client, self.method = client, method
        self.server: MemoryServer | None = None
        self.answers, self.requests = _Inbox(), _Inbox()
        self._calls, self._address = calls, address
        host = address.rpartition(":")[0]
        self._up, self._down = Way(calls.links, client.host, host), Way(calls.links, host, client.host)
        self._task: asyncio.Task[None] | None = None
        self._up.send(self._open)

    def __str__(self) -> str:
        return f"{self.method.rpartition('/')[2]} of {self.client.name}"

    def crosses(self, source: str, destination: str) -> bool:
        """Tell whether messages go from one host to the other."""
        return {source, destination} == {self.client.host, self._address.rpartition(":")[0]}

    def ask(self, message: bytes) -> None:
        """Send a message to the scheduler."""
        self._up.send(lambda: self._to_server(lambda: self.requests.put(message)), len(message))

    def give_up(self, end: BaseException) -> None:
        """End the call from the member's end."""
        self.answers.close(end)
        self._up.send(lambda: self._to_server(self._cancel))

    def _open(self) -> None:
        """Let the call reach the scheduler, if there is one."""
        server = self._calls.servers.get(self._address)
        if server is None:
            self._end(_UNAVAILABLE, "Connection refused")
            return
        self.server = server
        server.lines[self] = None
        server.process.call(self._begin, server)

    def _begin(self, server: MemoryServer) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(server))

    def _to_server(self, call: Callable[[], None]) -> None:
        if self.server is not None:
            self.server.process.call(call)

    def _cancel(self) -> None:
        self.requests.close(StopAsyncIteration())
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, server: MemoryServer) -> None:
        code, details = _OK, ""
        try:
            async for message in server.answers(self.method, self.requests):
                self._answer(message)
        except _AbortedError as error:
            code, details = error.code, error.details
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.CANCELLED, "the call was cancelled"
        finally:
            server.lines.pop(self, None)
            self.requests.close(StopAsyncIteration())
            self._end(code, details)

    def _answer(self, message: bytes) -> None:
        self._down.send(lambda: self.client.call(self.answers.put, message), len(message))

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        self._down.send(lambda: self.client.call(self.answers.close, _status(code, details)))

    def break_off(self, client_s: float, server_s: float) -> None:
        """Break the line; its ends notice that after a while each."""
        self._up.break_off()
        self._down.break_off()
        loop = self._calls.links.loop
        broken = _status(_UNAVAILABLE, "the connection broke")
        loop.call_later(client_s, self.client.call, self.answers.close, broken, context=NATURE)
        loop.call_later(server_s, self._to_server, self._cancel, context=NATURE)


def _status(code: grpc.StatusCode, details: str) -> BaseException:
    if code is _OK:
        return StopAsyncIteration()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class MemoryServer(grpc.aio.Server):
    """A scheduler's port.

    Args:
        calls: the network.
        process: the scheduler's.
        address: of the port.
    """

    def __init__(self, calls: Calls, process: Process, address: str) -> None:
        self.process = process
        self.lines: dict[Line, None] = {}
        self._calls, self._address = calls, address
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these."""
        self._handlers.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Serve nothing more: they are the same as the generic ones."""

    async def start(self) -> None:
        """Listen."""
        self._calls.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        """Listen no more; end all calls."""
        self.die()

    def die(self) -> None:
        """Be gone: members notice it once a message could come through."""
        if self._calls.servers.get(self._address) is self:
            del self._calls.servers[self._address]
        lines, self.lines = self.lines, {}
        for line in lines:
            line.break_off(self._calls.links.draw_latency_s(), 0.0)

    async def answers(self, method: str, requests: _Inbox) -> AsyncIterator[bytes]:
        """Carry out a call; give its answers."""
        details: Any = SimpleNamespace(method=method, invocation_metadata=())
        handler: Any = next(filter(None, (each.service(details) for each in self._handlers)))
        if handler.request_streaming:
            behaviour = handler.stream_stream(_Requests(requests, handler.request_deserializer), _Context())
            async for answer in behaviour:
                yield handler.response_serializer(answer)
        else:
            request = handler.request_deserializer(await requests.take())
            yield handler.response_serializer(await handler.unary_unary(request, _Context()))

    def add_insecure_port(self, address: str) -> int:
        """Not in memory."""
        raise NotImplementedError

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Not in memory."""
        raise NotImplementedError

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Not in memory."""
        raise NotImplementedError


class _Requests:
    """The requests of a stream, as its service reads them."""

    def __init__(self, inbox: _Inbox, read: Callable[[bytes], Any]) -> None:
        self._inbox, self._read = inbox, read

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        return self._read(await self._inbox.take())


class _Stream:
    """A stream, as its member sees it."""

    def __init__(self, line: Line, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> None:
        self._line, self._write, self._read = line, write, read
        self._is_cancelled = False

    async def write(self, request: Any) -> None:
        """Send a request."""
        if self._line.answers.end is not None:
            raise asyncio.InvalidStateError("the call has ended")
        self._line.ask(self._write(request))

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Any:
        return self._read(await self._line.answers.take())

    def cancel(self) -> bool:
        """End the call."""
        if self._line.answers.end is None:
            self._is_cancelled = True
            self._line.give_up(asyncio.CancelledError())
        return self._is_cancelled

    def cancelled(self) -> bool:
        """Tell whether it was cancelled here."""
        return self._is_cancelled


class _Channel:
    """What a stub calls through."""

    def __init__(self, calls: Calls, client: Process, address: str) -> None:
        self._calls, self._client, self._address = calls, client, address

    async def __aenter__(self) -> _Channel:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Nothing is open but calls, and these end by themselves."""

    def _line(self, method: str) -> Line:
        return Line(self._calls, self._client, self._address, method)

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Awaitable[Any]]:
        """Return what makes a call with one answer."""

        async def call(request: Any, timeout: float | None = None) -> Any:
            line = self._line(method)
            line.ask(request_serializer(request))
            try:
                async with asyncio.timeout(timeout):
                    return response_deserializer(await line.answers.take())
            except TimeoutError:
                raise _status(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None
            finally:
                line.give_up(asyncio.CancelledError())

        return call

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[[], _Stream]:
        """Return what opens a stream."""
        return lambda: _Stream(self._line(method), request_serializer, response_deserializer)

    unary_stream = stream_stream
    """Only people hold jobs."""


class Calls:
    """All schedulers' ports, and all calls to them.

    Attributes:
        servers: by address.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.servers: dict[str, MemoryServer] = {}

    def channel(self, address: str) -> Any:
        """Return a channel from the present process to a scheduler."""
        client = PROCESS.get()
        assert client is not None, "members run in processes"
        return _Channel(self, client, address)

    @property
    def lines(self) -> list[Line]:
        """Every call that a scheduler knows of."""
        return [line for server in self.servers.values() for line in server.lines]

    def died(self, process: Process) -> None:
        """Break the lines of a member's process that has died, as soon as that can be noticed."""
        for line in self.lines:
            if line.client is process:
                assert line.server is not None, "the server has it"
                is_cut = self.links.is_cut(process.host, line.server.process.host)
                line.break_off(0.0, ANSWER_S if is_cut else self.links.draw_latency_s())

    def unanswered(self, is_silent: Callable[[Line], bool]) -> None:
        """Break the lines that answer no ping for ``ANSWER_S`` from now on."""
        silent = [line for line in self.lines if is_silent(line)]

        def look() -> None:
            for line in silent:
                if is_silent(line):
                    line.break_off(ANSWER_S, 0.0)

        self.links.loop.call_later(ANSWER_S, look, context=NATURE)
