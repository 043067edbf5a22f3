"""What members and scheduler say to one another, as plain values.

Pure. Everything a state machine takes in (*events*) or gives out (*instructions*) is one of these frozen
values; ``mlfabric.wire`` turns them into protobuf messages and back. Every instruction names its receiver (``to``)
and carries its reason, which is what logs, metrics and the status page show.

Times are integer nanoseconds of the clock of whoever handles the value; no time ever crosses a host.

The way of one update (design, section 3)::

    worker                scheduler                   server
      PushRequested  ──────▶
                            plan
      ◀────── Send ─────────┴───────── Expect ─────────▶
      ── offer, on the data channel ───────────────────▶
      ◀──────────────────────────────── grant, its slot is there
      ── payload ──────────────────────────────────────▶  commits in seq order
      ◀──────────────────────────────── outcome: Committed(version, tau)
                            ◀───────── CommitsReported ──
"""

from __future__ import annotations

from mlfabric.protocol.events import (
    AppliedIds,
    CommitsReported,
    GetRequested,
    InitialReceived,
    LinkRate,
    LinksReported,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberSilent,
    MemoryReported,
    PushRequested,
    ServerHolds,
    TermShown,
    Tick,
    TransferEnd,
    TransferEnded,
    WorkerHolds,
)
from mlfabric.protocol.identities import (
    Commit,
    Committed,
    Dropped,
    DropReason,
    GetId,
    Lost,
    ModelVersion,
    Outcome,
    ReduceId,
    ReduceOp,
    RoundId,
    SumId,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.protocol.instructions import (
    CancelServe,
    Drop,
    Expect,
    Expected,
    Fetch,
    HostModel,
    Initialise,
    Instruction,
    MonitorAt,
    Refuse,
    RefuseReason,
    Resolve,
    Send,
    Serve,
    Void,
    Welcome,
)
from mlfabric.protocol.reductions import (
    CancelReduce,
    LinkProbed,
    Peer,
    Probe,
    Reduce,
    ReduceFailed,
    ReducePart,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
)
from mlfabric.protocol.relays import CancelHandOn, CancelSum, HandOn, HandOnTo, Sum, SumInput
from mlfabric.protocol.replication import (
    Fold,
    Followed,
    Following,
    HeldBack,
    Keep,
    Logged,
    NotKept,
    Release,
    ReplicaReported,
    Replicate,
    ReplicationKind,
    Seed,
    Unfollowed,
)
from mlfabric.protocol.shards import Conclude, Prepare, Prepared

__all__ = [
    "AppliedIds",
    "CancelHandOn",
    "CancelReduce",
    "CancelServe",
    "CancelSum",
    "Commit",
    "CommitsReported",
    "Committed",
    "Conclude",
    "Drop",
    "DropReason",
    "Dropped",
    "Expect",
    "Expected",
    "Fetch",
    "Fold",
    "Followed",
    "Following",
    "GetId",
    "GetRequested",
    "HandOn",
    "HandOnTo",
    "HeldBack",
    "HostModel",
    "InitialReceived",
    "Initialise",
    "Instruction",
    "Keep",
    "LinkProbed",
    "LinkRate",
    "LinksReported",
    "Logged",
    "Lost",
    "MemberEvent",
    "MemberJoined",
    "MemberLeft",
    "MemberSilent",
    "MemoryReported",
    "ModelVersion",
    "MonitorAt",
    "NotKept",
    "Outcome",
    "Peer",
    "Prepare",
    "Prepared",
    "Probe",
    "PushRequested",
    "Reduce",
    "ReduceFailed",
    "ReduceId",
    "ReduceOp",
    "ReducePart",
    "ReduceRequested",
    "ReduceSettled",
    "Refuse",
    "RefuseReason",
    "Release",
    "ReplicaReported",
    "Replicate",
    "ReplicationKind",
    "Resolve",
    "RoundArrived",
    "RoundBroken",
    "RoundId",
    "Seed",
    "Send",
    "Serve",
    "ServerHolds",
    "Sum",
    "SumId",
    "SumInput",
    "TermShown",
    "Tick",
    "TransferEnd",
    "TransferEnded",
    "TransferId",
    "Unfollowed",
    "UpdateId",
    "UpdateKind",
    "Void",
    "Welcome",
    "WorkerHolds",
]
