"""Plain functions on TCP sockets: addresses, options, binding."""

from __future__ import annotations

import errno
import socket
import struct

from mlfabric.errors import ConfigError, UsageError

__all__ = [
    "address_text",
    "bind_listener",
    "forget_unsent",
    "is_wildcard",
    "prepare",
]

BACKLOG = 1024
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


def is_wildcard(host: str) -> bool:
    """Say whether ``host`` stands for every address of the machine, so that nobody can dial it."""
    return host in ("", "0.0.0.0", "::")


def address_text(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def prepare(sock: socket.socket, buffer_bytes: int) -> None:
    """Make a socket ready for transfers; before listen or connect, because the receive buffer is fixed then.

    Args:
        sock: a TCP socket; those that it accepts inherit all of this.
        buffer_bytes: kernel buffer of each direction; 0 leaves it to the kernel.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)


def bind_listener(host: str, ports: tuple[int, int], buffer_bytes: int) -> socket.socket:
    """Return a socket that listens on the first free port of a range.

    Args:
        host: numeric address or name of this machine, or a wildcard.
        ports: first and last port; (0, 0) takes any.
        buffer_bytes: see ``prepare``.

    Raises:
        UsageError: every port of the range is in use or forbidden.
        ConfigError: ``host`` is no address of this machine.
    """
    family, bind_host = _resolve(host)
    for port in range(ports[0], ports[1] + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            prepare(listener, buffer_bytes)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((bind_host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen on {address_text(host, port)}: {error.strerror}") from error
        else:
            return listener
    if ports[0] == ports[1]:
        raise UsageError(
            f"port {ports[0]} on {host} is in use; choose another port, or 0 for any, or stop the program that has it"
        )
    raise UsageError(
        f"all ports from {ports[0]} to {ports[1]} on {host} are in use; give a wider or another range, or 0"
    )


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"bind address {host!r} cannot be resolved: {error.strerror}") from error
    family, _, _, _, sockaddr = found[0]
    return family, str(sockaddr[0])


def forget_unsent(sock: socket.socket) -> None:
    """Make the socket's close drop what the kernel has not sent yet, so that an aborted transfer frees the link.

    Its close also resets the connection. Otherwise a peer that had filled the receive window before it was read empty
    would go on waiting for room, for as long as the kernel keeps the closed connection: a minute or two.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
