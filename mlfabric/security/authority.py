"""A test authority and the certificates that it makes, by the ``openssl`` program.

The members themselves need no more than Python's ssl module and gRPC; who has an authority of another kind makes
certificates with the same names there (docs/security.md).
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from mlfabric.errors import ConfigError, UnavailableError
from mlfabric.security.certificate import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from mlfabric.security.identity import Identity, dns_name

__all__ = ["AUTHORITY_KEY_FILE", "certify", "folder_of", "make_authority"]

AUTHORITY_KEY_FILE = "ca.key"
SERIAL_BYTES = 16
OPENSSL_S = 60
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_REQUEST = "[req]\nprompt = no\ndistinguished_name = who\n[who]\nCN = {who}\n"
_OF_AUTHORITY = (
    "[authority]\nbasicConstraints = critical, CA:TRUE, pathlen:0\nkeyUsage = critical, keyCertSign, cRLSign\n"
    "subjectKeyIdentifier = hash\n"
)
_OF_MEMBER = (
    "[member]\nbasicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\n"
    "extendedKeyUsage = serverAuth, clientAuth\nsubjectAltName = URI:{uri}, DNS:{dns}\n"
    "authorityKeyIdentifier = keyid\n"
)


def folder_of(identity: Identity) -> str:
    """Return the name of the folder in which a member's certificate is put."""
    return "-".join(quote(part, safe="") for part in (identity.role, identity.job, identity.name) if part)


def make_authority(folder: Path, days: int) -> bool:
    """Make an authority if the folder has none; tell whether one was made.

    Args:
        folder: where its certificate and its key are; made if it does not exist.
        days: that it is good for.

    Raises:
        UnavailableError: there is no ``openssl``, or it failed.
        ConfigError: the folder cannot be written, or has an authority without its key.
    """
    certificate, key = folder / AUTHORITY_FILE, folder / AUTHORITY_KEY_FILE
    if certificate.exists() != key.exists():
        missing, there = sorted((certificate, key), key=Path.exists)
        raise ConfigError(f"{there} is there and {missing.name} is not; bring it, or give a new folder")
    if certificate.exists():
        return False
    with _Workshop(folder) as work:
        config = work.write("authority.cnf", _REQUEST.format(who=f"mlfabric {secrets.token_hex(4)}") + _OF_AUTHORITY)
        made = ("-keyout", work.path("key"), "-out", work.path("certificate"))
        work.openssl(
            "req", "-x509", *_NEW_KEY, *made, "-config", config, "-extensions", "authority", "-days", str(days)
        )
        work.deliver("key", key)
        work.deliver("certificate", certificate)
    return True


def certify(folder: Path, identity: Identity, days: int) -> Path:
    """Make a certificate and a key, in place of those that there may be; return the member's own folder.

    Args:
        folder: of the authority.
        identity: of the member.
        days: that the certificate is good for.

    Raises:
        UnavailableError: there is no ``openssl``, or it failed.
        ConfigError: the folder cannot be written.
    """
    own = folder / folder_of(identity)
    authority = folder / AUTHORITY_FILE
    with _Workshop(own) as work:
        config = work.write("request.cnf", _REQUEST.format(who=identity.role))
        made = ("-keyout", work.path("key"), "-out", work.path("request"))
        work.openssl("req", "-new", *_NEW_KEY, *made, "-config", config)
        names = work.write("names.cnf", _OF_MEMBER.format(uri=identity.uri, dns=dns_name(identity.role)))
        signed = ("-CA", str(authority), "-CAkey", str(folder / AUTHORITY_KEY_FILE), "-days", str(days))
        work.openssl(
            *("x509", "-req", "-in", work.path("request"), "-out", work.path("certificate"), *signed),
            *("-set_serial", f"0x{_serial()}", "-extfile", names, "-extensions", "member"),
        )
        work.write("authority", authority.read_text())
        work.deliver("key", own / KEY_FILE)
        work.deliver("authority", own / AUTHORITY_FILE)
        work.deliver("certificate", own / CERTIFICATE_FILE)
    return own


def _serial() -> str:
    return f"{secrets.randbits(8 * SERIAL_BYTES - 1):x}"


class _Workshop:
    """A folder inside of another one in which files are made before they are delivered."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._place = tempfile.TemporaryDirectory(dir=folder, prefix=".making-")
        except OSError as error:
            raise ConfigError(f"cannot write {folder}: {error.strerror}; give a folder that you may write") from error

    def __enter__(self) -> _Workshop:
        self._root = Path(self._place.__enter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._place.cleanup()

    def path(self, name: str) -> str:
        return str(self._root / name)

    def write(self, name: str, text: str) -> str:
        (self._root / name).write_text(text)
        return self.path(name)

    def openssl(self, *arguments: str) -> None:
        """Run ``openssl``, whatever the system's own settings for it are."""
        environment = {**os.environ, "OPENSSL_CONF": os.devnull}
        try:
            subprocess.run(
                ["openssl", *arguments],
                check=True,
                capture_output=True,
                text=True,
                timeout=OPENSSL_S,
                env=environment,
            )
        except FileNotFoundError as error:
            raise UnavailableError(
                "no openssl here, which makes certificates; install it (apt install openssl)"
            ) from error
        except subprocess.CalledProcessError as error:
            raise UnavailableError(f"openssl {arguments[0]} failed: {error.stderr.strip()}") from error

    def deliver(self, name: str, to: Path) -> None:
        made = self._root / name
        made.chmod(0o600 if to.name in (KEY_FILE, AUTHORITY_KEY_FILE) else 0o644)
        made.replace(to)
