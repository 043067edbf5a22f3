"""Who a certificate says its holder is, and whom that lets it be. Pure.

A certificate has one URI among its subject's alternative names (as SPIFFE does it): ``mlfabric://JOB/ROLE/NAME``. A job
is the name of the one model that a worker may touch; without one (``mlfabric:///worker``) it may touch all. Without a
name the holder may take any. Services work for all jobs, so theirs name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Role

__all__ = ["CLIENT", "ROLES", "SCHEDULER", "Identity", "dns_name", "identity_in"]

SCHEME = "mlfabric://"
SCHEDULER = "scheduler"
CLIENT = "client"
"""Who only asks: ``mlfabric status`` and its like."""
ROLES = (SCHEDULER, "server", "aggregator", "monitor", "worker", CLIENT)
_NEEDED = {Role.REPLICA: Role.SERVER.value}
_MOVES_TENSORS = frozenset({"server", "aggregator", "worker"})
_PART = re.compile(r".*\.shard\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a certificate says.

    Args:
        role: one of ``ROLES``; a server's is a replica's as well, for a replica may have to take a server's place.
        job: the only model that a worker may touch; "" for all.
        name: the only name that it may join under; "" for any.
    """

    role: str
    job: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role {self.role!r} in a certificate; allowed: {', '.join(ROLES)}")
        if self.job and self.role != Role.WORKER.value:
            raise ConfigError(f"job {self.job!r} in the certificate of a {self.role}; allowed: in a worker's only")
        if _PART.fullmatch(self.job):
            raise ConfigError(f"job {self.job!r}: so the parts of a model are called; give the whole one's name")

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"{self.role}{named}" + (f" of job {self.job!r}" if self.job else "")

    @property
    def uri(self) -> str:
        """As a certificate has it."""
        parts = [quote(self.job, safe=""), self.role, *([quote(self.name, safe="")] if self.name else [])]
        return SCHEME + "/".join(parts)

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Return the identity of a URI.

        Raises:
            ConfigError: it is none.
        """
        job, *rest = uri.removeprefix(SCHEME).split("/")
        if not uri.startswith(SCHEME) or not 1 <= len(rest) <= 2:
            raise ConfigError(f"URI {uri!r} in a certificate; allowed: {SCHEME}JOB/ROLE or {SCHEME}JOB/ROLE/NAME")
        return cls(role=rest[0], job=unquote(job), name=unquote(rest[1]) if len(rest) == 2 else "")

    def refusal(self, role: Role, name: str, model: str = "", succeeds: str = "") -> str | None:
        """Say why the holder cannot join like this; None if it can.

        Args:
            role: that it wants to have.
            name: that it wants to join under.
            model: that a worker wants to train.
            succeeds: the replica that a server was before it took its primary's place, and with it the primary's name;
                "" of one that never was a replica.
        """
        wanted = _NEEDED.get(role, role.value)
        if self.role != wanted:
            return f"the certificate is that of a {self}; to join as {role.value} takes that of a {wanted}"
        if succeeds and self.name not in ("", succeeds):
            return f"the certificate is that of {self}; it does not allow the place of replica {succeeds!r}"
        if not succeeds and self.name not in ("", name):
            return f"the certificate is that of {self}; it does not allow the name {name!r}"
        if self.job not in ("", model):
            return f"the certificate is that of a {self}; it does not allow model {model!r}"
        return None

    def stranger(self, peer: Identity) -> str | None:
        """Say why no tensors may pass between this member and ``peer``; None if they may."""
        if peer.role not in _MOVES_TENSORS:
            return f"the other end's certificate is that of a {peer}, which moves no tensors"
        if self.job and peer.job and self.job != peer.job:
            return f"the other end's certificate is that of a {peer}, and this member's of job {self.job!r}"
        return None


def identity_in(uris: Iterable[str]) -> Identity:
    """Return the identity among a certificate's URIs.

    Raises:
        ConfigError: there is none, or more than one, or it is malformed.
    """
    ours = [uri for uri in uris if uri.startswith(SCHEME)]
    if len(ours) != 1:
        raise ConfigError(f"the certificate names {len(ours)} members; wanted: one URI {SCHEME}JOB/ROLE/NAME")
    return Identity.parse(ours[0])


def dns_name(role: str) -> str:
    """Return the DNS name that every certificate of a role has: whom one dials is checked by role, not by host."""
    return f"{role}.mlfabric"
