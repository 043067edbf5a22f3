"""The planner's entry: who sends what to whom, when, how fast, and whether at all (design, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfabric.network import Network
from mlfabric.planning.all_reduce import plan_all_reduce
from mlfabric.planning.clock_lists import held_back
from mlfabric.planning.distribution import Distribution, distribute, with_reserved
from mlfabric.planning.fluid.world import World
from mlfabric.planning.input_checks import check_problem
from mlfabric.planning.lazy import joined
from mlfabric.planning.plan import Deferred, Plan
from mlfabric.planning.plan_values import GetCandidate
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from mlfabric.planning.push_plan import push

__all__ = ["plan"]

_NOTHING = Distribution(shape=Shape.DIRECT, transfers=(), answers=())


def plan(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """Plan a batch; nothing is changed, and the same input gives the same plan on every machine.

    Args:
        network: transfers in flight are reserved in it already.

    Raises:
        UsageError: the problem has no meaning; says what was given and what is allowed.
    """
    check_problem(batch, network, state, config)
    if config.consistency is Consistency.ALL_REDUCE:
        return plan_all_reduce(batch, network, state, config)
    world = _world(batch, network, state) if _needs_world(batch, state) else None
    pushed = push(batch, network, state, config, world)
    if not batch.gets:
        return pushed
    got, held = _handed_out(batch, network, state, config, pushed)
    return replace(
        pushed,
        transfers=joined(pushed.transfers, got.transfers),
        gets=got.answers,
        deferred=(*pushed.deferred, *got.deferred, *held),
    )


def _needs_world(batch: Batch, state: FabricState) -> bool:
    """Whether updates may need more than direct transfers."""
    return state.replica is not None or (bool(state.aggregators) and len(batch.updates) > 1)


def _world(batch: Batch, network: Network, state: FabricState) -> World:
    """Number all routes that the updates of this batch may take."""
    sources = dict.fromkeys(candidate.source for candidate in batch.updates)
    helpers = dict.fromkeys(aggregator.host for aggregator in state.aggregators)
    destinations = dict.fromkeys((*helpers, state.server))
    if state.replica is not None:
        sources |= dict.fromkeys(pending.source for pending in state.replica.pending)
        destinations[state.replica.host] = None
    return World(network, tuple(sources | helpers), tuple(destinations))


def _handed_out(
    batch: Batch, network: Network, state: FabricState, config: PlannerConfig, pushed: Plan
) -> tuple[Distribution, Sequence[Deferred]]:
    """Plan the gets over what the updates leave free."""
    gets: Sequence[GetCandidate] = batch.gets
    held: Sequence[Deferred] = ()
    if config.consistency is Consistency.STALE_SYNCHRONOUS:
        gets, held = held_back(gets, slowest_clock=state.slowest_clock, slack=config.slack)
    if not gets:
        return _NOTHING, held
    left = with_reserved(network, pushed.transfers)
    found = distribute(gets, left, state, config, index=len(pushed.transfers))
    return found, held
