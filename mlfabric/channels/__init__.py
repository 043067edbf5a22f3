"""Data channels: how tensors travel between members, never through the scheduler.

``base`` is the interface, ``tcp`` what carries it out. Only shells import this package.
"""

from mlfabric.channels.base import (
    MAX_META_BYTES,
    TICKET_BYTES,
    Channel,
    Connection,
    ConnectionClosedError,
    Direction,
    Frame,
    FrameKind,
    Handler,
    TransferRecord,
)
from mlfabric.channels.bytestream import MOST_CONNECTIONS
from mlfabric.channels.tcp import TcpChannel, TcpOptions

__all__ = [
    "MAX_META_BYTES",
    "MOST_CONNECTIONS",
    "TICKET_BYTES",
    "Channel",
    "Connection",
    "ConnectionClosedError",
    "Direction",
    "Frame",
    "FrameKind",
    "Handler",
    "TcpChannel",
    "TcpOptions",
    "TransferRecord",
]
