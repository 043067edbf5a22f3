"""Whether connections are secured, and whether they must be: those that leave the machine are, or it was said aloud."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from mlfabric.errors import ConfigError
from mlfabric.security.certificate import Certificate

__all__ = ["LOOPBACK", "Security", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Tell whether an address, or all that a name stands for, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a member's connections are secured.

    Args:
        certificate: of this member: all connections take mutual TLS; None for plain ones.
        insecure: plain connections may leave this machine, for a network that is trusted.
    """

    certificate: Certificate | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure and self.certificate is not None:
            raise ConfigError("--tls and --insecure exclude each other; give one of them")

    @classmethod
    def of(cls, folder: Path | None, role: str, *, insecure: bool = False) -> Security:
        """Return what the settings of a member say.

        Args:
            folder: of its certificate, see ``Certificate.load``; None for none.
            role: of the member.
            insecure: see the class.

        Raises:
            ConfigError: the certificate cannot be used, or both are given.
        """
        return cls(certificate=Certificate.load(folder, role) if folder else None, insecure=insecure)

    def check(self, host: str, what: str) -> None:
        """Refuse to listen on or dial an address that is not this machine's loopback without TLS.

        Args:
            host: name or address.
            what: it is used for, as ``"--bind"``.

        Raises:
            ConfigError: says both ways out.
        """
        if self.certificate is None and not self.insecure and not is_loopback(host):
            raise ConfigError(
                f"{what} {host!r} is not on this machine's loopback interface, and there is no TLS; give --tls DIR "
                "(MLFABRIC_TLS; mlfabric certs makes certificates), or --insecure (MLFABRIC_INSECURE=1) on a network "
                "that you trust"
            )


LOOPBACK = Security()
"""Plain connections, and only within this machine."""
