"""How a member reaches its scheduler: calls, and signs of life; over the network, or in memory (``lab``)."""

from __future__ import annotations

from typing import Protocol

import grpc

from mlfabric import pulse
from mlfabric.security import SCHEDULER, Security
from mlfabric.security.diagnosis import tls_fault
from mlfabric.security.secure_grpc import open_channel
from mlfabric.shell.control import MAX_CONTROL_BYTES

__all__ = ["CHANNEL_OPTIONS", "GrpcLink", "SchedulerLink"]

CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # so long one attempt may take; only the others are pauses between them
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", MAX_CONTROL_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.use_local_subchannel_pool", 1),
]


class SchedulerLink(Protocol):
    """What carries a member's calls and signs of life."""

    def dial(self, address: str, security: Security) -> grpc.aio.Channel:
        """Return a channel to the scheduler at ``host:port``."""

    async def fault(self, address: str, security: Security) -> str:
        """Say what keeps TLS from working with the scheduler at ``host:port``; "" if nothing is known to."""

    def watch(self, wanted: pulse.Watch) -> None:
        """Have signs of life sent, instead of any others with the same key."""

    def forget(self, key: bytes) -> None:
        """Have no more signs of life sent with this key."""


class GrpcLink:
    """Calls by gRPC, signs of life from a process beside this one."""

    def dial(self, address: str, security: Security) -> grpc.aio.Channel:
        """Return a channel to the scheduler at ``host:port``."""
        return open_channel(address, SCHEDULER, security, CHANNEL_OPTIONS)

    async def fault(self, address: str, security: Security) -> str:
        """Say what keeps TLS from working with the scheduler at ``host:port``; "" if nothing is known to."""
        return await tls_fault(address, SCHEDULER, security)

    def watch(self, wanted: pulse.Watch) -> None:
        """Have signs of life sent, instead of any others with the same key."""
        pulse.watch(wanted)

    def forget(self, key: bytes) -> None:
        """Have no more signs of life sent with this key."""
        pulse.forget(key)
