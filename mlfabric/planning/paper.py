"""The paper's own algorithms, as a baseline: plain Python, slow, easy to compare with the text. Pure.

- ``order_updates``: algorithms 1 and 2, and with several servers the rule of section 10.2;
- ``aggregate``: algorithm 3; ``distribute``: section 10.3, which is algorithm 3 mirrored;
- ``replicate``: section 5.3.

Where the paper's text has gaps: a deadline has the + 1 that the paper lacks; several updates due at one position are
ordered by (t_en, worker, id), and an update that is not placed by its last position is dropped; updates in flight are
not dropped for being slow. In algorithm 3 the last group's transfer counts, and updates that come when all aggregators
are closed go directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlfabric.errors import UsageError
from mlfabric.model.divergence import Lead, Limit
from mlfabric.network import Draft, Network, Path, Profile
from mlfabric.planning.plan_values import Candidate, GetCandidate
from mlfabric.planning.problem import Aggregator
from mlfabric.protocol import DropReason, GetId, UpdateId

__all__ = ["Choice", "Leg", "Replicated", "aggregate", "distribute", "order_updates", "replicate"]


class Choice(NamedTuple):
    """An update, when it ends, the profiles of its shards by server, and what is free when they are reserved."""

    end_ns: int
    update: Candidate
    profiles: tuple[Profile, ...]
    after: Draft


def whole(update: Candidate) -> tuple[int, ...]:
    """The size of an update to one server, as its only shard."""
    return (update.size_bytes,)


def order_updates(
    updates: Sequence[Candidate],
    network: Network,
    servers: Sequence[str],
    *,
    v_init: int,
    tau_max: int | None,
    now_ns: int,
    part_bytes: Callable[[Candidate], Sequence[int]] = whole,
) -> tuple[list[Choice], dict[UpdateId, DropReason]]:
    """Return the updates that are sent, by position from 1, and why others are not (algorithms 1, 2; section 10.2).

    In iteration i the update due at i is picked, else the shortest transfer. A pick by deadline is dropped if the next
    pick would end before it. All shards of an update are reserved together, and its ``t_en`` is that of its last shard.

    Args:
        servers: hosts, one for each shard.
        tau_max: None for no deadlines (algorithm 1).
    """
    beyond = len(updates) + 1
    due = {u.update: beyond if tau_max is None else u.computed_from + tau_max - v_init + 1 for u in updates}
    waiting, placed, free = sorted(updates, key=lambda u: (due[u.update], u.update)), list[Choice](), network.draft()
    left = {u.update: DropReason.DEADLINE_PAST for u in updates if due[u.update] < 1}

    def first(position: int, over: Draft) -> Choice | None:
        for pool in ([u for u in waiting if due[u.update] == position], waiting):
            sent = [_together(u, part_bytes(u), network, servers, now_ns, over.fork()) for u in pool]
            if reachable := [choice for choice in sent if choice]:
                return min(reachable, key=lambda choice: choice.end_ns)
        return None

    for position in range(1, len(waiting) + 1):
        late = [u.update for u in waiting if due[u.update] <= len(placed)]
        left = dict.fromkeys(late, DropReason.DEADLINE_CONFLICT) | left
        waiting = [u for u in waiting if u.update not in left]
        chosen = first(position, free)
        if chosen is None:
            break
        waiting.remove(chosen.update)
        may_be_dropped = due[chosen.update.update] == position and chosen.update.in_flight is None
        following = first(position + 1, chosen.after) if may_be_dropped else None
        if following is None or chosen.end_ns <= following.end_ns:
            placed.append(chosen)
            free = chosen.after
        else:
            left[chosen.update.update] = DropReason.NEXT_IS_FASTER
    return placed, dict.fromkeys((u.update for u in waiting), DropReason.NO_CAPACITY) | left


def _together(
    update: Candidate, sizes: Sequence[int], network: Network, servers: Sequence[str], now_ns: int, free: Draft
) -> Choice | None:
    """Reserve all shards of an update, in order of their ends; None if one cannot be sent before the horizon."""
    if update.in_flight is not None:
        return Choice(update.in_flight.end_ns, update, (update.in_flight,), free)
    ready_ns = max(update.ready_ns, now_ns)
    both = zip(servers, sizes, strict=True)
    parts = {j: (network.path(update.source, to), size, ready_ns) for j, (to, size) in enumerate(both)}
    found = dict[int, Profile]()
    while parts:
        planned = [(p.end_ns, j, p) for j, part in parts.items() if (p := free.transfer(*part))]
        if not planned:
            return None
        _, j, found[j] = min(planned)
        free.reserve(parts.pop(j)[0], found[j])
    return Choice(max(p.end_ns for p in found.values()), update, tuple(p for _, p in sorted(found.items())), free)


class Leg(NamedTuple):
    """A transfer of some updates; a sum forwards what its ``inputs`` (indices of legs) have brought."""

    source: str
    destination: str
    size_bytes: int
    ready_ns: int
    profile: Profile
    members: tuple[UpdateId, ...]
    inputs: tuple[int, ...] = ()


def aggregate(
    order: Sequence[Candidate],
    network: Network,
    server: str,
    aggregators: Sequence[Aggregator],
    *,
    now_ns: int,
    carried: int = 1,
    is_mirrored: bool = False,
    before: Sequence[Leg] = (),
) -> list[Leg]:
    """Forward ordered updates by the best of all |U| + 1 cases: the one whose last transfer ends first (algorithm 3).

    Args:
        order: can all be sent directly, in this order.
        carried: how many tensors a sum of several is.
        is_mirrored: each transfer goes in the other direction, from its destination to its source.
        before: transfers that are reserved already.

    Raises:
        UsageError: no case is possible.
    """
    free = network.draft()
    for leg in before:
        free.reserve(network.path(leg.source, leg.destination), leg.profile)
    fixed = max((n for n, update in enumerate(order, start=1) if update.in_flight), default=0)
    cases, stuck = list[_Case](), set[str]()
    for direct in range(fixed, len(order) + 1):
        case = _Case(network, free.fork(), server, list(aggregators), now_ns, carried, is_mirrored)
        try:
            case.run(order, direct)
        except _StuckError as error:
            stuck.add(str(error))
        else:
            cases.append(case)
    if not cases:
        raise UsageError(f"nothing passes from {', '.join(sorted(stuck))}; algorithm 3 needs a way for every update")
    return min(cases, key=lambda case: case.busy_ns).legs


class _StuckError(Exception):
    """A transfer of a case never ends."""


class _Case:
    """One case: the first updates go directly, then aggregator after aggregator is filled.

    ``busy_ns`` is until when the server receives what is planned so far.
    """

    def __init__(
        self,
        network: Network,
        free: Draft,
        server: str,
        aggregators: list[Aggregator],
        now_ns: int,
        carried: int,
        is_mirrored: bool,
    ) -> None:
        self.network, self.free, self.server, self.aggregators = network, free, server, aggregators
        self.now_ns, self.carried, self.is_mirrored = now_ns, carried, is_mirrored
        self.busy_ns, self.legs, self.group = now_ns, list[Leg](), list[int]()

    def run(self, order: Sequence[Candidate], direct: int) -> None:
        """Send the first ``direct`` updates directly, and the others as the aggregators have room in time."""
        for n, update in enumerate(order):
            ready_ns = max(update.ready_ns, self.now_ns)
            while n >= direct and self.aggregators and not self._is_in_time(update, ready_ns):
                self._close()
            members = (update.update,)
            if update.in_flight is not None:
                to_server = (update.source, self.server, update.size_bytes, ready_ns)
                self.legs.append(Leg(*to_server, update.in_flight, members))
                self.busy_ns = max(self.busy_ns, update.in_flight.end_ns)
            elif n >= direct and self.aggregators:
                self._send(update.source, self.aggregators[0].host, update.size_bytes, ready_ns, members)
                self.group.append(len(self.legs) - 1)
            else:
                end_ns = self._send(update.source, self.server, update.size_bytes, ready_ns, members)
                self.busy_ns = max(self.busy_ns, end_ns)
        if self.group:
            self._close()

    def _path(self, source: str, to: str) -> Path:
        return self.network.path(*((to, source) if self.is_mirrored else (source, to)))

    def _is_in_time(self, update: Candidate, ready_ns: int) -> bool:
        """Whether an update reaches the aggregator before the server becomes idle."""
        by, most = self.aggregators[0].host, self.aggregators[0].most_updates or len(self.legs) + 1
        there = self.free.transfer(self._path(update.source, by), update.size_bytes, ready_ns)
        return len(self.group) < most and there is not None and there.end_ns <= self.busy_ns

    def _close(self) -> None:
        """Send the sum of a group that is not empty, and continue with the next aggregator."""
        by = self.aggregators.pop(0).host
        if self.group:
            inputs = [self.legs[i] for i in self.group]
            ready_ns = max(leg.profile.end_ns + self.network.latency_ns(self._path(leg.source, by)) for leg in inputs)
            members = tuple(update for leg in inputs for update in leg.members)
            size_bytes = max(leg.size_bytes for leg in inputs) * (self.carried if len(inputs) > 1 else 1)
            self.busy_ns = self._send(by, self.server, size_bytes, ready_ns, members, *self.group)
            self.group = []

    def _send(
        self, source: str, to: str, size_bytes: int, ready_ns: int, members: tuple[UpdateId, ...], *inputs: int
    ) -> int:
        """Reserve a transfer; return when it ends."""
        path = self._path(source, to)
        profile = self.free.transfer(path, size_bytes, ready_ns)
        if profile is None:
            raise _StuckError(f"{source} to {to}")
        self.free.reserve(path, profile)
        self.legs.append(Leg(source, to, size_bytes, ready_ns, profile, members, inputs))
        return profile.end_ns


def distribute(
    gets: Sequence[GetCandidate], network: Network, server: str, distributors: Sequence[Aggregator], *, now_ns: int
) -> list[tuple[str, list[GetId]]]:
    """Return which gets the server and each distributor answer, in the order in which the server sends (10.3).

    Groups are those of algorithm 3 with the times from the server to a distributor and from there to workers. The model
    goes to the last group's distributor first, and so backwards; the first group is answered by the server, last.
    """
    order = sorted(gets, key=lambda get: (get.ready_ns, get.get))
    mirrored = [
        Candidate(
            update=UpdateId(*get.get),
            source=get.destination,
            size_bytes=get.size_bytes,
            ready_ns=get.ready_ns,
            computed_from=0,
        )
        for get in order
    ]
    legs = aggregate(mirrored, network, server, distributors, now_ns=now_ns, is_mirrored=True)
    groups = dict[str, list[GetId]]()
    for leg in legs:
        if not leg.inputs:
            groups.setdefault(leg.destination, []).append(GetId(*leg.members[0]))
    return list(groups.items())[::-1]


class Replicated(NamedTuple):
    """What the replica gets with this batch.

    ``frozen``: how many updates of the order; the others are punted to the next batch. ``last_from_ns``: when the last
    update to the server may start; 0 if it is not delayed.
    """

    legs: list[Leg]
    frozen: int
    last_from_ns: int


def replicate(
    order: Sequence[Candidate],
    to_server: Sequence[Leg],
    network: Network,
    replica: str,
    aggregators: Sequence[Aggregator],
    *,
    limit: Limit,
    lead: Lead,
    now_ns: int,
) -> Replicated:
    """Return the prefix of the order that the replica gets while the batch comes to the server (5.3).

    Args:
        to_server: the tentative schedule of the server.
        lead: of the commits of the order.
    """
    legs = aggregate(order, network, replica, aggregators, now_ns=now_ns, before=to_server)
    last_ns = max(leg.profile.end_ns for leg in to_server)
    frozen, kept, at_ns = 0, 0, now_ns
    for i, leg in enumerate(legs):
        if leg.destination == replica:
            at_ns = max(at_ns, leg.profile.end_ns)
            if at_ns > last_ns and limit.allows(lead, frozen, len(order)):
                break
            kept, frozen = i + 1, frozen + len(leg.members)
            if at_ns > last_ns and limit.allows(lead, frozen, len(order)):
                return Replicated(legs[:kept], frozen, at_ns)
    return Replicated(legs[:kept], frozen, 0)
