"""Cut-through trees: a sum leaves while its inputs still arrive, over several levels (design, section 5).

A forest is a sequence of groups, neighbours in the order of commits; each is an update by itself or is summed along a
tree of aggregators' hosts and arrives as one. When a stream may start is in ``fluid/stream_kernel.py``, how a tree is
shaped in ``fluid/stream_shape.py``, which forests are tried in ``fluid/stream_search.py``. A host relays for at most
one group. The search takes quadratic time, so a lot of more than MOST_UPDATES is cut into pieces of nearly equal size,
which are planned one after the other; each has its own aggregators.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Network, Piece, Profile
from mlfabric.planning.direct import Sent, forward_directly, send
from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Lines
from mlfabric.planning.fluid.stream_field import FAR_NS, Field, Members, limits_of, survey_field
from mlfabric.planning.fluid.stream_forest import reserve_given, run_all
from mlfabric.planning.fluid.stream_search import Forest, find_forest, is_sound
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import Kind, Toward, Transfer
from mlfabric.planning.problem import (
    Aggregator,
    FabricState,
    Objective,
    PlannerConfig,
    Shape,
    objective_of,
)
from mlfabric.planning.profiles import Lot
from mlfabric.planning.tree_streams import Hosts, inputs_of
from mlfabric.planning.way_of_sums import Forwarding
from mlfabric.protocol import UpdateId

__all__ = ["MOST_UPDATES", "forward_trees", "warm"]

MOST_UPDATES, LEAST_AGGREGATORS = 150, 4
_MOST_STREAMS, _STREAMS_EACH = 150, 2  # of one search, and for each update; so a call takes milliseconds
_MOST_CASES = 1024
_SHARES = np.array([9, 12, 32, 4096], np.int64)


def forward_trees(lot: Lot, world: World, state: FabricState, config: PlannerConfig) -> Forwarding | None:
    """Find a good forest of cut-through trees that brings a lot to the server.

    Args:
        lot: its first ``fixed`` updates go directly.
        world: has the routes from all sources and aggregators to all aggregators and the server; all that is free on
            its lines is free for the lot.

    Returns:
        The best forest found, or None if fewer than two updates may be summed, no host may sum, or no forest arrives
        within days.
    """
    found: list[Forwarding] = []
    lines, now_ns, reached_ns = world.lines, state.now_ns, state.now_ns
    for part, helpers in _parts(lot, [a for a in state.aggregators if a.host != state.server], world):
        forest = _forest(part, world, lines, helpers, state, config, reached_ns)
        if forest is None and len(part.updates) < len(lot.updates):
            forest = forward_directly(part, world, lines, state.server, now_ns=now_ns, toward=Toward.PRIMARY)
        if forest is None or len(forest.arrive_ns) < len(part.updates):
            return None
        found.append(forest)
        if len(part.updates) < len(lot.updates):
            lines, reached_ns = forest.lines(), max(reached_ns, int(forest.arrive_ns.max()))
    return found[0] if len(found) == 1 else _joined(found)


def _parts(lot: Lot, aggregators: Sequence[Aggregator], world: World) -> Iterator[tuple[Lot, list[Aggregator]]]:
    """Cut a lot into pieces, each with an equal share of the aggregators, on its own hosts if possible."""
    moving = len(lot.updates) - lot.fixed
    count = max(1, min(-(-moving // MOST_UPDATES), len(aggregators) // LEAST_AGGREGATORS))
    bounds = [0, *(lot.fixed + moving * n // count for n in range(1, count + 1))]
    own: dict[int, int] = {}
    for n, (begin, end) in enumerate(pairwise(bounds)):
        own = dict.fromkeys(lot.source[begin:end].tolist(), n) | own
    shares: list[list[Aggregator]] = [[] for _ in range(count)]
    others: list[Aggregator] = []
    for aggregator, host in zip(aggregators, world.numbers([a.host for a in aggregators]), strict=True):
        share = shares[own.get(host, 0)]
        fits = host in own and len(share) < -(-len(aggregators) // count)
        (share if fits else others).append(aggregator)
    for aggregator in others:
        min(shares, key=len).append(aggregator)
    for (begin, end), helpers in zip(pairwise(bounds), shares, strict=True):
        yield lot if count == 1 else lot.part(begin, end), helpers


def _joined(found: Sequence[Forwarding]) -> Forwarding:
    """Join the forwardings of the pieces of a lot."""
    places = [0, *accumulate(len(one.arrive_ns) for one in found)]
    numbers = [0, *accumulate(len(one.transfers) for one in found)]

    def transfer(i: int) -> Transfer:
        n = bisect_right(numbers, i) - 1
        made = found[n].transfers[i - numbers[n]]
        return replace(made, inputs=tuple([numbers[n] + k for k in made.inputs])) if made.inputs else made

    return Forwarding(
        shape=Shape.TREE if any(one.shape is Shape.TREE for one in found) else Shape.DIRECT,
        arrive_ns=np.concatenate([one.arrive_ns for one in found]),
        until=[0, *(at + end for at, one in zip(places[:-1], found, strict=True) for end in one.until[1:])],
        last=[at + i for at, one in zip(numbers[:-1], found, strict=True) for i in one.last],
        transfers=Lazy(numbers[-1], transfer),
        lines=found[-1].lines,
    )


def _forest(
    lot: Lot,
    world: World,
    lines: Lines,
    aggregators: Sequence[Aggregator],
    state: FabricState,
    config: PlannerConfig,
    reached_ns: int,
) -> Forwarding | None:
    """Find the best forest for a lot that is small enough; ``reached_ns`` is when all before it are committed."""
    count, server, now_ns, chunk_bits = len(lot.updates), state.server, state.now_ns, 8 * config.chunk_bytes
    if count - lot.fixed < 2 or not aggregators:
        return None
    hosts = Hosts.of(lot.source[lot.fixed :], aggregators, world, server)
    fixed = send(lot, lot.fixed, world, lines, server, now_ns=now_ns, toward=Toward.PRIMARY)
    last_ns = int(fixed.profiles.end_ns.max(initial=reached_ns))
    if last_ns >= HORIZON_NS:
        return None
    base = fixed.lines()
    mean, carried = objective_of(config) is Objective.MEAN_COMMIT, 2 if config.gamma > 0 else 1
    unit_bits = max(1, int(lot.bits[lot.fixed :].max()))
    group_ns = config.group_ns if mean else 0
    scalars = np.array([now_ns, unit_bits, chunk_bits, carried, 0, group_ns], np.int64)
    field = survey_field(base, world.routes, hosts.routes, hosts.most, scalars)
    choices = _choices(field, count - lot.fixed)
    if not len(choices):
        return None
    members = _members(lot, hosts, world, server)
    commits = np.maximum.accumulate(np.maximum(fixed.arrive_ns, reached_ns)) - now_ns
    before = 0 if not commits.size else int(commits.sum() if mean else commits[-1])
    forest, progress = find_forest(
        field, members, world.routes, base, lot.fixed,
        last_ns, int(fixed.arrive_ns.max(initial=reached_ns)), before, mean,
        _cases(_share(field, count - lot.fixed), count - lot.fixed), 2, choices, _MOST_STREAMS + _STREAMS_EACH * count,
    )  # fmt: skip
    if progress[0] >= FAR_NS * count:
        return None
    room = np.zeros(world.sources, np.int64)
    room[hosts.aggregators] = hosts.most[: len(aggregators)]
    if not is_sound(forest, lot.fixed, world.destinations, room):
        return None
    rows, free = run_all(base, world.routes, forest.streams, int(forest.counts[0]), chunk_bits)
    return _Found(lot, world, fixed, forest, rows).forwarding(free)


def _members(lot: Lot, hosts: Hosts, world: World, destination: str) -> Members:
    """All updates of the lot; the fixed ones are there only so that places count from the lot's beginning."""
    host = np.concatenate((np.zeros(lot.fixed, np.int64), hosts.of_sources))
    directly = world.routes.hops[world.routes_from(lot.source, destination)] == 0
    return Members(host, lot.bits, lot.ready_ns, directly.astype(np.int64))


