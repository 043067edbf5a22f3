"""Instructions of the scheduler to members; each names its receiver (``to``) and carries its reason. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mlfabric.model.samples import Samples
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol.follower_values import Fold, Followed, Keep, Logged, Release, Replicate, Seed, Unfollowed
from mlfabric.protocol.identities import DropReason, GetId, ModelVersion, Outcome, TransferId, UpdateId, UpdateKind
from mlfabric.protocol.jobs import FreeModel
from mlfabric.protocol.promotion import NewServer, Promote
from mlfabric.protocol.relays import CancelHandOn, CancelSum, HandOn, Sum
from mlfabric.protocol.round_values import (
    BeginState,
    CancelReduce,
    FetchState,
    GiveState,
    PassReduce,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceSettled,
)
from mlfabric.protocol.sample_values import NoteDropped, SamplesGranted
from mlfabric.protocol.shard_values import Conclude, Prepare
from mlfabric.protocol.timing_values import SetThreshold
from mlfabric.protocol.told import Told, ToldOfModel
from mlfabric.values import dataclass

__all__ = [
    "CancelServe",
    "Drop",
    "Expect",
    "Expected",
    "Fetch",
    "HostModel",
    "Initialise",
    "Instruction",
    "MonitorAt",
    "PeerLost",
    "Refuse",
    "RefuseReason",
    "Resolve",
    "Send",
    "Serve",
    "Void",
    "Welcome",
]


class RefuseReason(Enum):
    """Why a registration was refused; the shell maps each to a gRPC status."""

    NAME_TAKEN = "another live member has this name"
    LAYOUT_DIFFERS = "the model is registered with another layout"
    OPTIONS_DIFFER = "the model is registered with other options"
    PROTOCOL_VERSION = "this member speaks another version of the protocol"
    OUT_OF_RANGE = "a parameter is out of range"
    NOT_YET = "something that it needs is not there yet"
    NOT_ITS_OWN = "it is about another member's model"
    TOO_MANY = "there is more of it than the scheduler takes in"
    FENCED = "this scheduler has been succeeded by another one"
    SUPERSEDED = "another process has taken its place"
    OTHER_JOB = "another job trains the model, or has left it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Told):
    """Admit a member.

    Args:
        term, instance: the scheduler's term.
        tau_max: the bound in force.
        monitor_address, monitor_token: see ``MonitorAt``.
        initialise: this worker is to send initial weights.
        clock: the least number of iterations that a worker counts as finished, if it is new or was given up by this
            scheduler: a worker that joins late starts here.
        lost: it did not answer for a while, and its transfers are void.
        server_epoch: for a worker: the epoch of its model, 0 if unknown; for a server: the epoch under which all of its
            models continue, 0 if each continues under its own.
    """

    incarnation: int
    term: int
    tau_max: int
    server: str
    initialise: bool
    monitor_address: str
    monitor_token: bytes = b""
    clock: int = 0
    instance: int = 0
    lost: bool = False
    server_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Told):
    """Refuse a registration or a request; nothing was changed."""

    cause: RefuseReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost(Told):
    """Who accepts connections at this address does not answer any more: break off what is on its way to or from it."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorAt(Told):
    """Report finished transfers to this monitor from now on ("" for none), and show it this token."""

    address: str
    token: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostModel(Told):
    """Hold this model from now on; it begins under this server epoch."""

    spec: ModelSpec
    epoch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise(ToldOfModel):
    """Push initial weights (as an update of kind INITIAL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Told):
    """Offer this update to ``receiver`` at ``address``, showing the ticket; ``rate_bps`` 0 means unpaced."""

    update: UpdateId
    receiver: str
    address: str
    seq: int
    ticket: bytes
    rate_bps: int


class Expected(NamedTuple):
    """One update of a transfer.

    Args:
        computed_from: the version whose gradient it is.
        resolved_below: its worker knows the outcomes of all counters below this one.
        norm: l2 norm over the PARAMETER tensors, computed once at the worker; of an update with its own learning rates,
            the greatest of them, because it bounds the step.
        samples: what it was computed from, if that is known.
    """

    update: UpdateId
    computed_from: ModelVersion
    resolved_below: int
    norm: float = 0.0
    samples: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect(Told):
    """Receive this transfer and commit it at ``seq``; one that is expected again moves to its new ``seq``.

    Args:
        members: the updates in it, in the order of commits; a lone update is its own only member.
        size_bytes: of everything sent: a sum of a rule with momentum is two images.
        after: transfers that the plan ends before this one starts; it is not granted while one of them runs.
        tau_max: the bound of each member's delay.
        lrs: a sum of several steps only: the learning rate of each member's step, which its coefficients contain.
        parts: how many transfers share this ``seq`` and make one version (synchronous), >= 1.
    """

    transfer: TransferId
    members: tuple[Expected, ...]
    model: str
    seq: int
    ticket: bytes
    size_bytes: int
    tau_max: int
    kind: UpdateKind
    after: tuple[TransferId, ...]
    lrs: tuple[float, ...] = ()
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(ToldOfModel):
    """Forget this update; it will not be sent."""

    update: UpdateId
    cause: DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(Told):
    """Learn the outcome of an update that a server had settled before."""

    update: UpdateId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Void(ToldOfModel):
    """Do not wait for this transfer any more, unless it is here completely."""

    transfer: TransferId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Told):
    """Fetch the model from ``source`` at ``address``, showing the ticket."""

    get: GetId
    source: str
    address: str
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve(Told):
    """Send the model to whoever shows the ticket, once ``after_updates`` are settled; ``after`` as in Expect.

    Args:
        version: of a shard: exactly this one, which the shard has when this arrives; None for any from ``min_version``
            on.
        span_ns: how long it takes by plan; if it takes much longer, others do not wait for it. 0 if unknown.
    """

    get: GetId
    model: str
    ticket: bytes
    min_version: ModelVersion
    after_updates: tuple[UpdateId, ...]
    after: tuple[GetId, ...]
    rate_bps: int
    version: ModelVersion | None = None
    span_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelServe(ToldOfModel):
    """Nobody will come for this get any more; if its worker is gone, what is being sent to it is broken off."""

    get: GetId
    gone: bool = False


Instruction = (
    Welcome
    | Refuse
    | MonitorAt
    | PeerLost
    | HostModel
    | FreeModel
    | Initialise
    | Send
    | Expect
    | Drop
    | Resolve
    | Void
    | Fetch
    | Serve
    | CancelServe
    | Sum
    | CancelSum
    | HandOn
    | CancelHandOn
    | Keep
    | Fold
    | Release
    | Replicate
    | Logged
    | Seed
    | Followed
    | Unfollowed
    | Promote
    | NewServer
    | Prepare
    | Conclude
    | NoteDropped
    | SamplesGranted
    | Reduce
    | CancelReduce
    | ReduceSettled
    | ReduceFailed
    | PassReduce
    | BeginState
    | FetchState
    | GiveState
    | SetThreshold
    | Probe
)
