"""What is wrong with who wants to join: names, release, an idea of a model that is not what is registered. Pure."""

from __future__ import annotations

from mlfabric.protocol import RefuseReason
from mlfabric.specs import PROTOCOL_VERSION, Member, ModelSpec

__all__ = ["difference", "malformed"]

LONGEST_NAME = 200
_UNSET = {"tau_max": None, "server": "", "workers": 0}


def difference(given: ModelSpec, known: ModelSpec) -> tuple[RefuseReason, str] | None:
    """Say how a worker's idea of a model differs from what is registered, or None; unset options agree."""
    layout = given.layout.difference(known.layout)
    if layout:
        return RefuseReason.LAYOUT_DIFFERS, f"model {known.name!r}: given against registered: {layout}"
    for name in ("rule", "mode", "tau_max", "slack", "server", "workers", "frozen_digest", "shards", "shard"):
        mine, theirs = getattr(given, name), getattr(known, name)
        is_unset = name in _UNSET and mine == _UNSET[name]
        if mine != theirs and not is_unset and not (name in ("server", "workers") and not theirs):
            detail = f"model {known.name!r}: {name}={mine} given, {theirs} registered"
            advice = "load the same weights or seed" if name == "frozen_digest" else "give the same, or leave it out"
            return RefuseReason.OPTIONS_DIFFER, f"{detail}; {advice}"
    return None


def malformed(member: Member, spec: ModelSpec | None) -> tuple[RefuseReason, str] | None:
    """Say what no scheduler could admit: another protocol, a name that nobody could type or read; or None."""
    if member.protocol_version != PROTOCOL_VERSION:
        detail = f"{member.name} speaks protocol {member.protocol_version}, this scheduler {PROTOCOL_VERSION}"
        return RefuseReason.PROTOCOL_VERSION, f"{detail}; install the same release on both"
    names = {"name": member.name, "host": member.host, **({"model": spec.name} if spec is not None else {})}
    for what, name in names.items():
        if len(name) > LONGEST_NAME or not name.isprintable() or "," in name:
            allowed = f"printable characters without comma, at most {LONGEST_NAME}"
            return RefuseReason.OUT_OF_RANGE, f"{what}={name[:40]!r} of {len(name)} characters; allowed: {allowed}"
    return None
