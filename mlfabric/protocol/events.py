"""Events: what members report to the scheduler, and what others report about them. Pure."""

from __future__ import annotations

from enum import Enum

from mlfabric.model.samples import NO_SAMPLES, SampleCounts, Samples
from mlfabric.model.specs import Member, ModelSpec, Term
from mlfabric.protocol.follower_values import Following, HeldBack, NotKept, ReplicaReported
from mlfabric.protocol.identities import Commit, DropReason, GetId, ModelVersion, TransferId, UpdateId, UpdateKind
from mlfabric.protocol.jobs import JobClaim, JobHeld, JobReleased, ModelFreed, ModelRemoved
from mlfabric.protocol.round_values import (
    LinkProbed,
    ReduceRequested,
    RoundArrived,
    RoundBroken,
    RoundKept,
    RoundsHeld,
    RoundSlow,
    StateArrived,
    StateBroken,
)
from mlfabric.protocol.sample_values import SamplesDropped, SamplesReported, SamplesWanted
from mlfabric.protocol.shard_values import Prepared
from mlfabric.protocol.timing_values import StepsTimed
from mlfabric.protocol.told import SaidByServer
from mlfabric.values import dataclass

__all__ = [
    "AppliedIds",
    "CommitsReported",
    "GetRequested",
    "InitialReceived",
    "LinkRate",
    "LinksReported",
    "MemberEvent",
    "MemberJoined",
    "MemberLeft",
    "MemberLost",
    "MemberSilent",
    "MemoryReported",
    "PushRequested",
    "ServerHolds",
    "TermShown",
    "Tick",
    "TransferEnd",
    "TransferEnded",
    "WorkerHolds",
]


