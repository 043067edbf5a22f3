"""A plan as plain values: every transfer, the sequence of commits, and a reason for everything that is left out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from mlfabric.network import Network, Path, Profile
from mlfabric.planning.plan_values import Left
from mlfabric.planning.problem import Batch, FabricState, PlannerConfig, Shape
from mlfabric.protocol import GetId, UpdateId
from mlfabric.values import dataclass

__all__ = ["Commit", "Deferred", "GetServed", "Group", "Kind", "Plan", "Punt", "ReplicaStep", "Toward", "Transfer"]


class Kind(Enum):
    """What a transfer carries."""

    UPDATE = "one update, or what one worker folded of several"
    SUM = "the sum of several"
    MODEL = "a model, or the result of an AllReduce"
    RING = "parts of a sum, then of the result, to the next in a ring"


class Toward(Enum):
    """The final destination of a transfer's bytes."""

    PRIMARY = "primary"
    REPLICA = "replica"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One transfer between two hosts; the plan names it by its index.

    Args:
        size_bytes: of everything it carries.
        ready_ns: it cannot start before.
        profile: when it is sent how fast; ``profile.end_ns`` is when its last bit leaves the slowest link.
        arrive_ns: when its last bit arrives: its end plus the path's latency.
        members: the updates in it, by position.
        get: for a MODEL, the get that it answers; None if it goes to a host that only relays it.
        inputs: transfers whose content it forwards.
        cut_through: it may start before its inputs have arrived, and never sends what they have not brought.
        stripe: of an AllReduce in stripes, the number of its stripe.
        planned: False if it was in flight before this plan, so its profile is reserved already.
    """

    kind: Kind
    toward: Toward
    source: str
    destination: str
    path: Path
    size_bytes: int
    ready_ns: int
    profile: Profile
    arrive_ns: int
    members: tuple[UpdateId, ...] = ()
    get: GetId | None = None
    inputs: tuple[int, ...] = ()
    cut_through: bool = False
    stripe: int = 0
    planned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Updates, neighbours in the order of commits, that reach the server as one sum.

    Args:
        last: the transfer that ends at the server; of an AllReduce, all that bring its result.
    """

    members: tuple[UpdateId, ...]
    shape: Shape
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One update's place in the sequence.

    Args:
        position: from 1.
        version: to which it is applied.
        tau: its delay there.
        deadline: the last position that keeps its delay bound; None without a bound.
        arrive_ns: when its group has arrived at the server.
        commit_ns: when it and all before it have arrived and the divergence bound allows it.
        group: index in the plan's groups.
    """

    update: UpdateId
    position: int
    version: int
    tau: int
    deadline: int | None
    arrive_ns: int
    commit_ns: int
    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStep:
    """Updates that the replica can recover together from ``arrive_ns`` on; steps follow the order of commits."""

    members: tuple[UpdateId, ...]
    arrive_ns: int
    transfers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Punt:
    """An update that the replica gets later, and why."""

    update: UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetServed:
    """A get, the transfer that answers it, and when it is answered."""

    get: GetId
    transfer: int
    arrive_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A get that is not planned yet, or an update that is neither committed nor dropped by this plan; and why."""

    what: GetId | UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one batch; its input is kept for ``validate`` and ``explain``.

    Args:
        stripe_bytes: of an AllReduce in stripes, the size of each; empty otherwise.
    """

    batch: Batch
    state: FabricState
    config: PlannerConfig
    shape: Shape
    transfers: Sequence[Transfer]
    groups: Sequence[Group]
    commits: Sequence[Commit]
    drops: Sequence[Left] = ()
    replica_steps: Sequence[ReplicaStep] = ()
    punts: Sequence[Punt] = ()
    gets: Sequence[GetServed] = ()
    deferred: Sequence[Deferred] = ()
    stripe_bytes: tuple[int, ...] = ()

    def validate(self, network: Network) -> None:
        """Assert that the plan keeps its promises: capacity, order, delay and divergence bounds, each update once.

        Args:
            network: as it was when the plan was made.

        Raises:
            AssertionError: a promise is broken; says which, and where.
        """
        from mlfabric.planning.checking import validate  # it imports this file

        validate(self, network)

    def explain(self, network: Network | None = None) -> str:
        """Say in a few sentences what the plan does and why.

        Args:
            network: as it was when the plan was made; with it, sums are compared with sending everything directly.
        """
        from mlfabric.planning.explanation import explain  # likewise

        return explain(self, network)
