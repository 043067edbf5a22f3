"""What many events, and all instructions, have in common. Pure."""

from __future__ import annotations

from mlfabric.values import dataclass

__all__ = ["SaidByServer", "SaidByWorker", "Told", "ToldOfModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Whom an instruction is for, and why it is given, which is what logs, metrics and the status page show."""

    to: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOfModel(Told):
    """An instruction that is about one model, or a part of one."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidByServer:
    """What a server says of a model that it holds; what others say of that is not heard."""

    server: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidByWorker:
    """What a worker says of the model that it trains."""

    worker: str
    model: str
