"""A member's certificate: its folder, read and checked once, and what TLS libraries make of it.

The check is a handshake with itself in memory: what others would refuse is found before anything is listened on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlfabric.errors import ConfigError
from mlfabric.security.identity import CLIENT, Identity, identity_in
from mlfabric.security.tls_faults import explain

__all__ = ["AUTHORITY_FILE", "CERTIFICATE_FILE", "KEY_FILE", "Certificate", "peer_identity"]

AUTHORITY_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
HANDSHAKE_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate that is good, and its key.

    Args:
        identity: what it says.
        authority_pem, certificate_pem, key_pem: the files.
        accepting, dialling: TLS as whom others connect to, and as who connects; either wants the other's certificate.
        showing: as whom browsers connect to, which may have none.
    """

    identity: Identity
    authority_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    accepting: ssl.SSLContext = field(repr=False, compare=False)
    dialling: ssl.SSLContext = field(repr=False, compare=False)
    showing: ssl.SSLContext = field(repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path, role: str) -> Certificate:
        """Read and check the certificate of a member.

        Args:
            folder: has the three files, or a folder for each role that has them, as ``mlfabric certs`` makes it.
            role: of the member, one of ``ROLES``; who only asks may do so with anybody's.

        Raises:
            ConfigError: there is none, it is no good, or it is another role's.
        """
        own = _own_folder(folder, role)
        files = [_read(own / name) for name in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)]
        _check_secret(own / KEY_FILE)
        accepting, dialling = (_context(own, purpose) for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        showing = _context(own, ssl.PROTOCOL_TLS_SERVER)
        showing.verify_mode = ssl.CERT_OPTIONAL
        where = own / CERTIFICATE_FILE
        try:
            identity = _shown(accepting, dialling)
        except ssl.SSLError as error:
            said = explain(error).replace("the other end's certificate is no good: ", "")
            raise ConfigError(f"the certificate {where} is no good: {said}") from error
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if role not in (identity.role, CLIENT):
            raise ConfigError(f"the certificate {where} is that of a {identity}; wanted: that of a {role}")
        return cls(
            identity=identity,
            authority_pem=files[0],
            certificate_pem=files[1],
            key_pem=files[2],
            accepting=accepting,
            dialling=dialling,
            showing=showing,
        )


def _own_folder(folder: Path, role: str) -> Path:
    for found in (folder, folder / role):
        if (found / CERTIFICATE_FILE).exists():
            return found
    wanted = f"{AUTHORITY_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} there, or in its folder {role!r}"
    raise ConfigError(f"no certificate in {str(folder)!r}; wanted: {wanted}, as made by: mlfabric certs {folder}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; mlfabric certs makes such files") from error


def _check_secret(key: Path) -> None:
    mode = key.stat().st_mode & 0o077
    if mode and os.geteuid() == key.stat().st_uid:
        raise ConfigError(f"others may read the key {key}; do: chmod 600 {key}")


def _context(folder: Path, purpose: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # members move between hosts: their role and job are checked, not their address
    context.verify_mode = ssl.CERT_REQUIRED
    if purpose == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes, and what nobody reads would reset a connection that ends
    else:
        context.set_alpn_protocols(["h2"])  # gRPC wants it; data channels do not mind
    try:
        context.load_verify_locations(folder / AUTHORITY_FILE)
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", "") or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            reason = f"{KEY_FILE} is not the key of {CERTIFICATE_FILE}"
        raise ConfigError(f"the certificate in {str(folder)!r} cannot be used: {reason}") from error
    return context


def _no_password() -> str:
    raise ValueError(f"{KEY_FILE} wants a password; give one without")


def _shown(accepting: ssl.SSLContext, dialling: ssl.SSLContext) -> Identity:
    """Return what the certificate shows to who connects."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = dialling.wrap_bio(back, there, server_side=False)
    server = accepting.wrap_bio(there, back, server_side=True)
    waiting = [client, server]
    for _ in range(HANDSHAKE_TURNS):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting, "a handshake in memory ends or fails"
    return peer_identity(client.getpeercert())


def peer_identity(certificate: Mapping[str, Any] | None) -> Identity:
    """Return the identity of a verified certificate, as ``getpeercert`` gives it.

    Raises:
        ConfigError: it names no member.
    """
    names = (certificate or {}).get("subjectAltName", ())
    return identity_in(value for kind, value in names if kind == "URI")
