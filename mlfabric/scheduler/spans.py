"""Which events and instructions of the scheduler begin and end spans. Shell-level."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    CancelReduce,
    Drop,
    Expect,
    GetRequested,
    PassReduce,
    PushRequested,
    Reduce,
    ReduceRequested,
    ReduceSettled,
    Serve,
    SumId,
)
from mlfabric.telemetry.spans import Began, Consists, Ended, Moment

__all__ = ["moments"]


def moments(seen: object) -> Iterator[Moment]:
    """Give a ``plan`` from what a worker asks for to what it and others are told, and a ``round`` to its end."""
    match seen:
        case PushRequested():
            yield Began("plan", seen.update, {"model": seen.model})
        case Expect(transfer=transfer, reason=reason):
            updates = tuple(member.update for member in seen.members)
            if isinstance(transfer, SumId):
                yield Consists(transfer, updates)
            for update in updates:
                yield Ended("plan", update, values={"reason": reason, "transfer": str(transfer)})
        case Drop():
            yield Ended("plan", seen.update, seen.cause.value, values={"reason": seen.reason})
        case GetRequested():
            yield Began("plan", seen.get, {"model": seen.model})
        case Serve():
            yield Ended("plan", seen.get, values={"reason": seen.reason})
        case ReduceRequested() if not seen.withdrawn:
            yield Began("plan", seen.reduce, {"model": seen.model, "worker": seen.reduce.worker})
        case Reduce(round=round_id):
            workers = {"version": seen.version, "workers": seen.workers}
            yield Began("round", round_id, {**workers, "reason": seen.reason})
            if seen.reduce is not None:
                yield Ended("plan", seen.reduce, within=round_id, values={"reason": seen.reason})
        case PassReduce():
            yield Ended("plan", seen.reduce, seen.reason)
        case ReduceSettled():
            yield Ended("round", seen.round)
        case CancelReduce():
            yield Ended("round", seen.round, seen.reason)
