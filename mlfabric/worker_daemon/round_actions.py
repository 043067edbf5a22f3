"""What happens in a worker's rounds, and what its shell is to do about it: events and actions of ``Reducing``. Pure."""

from __future__ import annotations

from mlfabric.model.ranges import Ranges
from mlfabric.protocol import (
    BeginState,
    CancelReduce,
    FetchState,
    GiveState,
    PassReduce,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceRequested,
    ReduceSettled,
    RoundId,
)
from mlfabric.values import dataclass

__all__ = [
    "AttemptEnded",
    "AttemptKept",
    "AttemptSlow",
    "FailReduce",
    "FinishReduce",
    "KeepState",
    "PassOver",
    "ProbeEnded",
    "ReduceAction",
    "ReduceCalled",
    "ReduceEvent",
    "ReduceWithdrawn",
    "StartAttempt",
    "StartFetchState",
    "StartGiveState",
    "StartProbes",
    "StateEnded",
    "StopAttempt",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceCalled:
    """The worker handed over a tensor for an AllReduce."""

    request: ReduceRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceWithdrawn:
    """A tensor that was offered while it was made is to be in no round; ``reason`` says why."""

    reduce: ReduceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The result of an attempt at a round is here, or it never will be: then ``detail`` says why.

    ``up_bps`` and ``down_bps`` are what this host's link carried at best meanwhile; 0 if unknown.
    """

    round: RoundId
    detail: str = ""
    up_bps: int = 0
    down_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSlow:
    """An attempt goes on slowly: at its pace the rest takes ``left_ns``, at the planned one ``usual_ns``."""

    round: RoundId
    left_ns: int
    usual_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKept:
    """These ranges of the tensor's bytes are here of the result of an attempt that was stopped."""

    plan: Reduce
    kept: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A probe has come, or most of it: after which round it was sent, by whom, and how fast it came."""

    model: str
    round: RoundId
    source: str
    bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnded:
    """Model and optimizer state of this version have come from a peer, or ``detail`` says why not.

    ``round`` as in the order to fetch them.
    """

    round: RoundId
    version: int = 0
    detail: str = ""


ReduceEvent = (
    ReduceCalled
    | ReduceWithdrawn
    | AttemptEnded
    | AttemptSlow
    | AttemptKept
    | ProbeEnded
    | StateEnded
    | Reduce
    | CancelReduce
    | ReduceSettled
    | ReduceFailed
    | PassReduce
    | BeginState
    | FetchState
    | GiveState
    | Probe
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Take part in a round."""

    plan: Reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Take part in this round no more; ``keep`` what is here of its result, and say what that is."""

    round: RoundId
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProbes:
    """Send and expect probes; those of an earlier request are void."""

    plan: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReduce:
    """The result of a round is here, and with all others; ``workers`` contributed. Resolve the handle, if any."""

    plan: Reduce
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOver:
    """Resolve the handle of a gradient that is in no round: keep it for the next one, or drop it."""

    reduce: ReduceId
    keep: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepState:
    """Go on with the state that is here: it is the model's at this version. Stop to fetch another one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetchState:
    """Fetch model and optimizer state; results that wait to be applied are void."""

    plan: FetchState


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGiveState:
    """Let a peer fetch model and optimizer state."""

    plan: GiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class FailReduce:
    """Fail the handle of an AllReduce; the tensor is as it was."""

    reduce: ReduceId
    reason: str


ReduceAction = (
    StartAttempt
    | StopAttempt
    | StartProbes
    | FinishReduce
    | FailReduce
    | PassOver
    | KeepState
    | StartFetchState
    | StartGiveState
)
