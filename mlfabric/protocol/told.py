"""What all instructions have. Pure."""

from __future__ import annotations

from mlfabric.values import dataclass

__all__ = ["Told", "ToldOfModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Whom an instruction is for, and why it is given, which is what logs, metrics and the status page show."""

    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOfModel(Told):
    """An instruction that is about one model, or a part of one."""

    model: str
