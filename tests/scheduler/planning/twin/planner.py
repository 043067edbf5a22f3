"""All rules, one after the other: order, forward, replicate, commit, answer gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlfabric.protocol import DropReason, GetId, UpdateId
from mlfabric.scheduler.planning.problem import Batch, Consistency, FabricState, PlannerConfig
from mlfabric.scheduler.planning.values import Candidate, GetCandidate
from tests.scheduler.planning.twin.direct import Item, Sent, TwinAnswers, answer_all, send_all
from tests.scheduler.planning.twin.network import TwinNetwork
from tests.scheduler.planning.twin.ordering import TwinOrder, TwinPlanner
from tests.scheduler.planning.twin.replication import TwinReplication, replicate


class TwinCommit(NamedTuple):
    """One update's place in the sequence."""

    update: UpdateId
    position: int
    version: int
    tau: int
    arrive_ns: int
    commit_ns: int


@dataclass
class TwinPlan:
    """What a plan says, without its words."""

    commits: list[TwinCommit]
    groups: list[tuple[UpdateId, ...]]
    drops: dict[UpdateId, DropReason]
    steps: list[tuple[tuple[UpdateId, ...], int]]
    punts: list[UpdateId]
    deferred_updates: list[UpdateId]
    deferred_gets: set[GetId]
    sent: list[Sent]
    gets: dict[GetId, int]


def twin_plan(batch: Batch, network: TwinNetwork, state: FabricState, config: PlannerConfig) -> TwinPlan:
    """Plan a batch whose updates and models all go by themselves; ALL_REDUCE is not for twins."""
    order = ordered(batch.updates, network, state, config)
    free = network.copy()
    sent = send_all(lot_of(order, state), free, state.server)
    arrive_ns = [transfer.arrive_ns for transfer in sent]
    items = [Item((c.update,), c.source, c.size_bytes, max(c.ready_ns, state.now_ns)) for c, _ in order.placed]
    norms = [c.norm for c, _ in order.placed]
    copies = replicate(items, norms, arrive_ns, free, state.replica, config, state.now_ns)
    for transfer in copies.sent:
        free.reserve(free.path(transfer.source, transfer.destination), transfer.profile)
    got = answered(batch.gets, free, state, config)
    return TwinPlan(
        commits=commits(order, arrive_ns, copies, state, config),
        groups=[transfer.members for transfer in sent],
        drops=order.left,
        steps=copies.steps,
        punts=copies.punted,
        deferred_updates=[c.update for c, _ in order.placed[len(copies.commit_ns) :]],
        deferred_gets=got.deferred,
        sent=[*sent, *copies.sent, *got.sent],
        gets=got.answers,
    )


def answered(gets: Sequence[GetCandidate], free: TwinNetwork, state: FabricState, config: PlannerConfig) -> TwinAnswers:
    """Answer gets over what all updates leave free; hold back those of workers that are too far ahead."""
    held = set()
    if config.consistency is Consistency.STALE_SYNCHRONOUS:
        held = {get.get for get in gets if get.clock > state.slowest_clock + config.slack}
    found = answer_all([get for get in gets if get.get not in held], free, state.server, state.now_ns)
    found.deferred |= held
    return found


def ordered(updates: Sequence[Candidate], network: TwinNetwork, state: FabricState, config: PlannerConfig) -> TwinOrder:
    """Order by deadlines, or as one list, or as one list of each clock."""
    lists = [list(updates)]
    if config.consistency is Consistency.STALE_SYNCHRONOUS:
        lists = [[c for c in updates if c.clock == clock] for clock in sorted({c.clock for c in updates})]
    bounded = config.consistency is Consistency.ASYNCHRONOUS
    free, found = network.copy(), TwinOrder(now_ns=state.now_ns)
    for together in lists:
        planner = TwinPlanner(free, state.server, state.v_init, config.tau_max if bounded else None, state.now_ns)
        part = planner.order(together)
        for c, profile in part.placed:
            planner.reserve(free, c, profile)
        found.placed += part.placed
        found.left |= part.left
    return found


def lot_of(order: TwinOrder, state: FabricState) -> list[Item]:
    """List what is to be sent to the server, each with the profile that the ordering found."""
    return [
        Item((c.update,), c.source, c.size_bytes, max(c.ready_ns, state.now_ns), profile, c.in_flight is not None)
        for c, profile in order.placed
    ]


def commits(
    order: TwinOrder,
    arrive_ns: Sequence[int],
    copies: TwinReplication,
    state: FabricState,
    config: PlannerConfig,
) -> list[TwinCommit]:
    """Number those that are committed; an iteration of synchronous SGD is one version."""
    found = []
    for p, commit_ns in enumerate(copies.commit_ns):
        c = order.placed[p][0]
        version = state.v_init + (0 if config.consistency is Consistency.SYNCHRONOUS else p)
        found.append(TwinCommit(c.update, p + 1, version, version - c.computed_from, arrive_ns[p], commit_ns))
    return found