@lru_cache(_MOST_CASES)
def _cases(direct: int, count: int) -> NDArray[np.int64]:
    """How many go directly, and how large the first group is: a coarse choice, then more; two are coarse.

    First come all in one group, and the division that fills the links into the destination and into all aggregators for
    equally long, with so many directly.
    """
    some = [(0, count), *([(direct, count - direct), (direct, 0)] if 0 < direct < count else [])]
    some += [(0, n) for n in (1, 2, 4, 8, 16, 32, 64) if n < count]
    some += [(n, 0) for n in (4, 8, 16, 32, 64) if n < count]
    steps = [n for n in (2, 3, 5, 6, 10, 12, 20, 24, 28, 40, 48, 56, 80, 96, 128, 192, 256) if n < count]
    more = [(0, n) for n in steps if n > 2] + [(n, 0) for n in steps]
    return np.array(some + more, np.int64)


def _share(field: Field, count: int) -> int:
    """How many of some updates fill the link into the destination for as long as the others the aggregators' links."""
    able = np.append(field.rank_ns[: len(field.into_ns) - 1] < FAR_NS, True)
    rates = 1 / np.maximum(field.into_ns[able], 1)
    return round(count * float(rates[-1] / rates.sum()))


def _choices(field: Field, count: int) -> NDArray[np.int64]:
    """How slow a relaying host may be; and all aggregators for one tree, or, if they are few, one for each.

    The first limit is the one with the earliest estimated end: all updates are spread over the downlinks of the hosts
    within it, and then the slowest of them forwards.
    """
    ranks, into_ns = field.rank_ns[: len(field.into_ns) - 1], field.into_ns[:-1]
    able = int((ranks < FAR_NS).sum())
    each = (able, 1) if able < count else (able,)

    def promised_ns(limit_ns: int) -> float:
        within = ranks <= limit_ns
        return count / float((1 / np.maximum(into_ns[within], 1)).sum()) + float(ranks[within].max())

    fastest = limits_of(field, _SHARES).tolist()
    promising = sorted(fastest, key=promised_ns) if len(fastest) > 1 else fastest
    limits = dict.fromkeys(chain.from_iterable(zip(promising, fastest, strict=True)))
    return np.array([(limit, most) for limit in limits for most in each], np.int64).reshape(-1, 2)


