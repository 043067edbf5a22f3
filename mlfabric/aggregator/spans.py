"""Which events and actions of an aggregator begin and end spans. Shell-level."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.aggregator import actions as act
from mlfabric.protocol import Sum
from mlfabric.telemetry.spans import Began, Consists, Ended, Moment

__all__ = ["moments"]


def moments(seen: object) -> Iterator[Moment]:
    """Give an ``aggregate`` for each sum, from its memory to its receiver's word, and a ``transfer`` for each input."""
    match seen:
        case Sum():
            yield Consists(seen.sum, seen.members)
        case act.ReserveSum(plan=plan):
            yield Began("aggregate", plan.sum, {"model": plan.model, "updates": len(plan.members)})
        case act.ForgetSum(plan=plan):
            yield Ended("aggregate", plan.sum)
        case act.GiveUp():
            yield Ended("aggregate", seen.sum, seen.reason)
        case act.Grant():
            yield Began("transfer", seen.transfer)
        case act.PayloadReceived():
            yield Ended("transfer", seen.transfer)
        case act.TransferBroken():
            yield Ended("transfer", seen.transfer, seen.detail)
