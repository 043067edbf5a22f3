"""The input of a plan: the batch, the state of the fabric, and the settings; plain values."""

from __future__ import annotations

from enum import Enum

from mlfabric.planning.plan_values import Candidate, GetCandidate
from mlfabric.protocol import UpdateId
from mlfabric.values import dataclass

__all__ = [
    "OWN_SHAPES",
    "Aggregator",
    "Batch",
    "Consistency",
    "DivergenceBound",
    "FabricState",
    "Objective",
    "Pending",
    "PlannerConfig",
    "Replica",
    "Shape",
    "objective_of",
]


class Consistency(Enum):
    """Which workers wait for which, and what makes a version (paper, section 6)."""

    ASYNCHRONOUS = "each update makes a version, within a delay bound"
    SYNCHRONOUS = "one version from one update of every worker"
    STALE_SYNCHRONOUS = "each update makes a version; nobody is more than a slack of iterations ahead"
    ALL_REDUCE = "the sum of all updates goes to every worker; there is no server"


class Objective(Enum):
    """What a plan minimises, after committing as many updates as possible."""

    MEAN_COMMIT = "the mean commit time"
    LAST_COMMIT = "the last commit"


class Shape(Enum):
    """How a group of updates reaches its destination."""

    DIRECT = "each by itself"
    STORED = "through an aggregator that stores all of them, then forwards their sum (paper, algorithm 3)"
    TREE = "through aggregators that forward a sum while its inputs still arrive"
    RING = "in equal parts around a ring of all workers"
    STRIPES = "in parts, each through a tree of its own in which other workers pass on"


OWN_SHAPES = frozenset(Shape) - {Shape.STORED}
"""The shapes that our planner makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """A host that may sum updates, or relay a model.

    Args:
        most_updates: how many it can take into one sum; 0 for any number.
    """

    host: str
    most_updates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceBound:
    """How far the primary may be from what the replica can recover.

    Args:
        norm: l2 distance, >= 0; infinite for no such bound.
        updates: how many commits the primary may be ahead, >= 0; None for no such bound.
    """

    norm: float
    updates: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A committed update whose bytes the replica does not hold; its worker keeps it.

    Args:
        source: host of its worker.
        step_norm: l2 norm of the step that the primary made of it.
    """

    update: UpdateId
    source: str
    size_bytes: int
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The replica and its lead.

    Args:
        pending: the lead before this batch, oldest first.
        history_norm: l2 norm of the primary's momentum history h after its last commit.
    """

    host: str
    pending: tuple[Pending, ...] = ()
    history_norm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Updates and gets that are planned together; ids are unique."""

    updates: tuple[Candidate, ...] = ()
    gets: tuple[GetCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricState:
    """The planner's input besides the network.

    Args:
        now_ns: nothing is planned before.
        v_init: the version to which the first commit of this plan is applied.
        server: the primary's host; empty for AllReduce.
        aggregators: hosts that may sum, first choice first.
        distributors: hosts that may relay a model, first choice first.
        late: hosts whose updates of an AllReduce are expected late. If stripes are possible, these hosts relay nothing
            and only stripes are considered, because in stripes nobody waits for the late hosts longer than needed.
        slowest_clock: the fewest iterations that any worker has finished (stale-synchronous).
    """

    now_ns: int
    v_init: int = 0
    server: str = ""
    aggregators: tuple[Aggregator, ...] = ()
    distributors: tuple[Aggregator, ...] = ()
    replica: Replica | None = None
    late: frozenset[str] = frozenset()
    slowest_clock: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """Settings of the planner.

    Args:
        tau_max: delay bound, >= 0; None for no bound (all but asynchronous).
        shapes: which the planner may choose from; DIRECT is always among them.
        gamma: momentum kept at the server, 0 to below 1; above 0, a sum of several updates is sent as two tensors.
        chunk_bytes: how much of every input a cut-through aggregator receives before it forwards it, > 0.
        div_max: None for no bound, which needs no replica.
        replicate_from: share of ``div_max`` that the lead may reach before anything is sent to the replica, 0 to 1.
        slack: how many iterations a worker may be ahead of the slowest (stale-synchronous).
        group_ns: added cost of each group beside its updates' commit times (MEAN_COMMIT), >= 0, because others wait for
            the server's link meanwhile.
    """

    consistency: Consistency = Consistency.ASYNCHRONOUS
    objective: Objective = Objective.MEAN_COMMIT
    tau_max: int | None = None
    shapes: frozenset[Shape] = OWN_SHAPES
    gamma: float = 0.0
    chunk_bytes: int = 64_000
    div_max: DivergenceBound | None = None
    replicate_from: float = 0.5
    slack: int = 0
    group_ns: int = 0


def objective_of(config: PlannerConfig) -> Objective:
    """Return what is minimised: for an iteration always its last commit."""
    synchronous = config.consistency in (Consistency.SYNCHRONOUS, Consistency.ALL_REDUCE)
    return Objective.LAST_COMMIT if synchronous else config.objective