class _Found:
    """The best forest; its transfers are made when they are read."""

    def __init__(self, lot: Lot, world: World, fixed: Sent, forest: Forest, rows: Any) -> None:
        self._lot, self._world, self._fixed, self._forest = lot, world, fixed, forest
        self._rows, self._count = rows, int(forest.counts[0])
        self._members: list[list[int]] = []
        self._inputs: list[tuple[int, ...]] = []
        self._columns: list[tuple[int, ...]] = []
        self._pieces: list[Piece] = []

    def forwarding(self, free: Lines) -> Forwarding:
        """Return all of it."""
        lot, forest, groups = self._lot, self._forest, int(self._forest.counts[1])
        until = [*range(lot.fixed + 1), *forest.ends[:groups].tolist()]
        last = forest.last[:groups]
        arrive_ns = forest.streams.end_ns[last] + self._world.routes.latency_ns[forest.streams.route[last]]
        arrivals = np.concatenate([self._fixed.arrive_ns, arrive_ns])
        return Forwarding(
            shape=Shape.TREE if groups < len(lot.updates) - lot.fixed else Shape.DIRECT,
            arrive_ns=np.repeat(arrivals, np.diff(until)),
            until=until,
            last=[*range(lot.fixed), *(last + lot.fixed).tolist()],
            transfers=Lazy(lot.fixed + self._count, self._transfer),
            lines=lambda: free,
        )

    def _transfer(self, i: int) -> Transfer:
        return self._fixed.transfer(i) if i < self._lot.fixed else self._stream(i - self._lot.fixed)

    def _stream(self, k: int) -> Transfer:
        self._trace()
        if not self._columns:
            self._list()
        route, bits, ready_ns, end_ns, arrive_ns, first, after = self._columns[k]
        inputs, pieces = self._inputs[k], tuple(self._pieces[first:after])
        source, destination = self._world.ends(route)
        members = tuple([self._lot.updates[m] for m in self._members[k]])
        return Transfer(
            kind=Kind.UPDATE if len(members) == 1 else Kind.SUM,
            toward=Toward.PRIMARY,
            source=source,
            destination=destination,
            path=self._world.path(route),
            size_bytes=bits // 8,
            ready_ns=ready_ns,
            profile=Profile(pieces[0].start_ns if pieces else end_ns, end_ns, pieces),
            arrive_ns=arrive_ns,
            members=members,
            inputs=tuple([self._lot.fixed + j for j in inputs]) if inputs else (),
            cut_through=bool(inputs),
        )

    def _list(self) -> None:
        """Read the columns of all streams from their arrays once."""
        streams, count = self._forest.streams, self._count
        route, end_ns, first = streams.route[:count], streams.end_ns[:count], streams.first[: count + 1]
        arrive_ns = end_ns + self._world.routes.latency_ns[route]
        found = (route, streams.bits[:count], streams.start_ns[:count], end_ns, arrive_ns, first[:-1], first[1:])
        self._columns = list(zip(*(column.tolist() for column in found), strict=True))
        self._pieces = list(map(Piece._make, self._rows.tolist()))

    def _trace(self) -> None:
        """Find once which streams are inputs of which, and their members."""
        if self._members:
            return
        streams, count = self._forest.streams, self._count
        self._inputs = inputs_of(streams.leaves[:count].tolist(), streams.reaches[:count].tolist())
        own: list[list[int]] = [[] for _ in range(count)]
        for m in range(self._lot.fixed, len(self._lot.updates)):
            own[self._forest.own[m]].append(m)
        for k in range(count):
            own[k] = sorted([*own[k], *(m for j in self._inputs[k] for m in own[j])])
        self._members = own


def warm() -> None:
    """Run the kernels once on a tiny case, so that nobody waits for a compiler later."""
    network = Network.star(10**9)
    for host in "abs":
        network.add_host(host)
    world = World(network, ["a", "b"], ["s", "a", "b"])
    updates, zeros = [UpdateId(host, 0, 0) for host in "ab"], np.zeros(2, np.int64)
    lot = Lot(updates, np.arange(2), np.full(2, 8000, np.int64), zeros, 0, zeros, None)
    reserve_given(world.lines, world.routes, zeros, zeros, np.zeros((0, 3), np.int64), np.zeros(3, np.int64))
    state = FabricState(now_ns=0, server="s", aggregators=(Aggregator(host="a"), Aggregator(host="b")))
    forward_trees(lot, world, state, PlannerConfig(objective=Objective.LAST_COMMIT, chunk_bytes=100))
