"""Why gRPC cannot connect, if TLS is the reason: it says so itself only in words of its library, if at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from mlfabric.addresses import split_address
from mlfabric.errors import ConfigError
from mlfabric.security.certificate import peer_identity
from mlfabric.security.tls_faults import explain
from mlfabric.security.tls_policy import Security

__all__ = ["tls_fault"]

DIAL_S = 2.0
GREETING_S = 1.0
AGAIN_S = 0.3
_WANTS_TLS = "it takes TLS only; give --tls DIR (MLFABRIC_TLS)"


async def tls_fault(address: str, role: str, security: Security) -> str:
    """Connect once and say what is wrong with TLS between this member and another one.

    Args:
        address: ``host:port`` of the other one.
        role: that its certificate must be of.
        security: of this member.

    Returns:
        What is wrong, seen twice in a row, for who is just starting or ending is not at fault; "" if nothing is, or if
        nobody answers at all.
    """
    found = await _look(address, role, security)
    if not found:
        return ""
    await asyncio.sleep(AGAIN_S)
    return found if await _look(address, role, security) == found else ""


async def _look(address: str, role: str, security: Security) -> str:
    own = security.certificate
    context = own.dialling if own is not None else _curious()
    host, port = split_address(address, role)
    try:
        async with asyncio.timeout(DIAL_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
    except ssl.SSLError as error:
        return explain(error) if own is not None else _seen_plain(error)
    except (OSError, TimeoutError):
        return ""
    try:
        return _WANTS_TLS if own is None else await _greeted(reader, writer, role)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: str) -> str:
    """Wait for the first byte, before which the other end has judged this member's certificate."""
    try:
        found = peer_identity(writer.get_extra_info("peercert"))
        if found.role != role:
            return f"what answers is a {found}, and no {role}"
        async with asyncio.timeout(GREETING_S):
            await reader.read(1)
    except ConfigError as error:
        return f"the other end: {error}"
    except ssl.SSLError as error:
        return explain(error)
    except (OSError, TimeoutError):
        pass
    return ""


def _curious() -> ssl.SSLContext:
    """Return TLS of one who only wants to know whether the other end speaks it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _seen_plain(error: ssl.SSLError) -> str:
    return _WANTS_TLS if "ALERT" in (error.reason or "") else ""
