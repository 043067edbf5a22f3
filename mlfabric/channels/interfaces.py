"""Network interfaces of this machine: which one has an address, and what it has carried."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeAlias

import psutil

__all__ = ["LinkCounter", "carried_bytes", "counter_of", "interface_of", "is_loopback"]

LinkCounter: TypeAlias = Callable[[], tuple[int, int] | None]
"""Returns how many bytes a link has sent and received in all, of whatever program; None if that is unknown."""


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


def counter_of(address: str) -> LinkCounter | None:
    """Return what reads the counters of the interface that has an address; None of a loopback or unknown one.

    Args:
        address: ``host:port``.
    """
    interface = interface_of(address.rpartition(":")[0].strip("[]"))
    return None if not interface or is_loopback(interface) else lambda: carried_bytes(interface)
