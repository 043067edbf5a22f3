"""A plan for a batch's updates: ordered, forwarded by the best of the allowed shapes, replicated (paper, section 5).

Each stage works on columns; the values of a plan are made when they are read. A lone update goes directly, as nothing
is summed.
"""

from __future__ import annotations

from itertools import accumulate

from mlfabric.network import Network
from mlfabric.planning.clock_lists import order_lists
from mlfabric.planning.commit_columns import Sequenced
from mlfabric.planning.direct import forward_directly
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy, joined
from mlfabric.planning.ordering import order
from mlfabric.planning.plan import Kind, Plan, Toward, Transfer
from mlfabric.planning.plan_values import Ordering
from mlfabric.planning.problem import (
    Batch,
    Consistency,
    FabricState,
    Objective,
    PlannerConfig,
    Shape,
    objective_of,
)
from mlfabric.planning.profiles import Lot
from mlfabric.planning.replica_steps_plan import replicate
from mlfabric.planning.trees import forward_trees
from mlfabric.planning.way_of_sums import Forwarding

__all__ = ["push"]


def push(batch: Batch, network: Network, state: FabricState, config: PlannerConfig, world: World | None) -> Plan:
    """Plan the updates of a batch: all of the plan but its gets.

    Args:
        world: has all routes that they may take; None if each goes directly to the server and nothing else is planned.
    """
    if not batch.updates and state.replica is None:
        return Plan(batch=batch, state=state, config=config, shape=Shape.DIRECT, transfers=(), groups=(), commits=())
    ordering = _ordered(batch, network, state, config, world)
    if world is None:
        return _directly(batch, ordering, network, state, config)
    return _forwarded(batch, ordering, state, config, world)


def _ordered(
    batch: Batch, network: Network, state: FabricState, config: PlannerConfig, world: World | None
) -> Ordering:
    asynchronous = config.consistency is Consistency.ASYNCHRONOUS
    if config.consistency is Consistency.STALE_SYNCHRONOUS:
        return order_lists(batch.updates, network, state.server, v_init=state.v_init, now_ns=state.now_ns, world=world)
    return order(
        batch.updates,
        network,
        state.server,
        v_init=state.v_init,
        tau_max=config.tau_max if asynchronous else None,
        now_ns=state.now_ns,
        world=world,
    )


def _directly(batch: Batch, ordering: Ordering, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """The most frequent case: the ordering is the plan; each update is a group."""
    server, candidates = state.server, ordering.candidates
    paths = [network.path(candidate.source, server) for candidate in candidates]
    ends = zip(ordering.end_ns, paths, strict=True)
    arrive_ns, count = [end_ns + network.latency_ns(path) for end_ns, path in ends], len(paths)

    def transfer(place: int) -> Transfer:
        candidate = candidates[place]
        return Transfer(
            kind=Kind.UPDATE,
            toward=Toward.PRIMARY,
            source=candidate.source,
            destination=server,
            path=paths[place],
            size_bytes=candidate.size_bytes,
            ready_ns=max(candidate.ready_ns, state.now_ns),
            profile=ordering.slots[place].profile,
            arrive_ns=arrive_ns[place],
            members=(candidate.update,),
            planned=candidate.in_flight is None,
        )

    transfers = Lazy(count, transfer)
    found = Sequenced(
        batch=batch,
        state=state,
        config=config,
        ordering=ordering,
        shape=Shape.DIRECT,
        transfers=transfers,
        until=range(count + 1),
        last=range(count),
        arrive_ns=arrive_ns,
        commit_ns=list(accumulate(arrive_ns, max, initial=state.now_ns))[1:],
        waits_for_ns=[0] * count,
    )
    return Plan(
        batch=batch,
        state=state,
        config=config,
        shape=Shape.DIRECT,
        transfers=transfers,
        groups=found.groups,
        commits=found.commits,
        drops=ordering.left,
    )


def _forwarded(batch: Batch, ordering: Ordering, state: FabricState, config: PlannerConfig, world: World) -> Plan:
    """Let the best of the allowed shapes bring the updates to the primary, then plan what the replica gets."""
    lot = ordering.lot
    assert lot is not None, "an ordering over a world has columns"
    forwarding = _best(lot, world, state, config)
    replication = replicate(
        lot,
        [candidate.norm for candidate in ordering.candidates],
        forwarding.arrive_ns,
        state.replica,
        config,
        world,
        forwarding.lines,
        now_ns=state.now_ns,
        first_transfer=len(forwarding.transfers),
    )
    found = Sequenced(
        batch=batch,
        state=state,
        config=config,
        ordering=ordering,
        shape=forwarding.shape,
        transfers=forwarding.transfers,
        until=forwarding.until,
        last=forwarding.last,
        arrive_ns=forwarding.arrive_ns.tolist(),
        commit_ns=replication.commit_ns,
        waits_for_ns=Lazy(
            len(replication.waits_for),
            lambda i: replication.commit_ns[i] if replication.waits_for[i] >= 0 else 0,
        ),
    )
    return Plan(
        batch=batch,
        state=state,
        config=config,
        shape=forwarding.shape,
        transfers=joined(forwarding.transfers, replication.transfers),
        groups=found.groups,
        commits=found.commits,
        drops=ordering.left,
        replica_steps=replication.steps,
        punts=replication.punts,
        deferred=replication.deferred,
    )


def _best(lot: Lot, world: World, state: FabricState, config: PlannerConfig) -> Forwarding:
    """Return the shape with the smallest objective; of equal ones the simplest."""
    server, now_ns, objective = state.server, state.now_ns, objective_of(config)
    group_ns = config.group_ns if objective is Objective.MEAN_COMMIT else 0

    def cost_ns(found: Forwarding) -> int:
        return found.cost(objective, now_ns) + group_ns * len(found.last)

    best = forward_directly(lot, world, world.lines, server, now_ns=now_ns, toward=Toward.PRIMARY)
    if state.aggregators and len(lot.updates) > 1 and Shape.TREE in config.shapes:
        tree = forward_trees(lot, world, state, config)
        if tree is not None and cost_ns(tree) < cost_ns(best):
            best = tree
    return best
