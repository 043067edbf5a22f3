"""A whole plan by the paper's own algorithms, to compare ours with: ``mlfabric plan --planner paper``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from mlfabric.errors import UsageError
from mlfabric.network import Network
from mlfabric.planning.commit_columns import Sequenced
from mlfabric.planning.input_checks import check_problem
from mlfabric.planning.paper import Choice, Leg, aggregate, order_updates
from mlfabric.planning.plan import Kind, Plan, Toward, Transfer
from mlfabric.planning.plan_values import Candidate, Left, Ordering, Pick, Slot
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape

__all__ = ["plan_by_paper"]


def plan_by_paper(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """Plan the updates of a batch by algorithms 2 and 3, without gets and without a replica.

    Raises:
        UsageError: the problem has no meaning, or is stale-synchronous or without a server.
    """
    if config.consistency not in (Consistency.ASYNCHRONOUS, Consistency.SYNCHRONOUS):
        raise UsageError("the paper's planner plans updates to a server; consistency: asynchronous, synchronous")
    shapes = frozenset({Shape.DIRECT, Shape.STORED})
    batch, state = replace(batch, gets=()), replace(state, replica=None)
    config = replace(config, div_max=None, shapes=shapes)
    check_problem(batch, network, state, config)
    tau_max = config.tau_max if config.consistency is Consistency.ASYNCHRONOUS else None
    placed, left = order_updates(
        batch.updates, network, [state.server], v_init=state.v_init, tau_max=tau_max, now_ns=state.now_ns
    )
    helpers = [a for a in state.aggregators if a.host != state.server]
    order, carried = [choice.update for choice in placed], 2 if config.gamma > 0 else 1
    legs = aggregate(order, network, state.server, helpers, now_ns=state.now_ns, carried=carried)
    flying = {candidate.update for candidate in batch.updates if candidate.in_flight}
    transfers = [_transfer(leg, network, leg.members[0] not in flying) for leg in legs]
    ends = [(i, leg) for i, leg in enumerate(transfers) if leg.destination == state.server]
    arrive_ns = [leg.arrive_ns for _, leg in ends for _ in leg.members]
    found = Sequenced(
        batch=batch,
        state=state,
        config=config,
        ordering=Ordering(slots=tuple(_slots(placed, tau_max, state))),
        shape=Shape.STORED,
        transfers=transfers,
        until=list(accumulate((len(leg.members) for _, leg in ends), initial=0)),
        last=[i for i, _ in ends],
        arrive_ns=arrive_ns,
        commit_ns=list(accumulate(arrive_ns, max, initial=state.now_ns))[1:],
        waits_for_ns=[0] * len(arrive_ns),
    )
    return Plan(
        batch=batch,
        state=state,
        config=config,
        shape=Shape.STORED if len(ends) < len(transfers) else Shape.DIRECT,
        transfers=transfers,
        groups=found.groups,
        commits=found.commits,
        drops=[Left(update=update, cause=cause, reason=cause.value) for update, cause in left.items()],
    )


def _transfer(leg: Leg, network: Network, is_planned: bool) -> Transfer:
    path = network.path(leg.source, leg.destination)
    return Transfer(
        kind=Kind.SUM if leg.inputs else Kind.UPDATE,
        toward=Toward.PRIMARY,
        source=leg.source,
        destination=leg.destination,
        path=path,
        size_bytes=leg.size_bytes,
        ready_ns=leg.ready_ns,
        profile=leg.profile,
        arrive_ns=leg.profile.end_ns + network.latency_ns(path),
        members=leg.members,
        inputs=leg.inputs,
        planned=is_planned,
    )


def _slots(placed: Sequence[Choice], tau_max: int | None, state: FabricState) -> Iterator[Slot]:
    for position, choice in enumerate(placed, start=1):
        deadline = None if tau_max is None else choice.update.computed_from + tau_max - state.v_init + 1
        yield Slot(
            update=choice.update.update,
            position=position,
            profile=choice.profiles[0],
            pick=_pick(choice.update, deadline == position),
            deadline=deadline,
        )


def _pick(update: Candidate, is_due: bool) -> Pick:
    if update.in_flight is not None:
        return Pick.IN_FLIGHT
    return Pick.DEADLINE if is_due else Pick.SHORTEST
