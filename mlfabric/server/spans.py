"""Which events and actions of a server begin and end spans. Shell-level."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import Expect, SumId
from mlfabric.server import actions as act
from mlfabric.telemetry.spans import Began, Consists, Ended, Moment

__all__ = ["moments"]


def moments(seen: object) -> Iterator[Moment]:
    """Give a ``transfer`` for what is received and for models that are sent, and a ``commit`` for what is applied."""
    match seen:
        case Expect(transfer=SumId() as sum_id):
            yield Consists(sum_id, tuple(member.update for member in seen.members))
        case act.Grant():
            yield Began("transfer", seen.transfer, {"bytes": seen.size_bytes})
        case act.PayloadReceived():
            yield Ended("transfer", seen.transfer)
        case act.TransferBroken():
            yield Ended("transfer", seen.transfer, seen.detail)
        case act.ApplyStep() | act.PrepareStep():
            for transfer in seen.transfers:
                yield Began("commit", transfer, {"version": seen.version.number})
        case act.StepDone():
            for transfer in seen.transfers:
                yield Ended("commit", transfer)
        case act.StepRefused():
            for transfer in seen.transfers:
                yield Ended("commit", transfer, seen.detail)
        case act.ServeModel():
            yield Began("transfer", seen.get, {"version": seen.version.number})
        case act.GetServed():
            yield Ended("transfer", seen.get)
        case act.GetBroken():
            yield Ended("transfer", seen.get, seen.detail)
