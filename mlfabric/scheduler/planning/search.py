"""Other plans for a small batch, when the paper's is not the best: local search over where updates go, and when.

Algorithm 3 fixes the order first, then cuts it into groups: one aggregator after the other, each filled before the
next. The search gives up both. It changes where single updates go, the order in which transfers reserve, and so the
order of commits; groups still are neighbours there, delay bounds still hold. What it tries is counted, not timed, and
its random numbers are its own, so the same problem has the same plan on every machine. What is on its way stays.

The kernel is in ``fluid/search_kernel.py``; ``exact.py`` tells how far from the best the result is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mlfabric.network import Network, Profile
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid import search_kernel as kernel
from mlfabric.scheduler.planning.fluid.lines import Ints, Lines
from mlfabric.scheduler.planning.fluid.world import World, profile_of
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from mlfabric.scheduler.planning.values import Ordering

__all__ = ["MOST_UPDATES", "Found", "improve", "reordered", "warm"]

MOST_UPDATES = 16
SEED = 1


class Found(NamedTuple):
    """A better plan.

    ``order``: the places that its updates had in the lot that was given, in the new order of commits. ``lot``: the
    updates in that order. ``forwarding``: by place in that order.
    """

    order: list[int]
    lot: Lot
    forwarding: Forwarding


def improve(
    lot: Lot,
    given: Forwarding,
    world: World,
    lines: Lines,
    destination: str,
    aggregators: Sequence[Aggregator],
    *,
    now_ns: int,
    objective: Objective,
    carried: int,
    toward: Toward,
    deadlines: Sequence[int] | None,
    evaluations: int,
) -> Found | None:
    """Look for a better way to forward a small lot; ``lines`` are not changed.

    Args:
        given: direct or stored, the plan to improve on.
        world: knows the routes from all sources and aggregators to all aggregators and the destination.
        lines: what is free before the lot's own transfers, except those on their way.
        carried: how many tensors the sum of several updates has.
        deadlines: by place, the last position, from 1, that keeps the delay bound; None if there is no bound.
        evaluations: how many plans are tried.

    Returns:
        A plan whose objective is less than the given one's; None if none was found, the lot has more than
        MOST_UPDATES updates, or some of it cannot be sent.
    """
    count = len(lot.updates)
    if not (1 < count <= MOST_UPDATES and len(given.arrive_ns) == count and evaluations and lot.tensor_bits is None):
        return None
    hosts = (destination, *(aggregator.host for aggregator in aggregators))
    puzzle = _puzzle(lot, world, hosts, aggregators, now_ns, objective, carried, deadlines)
    desk = kernel.desk_for(puzzle, lines)

    def score(plan: Ints, tries: int) -> int:
        return int(kernel.search(puzzle, plan, lines, world.routes, desk, tries, SEED))

    starts = [_start(lot, given, hosts, grouped) for grouped in (True, False)]
    plan = min(starts, key=lambda start: score(start.copy(), 0))
    if score(plan, evaluations) == kernel.BAD:
        return None
    found = _Solution(lot, world, hosts, puzzle, plan, desk, toward).found(lines)
    return found if found.forwarding.cost(objective, now_ns) < given.cost(objective, now_ns) else None


def reordered(ordering: Ordering, order: Sequence[int]) -> Ordering:
    """Give the updates of an ordering other positions; ``order`` has their places in the new order."""
    slots = [replace(ordering.slots[place], position=position) for position, place in enumerate(order, start=1)]
    return Ordering(slots=tuple(slots), left=ordering.left)


def warm() -> None:
    """Run the kernels once on a tiny case."""
    network = Network.star(10**9)
    for host in "abs":
        network.add_host(host)
    world = World(network, "ab", "sb")
    bits, ready_ns = np.array([[8, 8], [0, 0]], np.int64)
    lot = Lot([UpdateId(host, 0, 0) for host in "ab"], "ab", bits, ready_ns, 0, None, [True] * 2)
    given = Forwarding(
        shape=Shape.DIRECT, arrive_ns=np.array([99, 99]), groups=[], last=[], transfers=[], lines=world.lines
    )
    for objective in Objective:
        improve(
            lot,
            given,
            world,
            world.lines,
            "s",
            [Aggregator(host="b")],
            now_ns=0,
            objective=objective,
            carried=1,
            toward=Toward.PRIMARY,
            deadlines=None,
            evaluations=1,
        )


def _puzzle(
    lot: Lot,
    world: World,
    hosts: Sequence[str],
    aggregators: Sequence[Aggregator],
    now_ns: int,
    objective: Objective,
    carried: int,
    deadlines: Sequence[int] | None,
) -> kernel.Puzzle:
    count = len(lot.updates)
    ways = np.array([[world.route(source, host) for host in hosts] for source in lot.sources], np.int64)
    flown = np.full(count, -1, np.int64)
    if lot.direct is not None:
        arrive_ns = lot.direct.end_ns[:count] + world.routes.latency_ns[ways[:, 0]]
        flown = np.where(np.array(lot.planned, np.bool_), flown, arrive_ns)
    last = np.full(count, count) if deadlines is None else np.minimum(np.array(deadlines, np.int64), count)
    return kernel.Puzzle(
        bits=np.ascontiguousarray(lot.bits, np.int64),
        ready_ns=np.maximum(lot.ready_ns, np.int64(now_ns)),
        flown=flown,
        deadlines=last.astype(np.int64),
        ways=ways,
        onward=np.array([world.route(host, hosts[0]) for host in hosts[1:]], np.int64),
        most=np.array([aggregator.most_updates or count for aggregator in aggregators], np.int64),
        carried=carried,
        now_ns=now_ns,
        last_counts=objective is Objective.LAST_COMMIT,
        binding=bool((last < count).any()),
    )


def _start(lot: Lot, given: Forwarding, hosts: Sequence[str], grouped: bool) -> Ints:
    """Read ``where`` and ``sequence`` off a plan, or send its updates directly; who ended first reserves first."""
    place = {update: i for i, update in enumerate(lot.updates)}
    where, ends = np.zeros(len(place), np.int64), np.zeros(len(place), np.int64)
    for transfer in given.transfers:
        if transfer.kind is Kind.UPDATE and not transfer.inputs:
            i = place[transfer.members[0]]
            where[i], ends[i] = hosts.index(transfer.destination) if grouped else 0, transfer.profile.end_ns
    return np.array([where, np.argsort(ends, kind="stable")])


class _Solution:
    """A plan that is laid out on the desk, made into a forwarding."""

    def __init__(
        self,
        lot: Lot,
        world: World,
        hosts: Sequence[str],
        puzzle: kernel.Puzzle,
        plan: Ints,
        desk: kernel.Desk,
        toward: Toward,
    ) -> None:
        self._lot, self._world, self._hosts, self._puzzle, self._desk = lot, world, hosts, puzzle, desk
        self._where, self._sequence, self._toward = plan[0].tolist(), plan[1], toward
        self._transfers: list[Transfer] = []
        self._sent: dict[int, int] = {}

    def found(self, lines: Lines) -> Found:
        """Lay the plan out, order its updates for commit, and make its transfers."""
        puzzle, desk, lot = self._puzzle, self._desk, self._lot
        rows = kernel.lay_out(puzzle, np.array(self._where), self._sequence, lines, self._world.routes, desk)
        order = self._order()
        rank = {i: place for place, i in enumerate(order)}
        groups = self._groups(order)
        for i in np.flatnonzero(puzzle.flown >= 0).tolist():
            self._already(i)
        first = 0
        for who, ready_ns, end_ns, end in desk.ends[:rows].tolist():
            pieces = desk.pieces[first:end].tolist()
            if who >= 0:
                self._update(who, profile_of(pieces, ready_ns, end_ns))
            else:
                members = sorted((i for i, d in enumerate(self._where) if d == -who), key=rank.__getitem__)
                self._sum(-who, members, ready_ns, profile_of(pieces, ready_ns, end_ns))
            first = end
        forwarding = Forwarding(
            shape=Shape.STORED if any(self._where) else Shape.DIRECT,
            arrive_ns=desk.arrive_ns[order],
            groups=groups,
            last=[self._sent[order[begin]] for begin, _ in groups],
            transfers=self._transfers,
            lines=desk.lines,
        )
        return Found(order, _in_order(lot, order), forwarding)

    def _order(self) -> list[int]:
        puzzle, desk = self._puzzle, self._desk
        where = np.array(self._where)
        kernel.commit_order(where, desk.arrive_ns, puzzle.deadlines, desk.by_deadline, desk.marks, desk.order)
        order: list[int] = desk.order.tolist()
        return order

    def _groups(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Where each group begins and ends in an order."""
        begins = [
            place
            for place, i in enumerate(order)
            if place == 0 or self._where[i] == 0 or self._where[i] != self._where[order[place - 1]]
        ]
        return list(zip(begins, [*begins[1:], len(order)], strict=True))

    def _already(self, i: int) -> None:
        """What was on its way before."""
        assert self._lot.direct is not None, "what is on its way has a profile"
        self._update(i, self._lot.direct.profile(i), planned=False)

    def _update(self, i: int, profile: Profile, *, planned: bool = True) -> None:
        lot, target = self._lot, self._where[i]
        route = int(self._puzzle.ways[i, target])
        bits, ready_ns = int(lot.bits[i]), int(self._puzzle.ready_ns[i])
        kind, source, members = Kind.UPDATE, lot.sources[i], (lot.updates[i],)
        self._sent[i] = self._send(kind, source, target, route, bits, ready_ns, profile, members, (), planned)

    def _sum(self, target: int, members: Sequence[int], ready_ns: int, profile: Profile) -> None:
        lot, kind = self._lot, Kind.SUM if len(members) > 1 else Kind.UPDATE
        bits = int(lot.bits[list(members)].max()) * (self._puzzle.carried if len(members) > 1 else 1)
        route, source = int(self._puzzle.onward[target - 1]), self._hosts[target]
        inputs, names = tuple(self._sent[i] for i in members), tuple(lot.updates[i] for i in members)
        index = self._send(kind, source, 0, route, bits, ready_ns, profile, names, inputs, True)
        self._sent |= dict.fromkeys(members, index)

    def _send(
        self,
        kind: Kind,
        source: str,
        target: int,
        route: int,
        bits: int,
        ready_ns: int,
        profile: Profile,
        members: tuple[UpdateId, ...],
        inputs: tuple[int, ...],
        planned: bool,
    ) -> int:
        """Add a transfer; return its index."""
        transfer = Transfer(
            kind=kind,
            toward=self._toward,
            source=source,
            destination=self._hosts[target],
            path=self._world.path(route),
            size_bytes=bits // 8,
            ready_ns=ready_ns,
            profile=profile,
            arrive_ns=profile.end_ns + int(self._world.routes.latency_ns[route]),
            members=members,
            inputs=inputs,
            planned=planned,
        )
        self._transfers.append(transfer)
        return len(self._transfers) - 1


def _in_order(lot: Lot, order: Sequence[int]) -> Lot:
    return Lot(
        updates=[lot.updates[i] for i in order],
        sources=[lot.sources[i] for i in order],
        bits=lot.bits[list(order)],
        ready_ns=lot.ready_ns[list(order)],
        fixed=0,
        direct=None,
        planned=[lot.planned[i] for i in order],
    )