_NO_JOB = JobClaim()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A member registers, for the first time or again.

    Args:
        spec: the model that a worker trains.
        held: the models that a server brings.
        holds_initial: a worker can provide initial weights.
        most_updates: how many an aggregator takes into one sum, >= 0; 0 for any number.
        follows: what a replica follows.
        server_epochs: of a server: the last epoch that it knows of each of its models, in the same order.
        promoted: of a server that was a replica until now: that replica's name; "" for any other, and once it was
            admitted.
        succeeds: of a server that has ever been a replica: that replica's name.
        job: a worker's job.
        keeps: a server has a checkpoint directory: its models outlive the jobs.
        machine_bytes: of a server: memory of its machine; 0 means unknown.
    """

    member: Member
    spec: ModelSpec | None = None
    held: tuple[ModelSpec, ...] = ()
    holds_initial: bool = False
    most_updates: int = 0
    follows: Following | None = None
    server_epochs: tuple[int, ...] = ()
    promoted: str = ""
    succeeds: str = ""
    job: JobClaim = _NO_JOB
    keeps: bool = False
    machine_bytes: int = 0

    @property
    def server_epoch(self) -> int:
        """The greatest epoch of a server's models; 0 if it brings none."""
        return max(self.server_epochs, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSilent:
    """A member's stream broke; the member may return under the same incarnation."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """A member's process or host does not answer any more: nobody waits for it. It may return.

    Args:
        has_ended: its process has ended, so it will not return.
    """

    name: str
    incarnation: int
    detail: str
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A member left properly."""

    name: str
    incarnation: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequested:
    """A worker holds an update for its model; repeated until an answer is known.

    Args:
        computed_from: the version whose gradient it is.
        norm: l2 norm over the PARAMETER tensors, computed once at the worker; of an update with its own learning rates,
            the greatest of them, because it bounds the step.
        resolved_below: the worker knows the outcomes of all counters below this one.
        samples: what it was computed from, if that is known.
    """

    update: UpdateId
    model: str
    size_bytes: int
    computed_from: ModelVersion
    norm: float
    kind: UpdateKind = UpdateKind.GRADIENT
    resolved_below: int = 0
    samples: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequested:
    """A worker wants the model, at ``min_version`` or newer, once ``after_update`` (if any) has its outcome."""

    get: GetId
    model: str
    min_version: ModelVersion
    after_update: UpdateId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHolds:
    """What a worker had open when it (re)joined: everything without an outcome is requested again.

    Args:
        rounds: how far it has come in rounds without a server; None with other methods.
        clock: how many iterations it has finished, as the earlier scheduler counted; None if there was none.
        dropped: samples of its dropped updates.
        drawn: samples that it has drawn and that no committed update of its own was computed from.
    """

    worker: str
    pushes: tuple[PushRequested, ...]
    gets: tuple[GetRequested, ...]
    reduces: tuple[ReduceRequested, ...] = ()
    rounds: RoundsHeld | None = None
    clock: int | None = None
    dropped: Samples = ()
    drawn: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedIds:
    """The applied updates of one worker incarnation: each has its counter in ``recent``, or below ``low``.

    ``recent`` maps counters >= ``low`` to the version that they made and their delay.
    """

    worker: str
    incarnation: int
    low: int
    recent: tuple[tuple[int, ModelVersion, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHolds:
    """What a server holds of one model when it (re)joins.

    Args:
        epoch_base: the number at which its present epoch began.
        replica: the replica that bounds its lead.
        earlier: the first versions of the epochs that led to the present one, see ``protocol/lineage.py``.
        samples: what was trained on, and what not.
    """

    server: str
    spec: ModelSpec
    version: ModelVersion
    initialised: bool
    applied: tuple[AppliedIds, ...] = ()
    received: tuple[UpdateId, ...] = ()
    epoch_base: int = 0
    replica: str = ""
    earlier: tuple[ModelVersion, ...] = ()
    samples: SampleCounts = NO_SAMPLES

    @property
    def began(self) -> tuple[ModelVersion, ...]:
        """The versions at which the epochs of its path began, up to the present one."""
        return (*self.earlier, ModelVersion(self.version.epoch, self.epoch_base))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsReported(SaidByServer):
    """A server committed this group, in this order: its members were applied together."""

    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialReceived(SaidByServer):
    """A server now holds a model's initial weights."""

    version: ModelVersion


class TransferEnd(Enum):
    """How a transfer ended, as the reporting member saw it."""

    RECEIVED = "received"
    SERVED = "served"
    BROKEN = "the connection broke"
    VOIDED = "voided before it was complete"
    DISCARDED = "discarded"
    TORN = "a part of the sum will never come"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEnded:
    """A report on one transfer by its receiver (for a get, its sender); ``cause`` says why one was discarded."""

    member: str
    model: str
    transfer: TransferId | GetId
    end: TransferEnd
    cause: DropReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """An estimate of the present rate of one direction of one host's link."""

    host: str
    up: bool
    bps: int
    age_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReported:
    """What a member holds in memory, by kind, in bytes."""

    name: str
    kinds: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksReported:
    """A monitor's estimates."""

    monitor: str
    rates: tuple[LinkRate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TermShown:
    """A member shows the newest term that has admitted it, without joining this scheduler."""

    seen: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed; nothing else happened."""


MemberEvent = (
    MemberJoined
    | MemberSilent
    | MemberLost
    | MemberLeft
    | PushRequested
    | GetRequested
    | ReduceRequested
    | RoundArrived
    | RoundBroken
    | RoundSlow
    | RoundKept
    | StateArrived
    | StateBroken
    | LinkProbed
    | StepsTimed
    | WorkerHolds
    | ServerHolds
    | CommitsReported
    | InitialReceived
    | TransferEnded
    | LinksReported
    | MemoryReported
    | ReplicaReported
    | HeldBack
    | NotKept
    | Prepared
    | SamplesDropped
    | SamplesReported
    | SamplesWanted
    | TermShown
    | JobHeld
    | JobReleased
    | ModelRemoved
    | ModelFreed
    | Tick
)
