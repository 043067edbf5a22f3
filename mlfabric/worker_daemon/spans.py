"""Which events and actions of a worker daemon begin and end spans. Shell-level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlfabric.channels import TransferRecord
from mlfabric.protocol import Committed, GetRequested, PushRequested, RoundId
from mlfabric.telemetry.spans import Began, Ended, Moment, Passed, Values
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon import round_actions as rounds
from mlfabric.worker_daemon.observations import Transferred

__all__ = ["RoundTransferred", "moments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTransferred:
    """Bytes of a round have all been sent to ``peer``, or have come from it."""

    round: RoundId
    peer: str
    record: TransferRecord


def moments(seen: object) -> Iterator[Moment]:
    """Give a ``push`` and a ``get`` as they look to training code, ``transfer`` of their bytes, and parts in rounds.

    A part in a round is an ``aggregate``, in which sums and results come and go, and a ``commit`` until all have it.
    """
    match seen:
        case PushRequested():
            yield Began("push", seen.update, {"model": seen.model})
        case act.Settle(outcome=Committed() as made):
            yield Ended("push", seen.update, values={"version": made.version.number, "delay": made.tau})
        case act.Settle() | act.FailPush():
            yield Ended("push", seen.update, seen.reason)
        case GetRequested():
            yield Began("get", seen.get, {"model": seen.model})
        case act.Deliver():
            yield Ended("get", seen.get, values={"version": seen.version.number})
        case Transferred():
            sent: Values = {"bytes": seen.size_bytes, "peer": seen.peer}
            yield Passed("transfer", seen.transfer, seen.started_ns, seen.ended_ns, sent)
        case rounds.StartAttempt(plan=plan):
            yield Began("aggregate", plan.round, {"bytes": plan.size_bytes, "reason": plan.reason})
        case rounds.AttemptEnded():
            yield Ended("aggregate", seen.round, seen.detail)
            if not seen.detail:
                yield Began("commit", seen.round)
        case RoundTransferred(record=record):
            moved: Values = {"bytes": record.bytes, "peer": seen.peer, "direction": record.direction.value}
            yield Passed("transfer", seen.round, record.started_ns, record.ended_ns, moved)
        case rounds.StopAttempt():
            yield Ended("aggregate", seen.round, "this attempt is void")
            yield Ended("commit", seen.round, "this attempt is void")
        case rounds.FinishReduce(plan=plan):
            yield Ended("commit", plan.round, values={"version": plan.version, "workers": seen.workers})
