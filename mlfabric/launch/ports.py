"""Addresses of this machine: which ports are free, and whether an address is of this machine at all."""

from __future__ import annotations

import socket

from mlfabric.errors import UsageError

__all__ = ["check_free", "free_port", "is_here", "is_wildcard"]


def is_wildcard(host: str) -> bool:
    """Tell whether ``host`` stands for every address of the machine, so that nobody can dial it."""
    return host in ("", "0.0.0.0", "::")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def check_free(host: str, port: int, option: str = "--port") -> None:
    """Check that a port of ``host``, which was given by this option, can be listened on.

    Raises:
        UsageError: it is in use or not allowed, or ``host`` is no address of this machine; says what to do.
    """
    try:
        _listen(host, port).close()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another {option}, or stop what has it"
        ) from error


def free_port(host: str) -> int:
    """Return a port of ``host`` that is free at this moment.

    Raises:
        UsageError: ``host`` is no address of this machine.
    """
    try:
        with _listen(host, 0) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise UsageError(f"{host} is no address of this machine ({error.strerror}); give one, as 127.0.0.1") from error


def is_here(host: str) -> bool:
    """Tell whether ``host`` is an address of this machine."""
    try:
        _listen(host, 0).close()
    except OSError:
        return False
    return True
