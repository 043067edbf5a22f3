"""Network interfaces of this machine: which one has an address, and what it has carried."""

from __future__ import annotations

import socket

import psutil

__all__ = ["carried_bytes", "interface_of", "is_loopback"]


def interface_of(host: str) -> str:
    """Return the interface that has an IP address, or one of a host name's; "" if none has."""
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return ""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(held.address in wanted for held in addresses):
            return interface
    return ""


def is_loopback(interface: str) -> bool:
    """Tell whether an interface only connects the programs of this machine."""
    stats = psutil.net_if_stats().get(interface)
    return stats is not None and "loopback" in stats.flags.split(",")


def carried_bytes(interface: str) -> tuple[int, int] | None:
    """Return how many bytes an interface has sent and received in all; None if it is gone."""
    counters = psutil.net_io_counters(pernic=True).get(interface)
    return None if counters is None else (counters.bytes_sent, counters.bytes_recv)
