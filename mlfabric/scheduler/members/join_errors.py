"""What is wrong with who wants to join: names, release, an idea of a model that is not what is registered. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum

from mlfabric.model.specs import PROTOCOL_VERSION, Member, ModelSpec, TensorKind
from mlfabric.protocol import RefuseReason

__all__ = ["difference", "malformed"]

LONGEST_NAME = 200
_UNSET = {"tau_max": None, "server": "", "workers": 0}
_OPTIONS = ("method", "tau_max", "slack", "server", "workers", "shards", "shard")
_NAMES = {"shards": "servers"}


def difference(given: ModelSpec, known: ModelSpec) -> tuple[RefuseReason, str] | None:
    """Say how a worker's idea of a model differs from what is registered, or None; unset options agree."""
    layout = given.layout.difference(known.layout)
    if layout and not _differ_in_overlap(given, known):
        return RefuseReason.LAYOUT_DIFFERS, f"model {known.name!r}: given against registered: {layout}"
    found = list(_differing(given, known))
    if layout:
        found.append("overlap: on at one, off at the other")
    if found:
        detail = ", ".join(found)
        return RefuseReason.OPTIONS_DIFFER, f"model {known.name!r}: {detail}; give the same at all workers"
    if given.frozen_digest != known.frozen_digest:
        detail = "frozen parameters have other values here than at the job's first worker"
        return RefuseReason.OPTIONS_DIFFER, f"model {known.name!r}: {detail}; load the same weights or seed"
    return None


def _differ_in_overlap(given: ModelSpec, known: ModelSpec) -> bool:
    """Tell whether one layout begins with the first parameters and the other with the last, which overlap wants."""
    ours, theirs = ([t for t in s.layout.tensors if t.kind is TensorKind.PARAMETER] for s in (given, known))
    return ours[::-1] == theirs and {*given.layout.tensors} == {*known.layout.tensors}


def _differing(given: ModelSpec, known: ModelSpec) -> Iterator[str]:
    """Yield each option that is not the same, with both values."""
    ours, theirs = _options(given), _options(known)
    for name, here in ours.items():
        there = theirs[name]
        is_unset = name in _UNSET and here == _UNSET[name]
        if here != there and not is_unset and not (name in ("server", "workers") and not there):
            yield f"{_NAMES.get(name, name)}: {_shown(here)} here, {_shown(there)} at the job's first worker"


def _options(spec: ModelSpec) -> dict[str, object]:
    rule = {f"rule.{field.name}": getattr(spec.rule, field.name) for field in fields(spec.rule)}
    return rule | {name: getattr(spec, name) for name in _OPTIONS}


def _shown(value: object) -> str:
    return repr(value.value if isinstance(value, Enum) else value)


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
