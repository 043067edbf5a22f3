"""What gRPC connections of this fabric are held to, at every service. Shell-level."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

__all__ = ["HANDSHAKE_S", "MAX_CONTROL_BYTES", "Decoding", "server_limits"]

MAX_CONTROL_BYTES = 16 * 1024 * 1024
"""The longest message; what tells of a model with some 100,000 tensors is that long."""
HANDSHAKE_S = 10.0
"""A connection that is not one of gRPC's after so long is closed."""


def server_limits(connections: int) -> list[tuple[str, int]]:
    """Return the settings of a service's port.

    Args:
        connections: the most there may be at a time, > 0; others are refused at once.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_CONTROL_BYTES),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_S)),
    ]


@dataclass(frozen=True, slots=True)
class _Malformed:
    """What came in place of a message; ``words`` say why it is none."""

    words: str


class Decoding(grpc.aio.ServerInterceptor):
    """Answers a call whose bytes are no message of its kind with INVALID_ARGUMENT; gRPC says UNKNOWN and logs a fault.

    Streams of requests are left as they are: who reads them meets the ``DecodeError``.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return what handles a call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler  # type: ignore[no-any-return]
        read, write = _reader(handler.request_deserializer), handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream), read, write)
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary), read, write)


def _reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_note(raw: bytes) -> Any:
        try:
            return read(raw)
        except DecodeError as error:
            return _Malformed(str(error))

    return read_or_note


def _unary(behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if isinstance(request, _Malformed):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.words)
        return await behaviour(request, context)

    return call


def _streaming(behaviour: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if isinstance(request, _Malformed):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.words)
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                yield response

    return call
