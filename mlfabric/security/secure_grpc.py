"""gRPC with or without TLS: connections, ports, and who calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from mlfabric.addresses import split_address
from mlfabric.errors import ConfigError
from mlfabric.security.identity import Identity, dns_name, identity_in
from mlfabric.security.tls_policy import Security

__all__ = ["add_port", "caller_of", "open_channel"]

_NAMES = "x509_subject_alternative_name"
_KIND = "transport_security_type"


def open_channel(
    address: str, role: str, security: Security, options: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """Return a channel to a member.

    Args:
        address: its ``host:port``.
        role: that its certificate must be of.
        security: of who calls.
        options: of the channel.

    Raises:
        ConfigError: the address is on another machine, and plain connections may not leave this one.
        UsageError: the address is none.
    """
    security.check(split_address(address, role)[0], f"{role} address")
    own = security.certificate
    if own is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
    named = ("grpc.ssl_target_name_override", dns_name(role))
    return grpc.aio.secure_channel(address, credentials, options=[*options, named])


def add_port(server: grpc.aio.Server, where: str, security: Security) -> int:
    """Let a server listen on ``host:port``; return the port.

    Raises:
        RuntimeError: it cannot.
        ConfigError: others can reach the address, and plain connections may not leave this machine.
    """
    security.check(where.rpartition(":")[0].removeprefix("[").removesuffix("]"), "--bind")
    own = security.certificate
    if own is None:
        return server.add_insecure_port(where)
    pair = (own.key_pem, own.certificate_pem)
    return server.add_secure_port(where, grpc.ssl_server_credentials([pair], own.authority_pem, True))


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> Identity | None:
    """Return who calls, as its certificate says; None on a plain connection.

    Raises:
        ConfigError: the certificate names no member.
    """
    found = context.auth_context()
    if list(found.get(_KIND, ())) != [b"ssl"]:
        return None
    try:
        return identity_in(name.decode("utf-8", "replace") for name in found.get(_NAMES, ()))
    except ConfigError as error:
        raise ConfigError(f"the certificate of who calls: {error}") from error
