"""Data channels: how tensors travel between members, never through the scheduler.

A *channel* (``tcp``, or ``memory`` within one event loop; ``factory`` has the table) is a member's endpoint: it accepts
connections and dials others. A *connection* (``stream``) carries frames (``base``). Only shells import this package.
"""

from mlfabric.channels.base import (
    MAX_META_BYTES,
    TICKET_BYTES,
    ConnectionClosedError,
    Direction,
    Frame,
    FrameKind,
    TransferRecord,
)
from mlfabric.channels.connection import Connection, Handler
from mlfabric.channels.factory import Channel, ChannelOptions, channel_of
from mlfabric.channels.limits import MOST_CONNECTIONS
from mlfabric.channels.memory import MemoryChannel, MemoryOptions
from mlfabric.channels.tcp import TcpChannel, TcpOptions

__all__ = [
    "MAX_META_BYTES",
    "MOST_CONNECTIONS",
    "TICKET_BYTES",
    "Channel",
    "ChannelOptions",
    "Connection",
    "ConnectionClosedError",
    "Direction",
    "Frame",
    "FrameKind",
    "Handler",
    "MemoryChannel",
    "MemoryOptions",
    "TcpChannel",
    "TcpOptions",
    "TransferRecord",
    "channel_of",
]
