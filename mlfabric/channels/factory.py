"""Which channel a member gets: one row for each kind of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from mlfabric.channels.connection import Connection, Handler
from mlfabric.channels.interfaces import LinkCounter
from mlfabric.channels.memory import MemoryChannel, MemoryOptions
from mlfabric.channels.tcp import TcpChannel, TcpOptions

__all__ = ["Channel", "ChannelOptions", "channel_of"]

ChannelOptions: TypeAlias = TcpOptions | MemoryOptions


class Channel(Protocol):
    """One member's endpoint; made anywhere, used inside one event loop."""

    async def listen(self, handler: Handler) -> str:
        """Accept connections, each served by ``handler`` in its own task; return the address that others dial."""

    async def connect(self, address: str) -> Connection:
        """Open a connection.

        Raises:
            UnavailableError: nobody answers there.
        """

    def link_counter(self) -> LinkCounter | None:
        """Return what counts the bytes of this host's link, once it listens; None if nothing does."""

    async def close(self) -> None:
        """Stop accepting, cancel the handlers, close every connection; leave nothing behind."""


_CHANNELS: dict[type, Callable[[Any], Channel]] = {TcpOptions: TcpChannel, MemoryOptions: MemoryChannel}


def channel_of(options: ChannelOptions) -> Channel:
    """Return an endpoint with these options."""
    return _CHANNELS[type(options)](options)
