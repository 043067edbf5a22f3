"""Addresses as text: ``host:port``, an IPv6 host in brackets. Pure."""

from __future__ import annotations

from mlfabric.errors import UsageError

__all__ = ["MAX_PORT", "split_address"]

MAX_PORT = (1 << 16) - 1


def split_address(address: str, what: str = "address") -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Args:
        address: the text.
        what: it is, for the error.

    Raises:
        UsageError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= MAX_PORT:
        raise UsageError(f"{what} {address!r}; allowed: HOST:PORT with a port from 1 to {MAX_PORT}")
    return host, int(port)
