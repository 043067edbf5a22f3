"""What gRPC connections of this fabric are held to, at every service. Shell-level."""

from __future__ import annotations

__all__ = ["HANDSHAKE_S", "MAX_CONTROL_BYTES", "server_limits"]

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
