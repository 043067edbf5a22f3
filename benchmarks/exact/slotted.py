"""One batch in slots of equal length: the clock in which plans are compared with exact ones (paper, section 10.1).

Instants are *boundaries*: boundary b is ``now_ns + b * slot_ns``, slot b lies between b and b + 1, and what is ready
within a slot is ready at its end. Of each link the bits that fit into each slot are known; a transfer takes the same
share of a slot on every link of its path. It arrives at the boundary after its last slot, and its path's latency, in
whole slots, later. A sum may use the slots from the boundary on at which the last of its members arrived.

``replay`` brings decisions (where each update goes, and who comes first) into this clock: in the order given, each
transfer takes in every slot as much as its links have left. So a replay is one of the plans that ``exact`` chooses
from, and never better than the best of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mlfabric.network import LinkId, Network, Path, Profile
from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.jit import plain
from mlfabric.planning.plan import Kind, Plan, Toward
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.positions import worst_due
from mlfabric.planning.problem import Batch, Consistency, FabricState, Objective, PlannerConfig, objective_of
from mlfabric.protocol import UpdateId

__all__ = [
    "DIRECT",
    "LEFT",
    "Decisions",
    "Leg",
    "Replayed",
    "Slotted",
    "arrival",
    "decisions_of",
    "replay",
    "slotted",
]

LEFT, DIRECT = -1, 0
_BILLION = 10**9


class Leg(NamedTuple):
    """A path as numbers of links, and its latency in whole slots."""

    links: tuple[int, ...]
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    """A batch in slots; ``by update`` means in the order of ``updates``, ``by aggregator`` in the state's order.

    Args:
        updates: all that could be committed, were they alone.
        bits: by update.
        ready: by update, the first boundary from which on it can be sent.
        arrived: by update, when it arrives if it is on its way already (its links are taken already); else None.
        deadlines: by update, the last position that it can have.
        most: by aggregator, how many updates fit into its sum.
        legs: by update, the way to the server, then to each aggregator.
        sums: by aggregator, the way to the server.
        free: what fits into each slot in bits, by link and slot.
        carried: how many tensors a sum of several is.
        commits: how many updates can be committed together.
    """

    now_ns: int
    slot_ns: int
    updates: tuple[UpdateId, ...]
    bits: tuple[int, ...]
    ready: tuple[int, ...]
    arrived: tuple[int | None, ...]
    deadlines: tuple[int, ...]
    most: tuple[int, ...]
    legs: tuple[tuple[Leg, ...], ...]
    sums: tuple[Leg, ...]
    free: Ints
    carried: int
    objective: Objective
    commits: int

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return int(self.free.shape[1])

    def sum_bits(self, members: Sequence[int]) -> int:
        """Return the size of a sum of these updates."""
        return max(self.bits[i] for i in members) * (self.carried if len(members) > 1 else 1)

    def cost(self, commits: Sequence[int]) -> int:
        """Return the objective in slots, of the boundaries at which updates are committed."""
        return sum(commits) if self.objective is Objective.MEAN_COMMIT else max(commits, default=0)


class Decisions(NamedTuple):
    """Where each update goes (LEFT, DIRECT or aggregator 1, 2, ...), and the updates in the order of reservations."""

    where: tuple[int, ...]
    sequence: tuple[int, ...]


class Replayed(NamedTuple):
    """What becomes of decisions, in boundaries.

    ``commits``: by update, -1 if it is left. ``order``: in which they are committed. ``closed``, ``summed``: by
    aggregator, when its sum can be sent and when it has arrived. ``cost``: the objective over those committed.
    """

    commits: tuple[int, ...]
    order: tuple[int, ...]
    closed: tuple[int, ...]
    summed: tuple[int, ...]
    cost: int


def slotted(
    batch: Batch, network: Network, state: FabricState, config: PlannerConfig, *, slot_ns: int, slots: int
) -> Slotted:
    """Lay a batch to one server out in ``slots`` slots from ``state.now_ns`` on."""
    server, now_ns = state.server, state.now_ns
    asynchronous = config.consistency is Consistency.ASYNCHRONOUS
    tau_max = config.tau_max if asynchronous else None
    kept, deadlines = _kept(batch.updates, network, state, tau_max)
    links: dict[LinkId, int] = {}

    def leg(source: str, destination: str) -> Leg:
        path = network.path(source, destination)
        lag = -(-network.latency_ns(path) // slot_ns)
        return Leg(tuple(links.setdefault(link, len(links)) for link in path), lag)

    aggregators = [a for a in state.aggregators if a.host != server]
    legs = tuple(tuple(leg(c.source, d) for d in (server, *(a.host for a in aggregators))) for c in kept)
    sums = tuple(leg(a.host, server) for a in aggregators)
    due = plain(worst_due)(sorted(deadlines), range(len(kept)))
    return Slotted(
        now_ns=now_ns,
        slot_ns=slot_ns,
        updates=tuple(c.update for c in kept),
        bits=tuple(8 * c.size_bytes for c in kept),
        ready=tuple(_boundary(c.ready_ns - now_ns, slot_ns) for c in kept),
        arrived=tuple(_arrived(c.in_flight, network, network.path(c.source, server), now_ns, slot_ns) for c in kept),
        deadlines=tuple(deadlines),
        most=tuple(a.most_updates or len(kept) for a in aggregators),
        legs=legs,
        sums=sums,
        free=np.array([_fitting(network, link, now_ns, slot_ns, slots) for link in links], np.int64).reshape(-1, slots),
        carried=2 if config.gamma > 0 else 1,
        objective=objective_of(config),
        commits=len(kept) - len(due),
    )


def _kept(
    updates: Sequence[Candidate], network: Network, state: FabricState, tau_max: int | None
) -> tuple[list[Candidate], list[int]]:
    """Leave out who is too late for any position or cannot be sent; return the others and their deadlines."""
    kept, deadlines = [], []
    for c in updates:
        deadline = len(updates) if tau_max is None else c.computed_from + tau_max - state.v_init + 1
        path = network.path(c.source, state.server)
        if deadline >= 1 and (c.in_flight or network.transfer(path, c.size_bytes, max(c.ready_ns, state.now_ns))):
            kept.append(c)
            deadlines.append(deadline)
    return kept, [min(deadline, len(kept)) for deadline in deadlines]


def _boundary(span_ns: int, slot_ns: int) -> int:
    return max(0, -(-span_ns // slot_ns))


def _arrived(profile: Profile | None, network: Network, path: Path, now_ns: int, slot_ns: int) -> int | None:
    return None if profile is None else _boundary(profile.end_ns + network.latency_ns(path) - now_ns, slot_ns)


def _fitting(network: Network, link: LinkId, now_ns: int, slot_ns: int, slots: int) -> list[int]:
    """How many whole bits of a link are free in each slot."""
    line = network.free_line(link)
    fitting, piece = [], 0
    for slot in range(slots):
        start_ns, end_ns, parts = now_ns + slot * slot_ns, now_ns + (slot + 1) * slot_ns, 0
        while start_ns < end_ns:
            while line.times[piece + 1] <= start_ns:
                piece += 1
            until_ns = min(end_ns, line.times[piece + 1])
            parts += max(0, line.values[piece]) * (until_ns - start_ns)
            start_ns = until_ns
        fitting.append(parts // _BILLION)
    return fitting


def decisions_of(plan: Plan, problem: Slotted) -> list[Decisions]:
    """Read a direct or stored plan's decisions.

    A plan does not tell which transfer came first where several share a link, so they are read in three ways: as they
    are listed, by when they end, by when they start. Each is a plan that keeps the same ways.
    """
    number = {update: i for i, update in enumerate(problem.updates)}
    hosts = [plan.state.server, *(a.host for a in plan.state.aggregators if a.host != plan.state.server)]
    sent = [t for t in plan.transfers if t.kind is Kind.UPDATE and t.toward is Toward.PRIMARY and not t.inputs]
    where = [LEFT] * len(number)
    for transfer in sent:
        where[number[transfer.members[0]]] = hosts.index(transfer.destination)
    orders = [
        sent,
        sorted(sent, key=lambda t: t.profile.end_ns),
        sorted(sent, key=lambda t: (t.profile.start_ns, t.profile.end_ns)),
    ]
    return [Decisions(tuple(where), tuple(number[t.members[0]] for t in order)) for order in orders]


def replay(problem: Slotted, decisions: Decisions) -> Replayed | None:
    """Bring decisions into slots; None if they do not fit into so many, or no order of commits keeps the deadlines."""
    free = problem.free.copy()
    arrivals: list[int] = [-1] * len(problem.updates)
    members = [[i for i in decisions.sequence if decisions.where[i] == d] for d in range(1, 1 + len(problem.sums))]
    closed, summed = [0] * len(members), [0] * len(members)
    for i in decisions.sequence:
        target, at = decisions.where[i], problem.arrived[i]
        if at is None:
            at = arrival(free, problem.legs[i][target], problem.bits[i], problem.ready[i], take=True)
        if at is None:
            return None
        arrivals[i] = at
        if target > DIRECT and members[target - 1][-1] == i:
            group = members[target - 1]
            closed[target - 1] = at = max(arrivals[k] for k in group)
            at = arrival(free, problem.sums[target - 1], problem.sum_bits(group), at, take=True)
            if at is None:
                return None
            summed[target - 1] = at
            for member in group:
                arrivals[member] = at
    return _committed(problem, decisions, arrivals, tuple(closed), tuple(summed))


def arrival(free: Ints, leg: Leg, bits: int, ready: int, *, take: bool = False) -> int | None:
    """Return when the last bit has arrived that is sent from ``ready`` on; None if it does not fit into the slots."""
    if not leg.links or not bits:
        return ready
    rows = list(leg.links)
    for slot in range(ready, free.shape[1]):
        part = min(bits, int(free[rows, slot].min()))
        bits -= part
        if take:
            free[rows, slot] -= part
        if not bits:
            return slot + 1 + leg.lag
    return None


def _committed(
    problem: Slotted, decisions: Decisions, arrivals: Sequence[int], closed: tuple[int, ...], summed: tuple[int, ...]
) -> Replayed | None:
    chosen = sorted(decisions.sequence)
    order = _commit_order(problem, decisions.where, arrivals, chosen)
    if order is None:
        return None
    commits, reached = [-1] * len(arrivals), 0
    for i in order:
        reached = max(reached, arrivals[i])
        commits[i] = reached
    cost = problem.cost([commits[i] for i in chosen])
    return Replayed(tuple(commits), tuple(order), closed, summed, cost)


def _commit_order(
    problem: Slotted, where: Sequence[int], arrivals: Sequence[int], chosen: Sequence[int]
) -> list[int] | None:
    """Order updates for commit, groups together, each within its deadline; None if that cannot be.

    From the last position back, each goes to the latest arrival that may come so late (any such choice leaves the rest
    feasible, as it only lets the others come earlier); members of a group by deadline.
    """
    groups: dict[int, list[int]] = {}
    for i in sorted(chosen, key=lambda i: problem.deadlines[i]):
        groups.setdefault(where[i] if where[i] > DIRECT else -1 - i, []).append(i)
    left, order = list(groups.values()), list[int]()
    while left:
        begin = sum(map(len, left)) + 1
        may_end = [
            group for group in left if all(problem.deadlines[i] >= begin - len(group) + n for n, i in enumerate(group))
        ]
        if not may_end:
            return None
        last = max(may_end, key=lambda group: (arrivals[group[0]], -group[0]))
        left.remove(last)
        order = [*last, *order]
    return order
