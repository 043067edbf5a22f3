"""Cut-through trees: a sum leaves while its inputs still come in, through several levels (design, section 5).

A forest is a sequence of groups, neighbours in the order of commits; each is an update by itself or is summed along a
tree of aggregators' hosts and arrives as one. When a stream may start is in ``fluid/stream_kernel.py``, how a tree is
shaped in ``fluid/stream_shape.py``, which forests are tried in ``fluid/stream_search.py``. A host passes on for one
group at most. Lots of more than MOST_UPDATES are not planned this way: their own transfers keep the destination's way
in busy for long, so that there is little to be won, and the search takes quadratic time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Network, Piece, Profile
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, Ints, Lines
from mlfabric.scheduler.planning.fluid.stream_field import FAR_NS, Field, Members, limits_of, survey_field
from mlfabric.scheduler.planning.fluid.stream_forest import run_all, send_fixed
from mlfabric.scheduler.planning.fluid.stream_search import Forest, find_forest
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.lazy import Lazy
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Effort, Objective, Shape
from mlfabric.scheduler.planning.streams import Hosts, inputs_of, profile_at

__all__ = ["MOST_UPDATES", "forward_trees", "warm"]

MOST_UPDATES = 300
_MOST_STREAMS = {Effort.FULL: (1000, 28), Effort.LEAN: (100, 3)}  # and per update; so a call takes milliseconds
_SHARES = np.array([9, 12, 32, 4096], np.int64)


def forward_trees(
    lot: Lot,
    world: World,
    lines: Lines,
    destination: str,
    aggregators: Sequence[Aggregator],
    *,
    now_ns: int,
    objective: Objective,
    carried: int,
    chunk_bytes: int,
    toward: Toward,
    group_ns: int = 0,
    effort: Effort = Effort.FULL,
) -> Forwarding | None:
    """Find the best forest of cut-through trees for a lot.

    Args:
        lot: its first ``fixed`` updates go directly.
        world: has the routes from all sources and aggregators to all aggregators and the destination.
        lines: what is free before the lot's own transfers; not changed.
        carried: how many tensors a sum of several updates is.
        chunk_bytes: what is received of every input before it is sent on.
        group_ns: what each group costs beside the commit times of its updates.
        effort: how many streams may be planned in the search.

    Returns:
        The best forest found, or None: fewer than two updates may be summed, or more than MOST_UPDATES, nobody may
        sum, or no forest arrives within days.
    """
    count = len(lot.updates)
    hosts = Hosts(lot.sources[lot.fixed :], aggregators, destination)
    if not 2 <= count - lot.fixed <= MOST_UPDATES or not hosts.may_sum.any():
        return None
    fixed = _send_fixed(lot, world, lines, destination, now_ns)
    if fixed.end_ns.size and fixed.end_ns.max() >= HORIZON_NS:
        return None
    unit_bits = max(1, int(lot.bits[lot.fixed :].max()))
    scalars = np.array([now_ns, unit_bits, 8 * chunk_bytes, carried, 0, group_ns], np.int64)
    field = survey_field(fixed.lines, world.routes, hosts.routes(world), hosts.most, hosts.may_sum, scalars, False)
    choices = _choices(field, count - lot.fixed)
    if not len(choices):
        return None
    members = _members(lot, hosts, destination)
    mean, (most, each) = objective is Objective.MEAN_COMMIT, _MOST_STREAMS[effort]
    commits = np.maximum.accumulate(np.maximum(fixed.arrive_ns, now_ns)) - now_ns
    before = 0 if not commits.size else int(commits.sum() if mean else commits[-1])
    forest, progress = find_forest(
        field, members, world.routes, fixed.lines, lot.fixed,
        int(fixed.end_ns.max(initial=now_ns)), int(fixed.arrive_ns.max(initial=now_ns)), before, mean,
        *_cases(count - lot.fixed), choices, most + each * count,
    )  # fmt: skip
    if progress[0] >= FAR_NS * count:
        return None
    rows, free = run_all(fixed.lines, world.routes, forest.streams, int(forest.counts[0]), 8 * chunk_bytes)
    found = _Found(lot, world, hosts, fixed, forest, rows, toward)
    return found.forwarding(free) if found.is_sound(aggregators) else None


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The first updates of a lot, which go directly."""

    end_ns: Ints
    arrive_ns: Ints
    rows: NDArray[np.int64]
    first: Ints
    lines: Lines


def _send_fixed(lot: Lot, world: World, lines: Lines, destination: str, now_ns: int) -> _Fixed:
    route = np.array([world.route(source, destination) for source in lot.sources[: lot.fixed]], np.int64)
    reserved = 1 - np.array(lot.planned[: lot.fixed], np.int64)
    ready_ns = np.maximum(lot.ready_ns[: lot.fixed], now_ns)
    given = np.zeros((0, 4), np.int64)
    if lot.direct is not None:
        ready_ns = lot.direct.end_ns[: lot.fixed]
        lengths = np.diff(lot.direct.first[: lot.fixed + 1])
        owner = np.repeat(np.arange(lot.fixed), lengths)
        given = np.column_stack([owner, lot.direct.pieces[: len(owner)]]).astype(np.int64)
    bits, ready_ns = np.ascontiguousarray(lot.bits[: lot.fixed]), np.ascontiguousarray(ready_ns)
    end_ns, rows, first, free = send_fixed(lines, world.routes, route, bits, ready_ns, reserved, given)
    return _Fixed(end_ns, end_ns + world.routes.latency_ns[route], rows, first, free)


def _members(lot: Lot, hosts: Hosts, destination: str) -> Members:
    """All updates of the lot; the fixed ones are there only so that places count from the lot's beginning."""
    apart = np.zeros(lot.fixed, np.int64)
    directly = np.array([source == destination for source in lot.sources], np.int64)
    bits, ready_ns = np.ascontiguousarray(lot.bits), np.ascontiguousarray(lot.ready_ns)
    return Members(np.concatenate([apart, hosts.of_sources]), bits, ready_ns, directly)


def _cases(count: int) -> tuple[NDArray[np.int64], int]:
    """How many go directly, and how large the first group is: a coarse choice, then more; and how many are coarse."""
    some = [(0, count), *((0, n) for n in (1, 2, 4, 8, 16, 32, 64) if n < count)]
    some += [(n, 0) for n in (4, 8, 16, 32, 64) if n < count]
    steps = [n for n in (2, 3, 5, 6, 10, 12, 20, 24, 28, 40, 48, 56, 80, 96, 128, 192, 256) if n < count]
    more = [(0, n) for n in steps if n > 2] + [(n, 0) for n in steps]
    return np.array(some + more, np.int64), len(some)


def _choices(field: Field, count: int) -> NDArray[np.int64]:
    """How slow a host may be to pass on; and all aggregators for one tree, or, if they are few, one for each."""
    able = int((field.rank_ns < FAR_NS).sum())
    each = (able, 1) if able < count else (able,)
    return np.array([(limit, most) for limit in limits_of(field, _SHARES) for most in each], np.int64).reshape(-1, 2)


class _Found:
    """The best forest, from which transfers are made when they are looked at."""

    def __init__(
        self, lot: Lot, world: World, hosts: Hosts, fixed: _Fixed, forest: Forest, rows: Any, toward: Toward
    ) -> None:
        self._lot, self._world, self._hosts, self._fixed, self._forest = lot, world, hosts, fixed, forest
        self._rows, self._toward = rows, toward
        self._count = int(forest.counts[0])
        self._members: list[list[int]] = []
        self._inputs: list[tuple[int, ...]] = []
        self._columns: list[tuple[int, ...]] = []
        self._pieces: list[Piece] = []

    def is_sound(self, aggregators: Sequence[Aggregator]) -> bool:
        """Say whether every sum is of something, every aggregator serves one group and takes what it has room for.

        The search counts what an aggregator receives; what its own host adds can, rarely, be too much.
        """
        self._trace()
        room = {aggregator.host: aggregator.most_updates for aggregator in aggregators}
        ends = self._forest.ends[: int(self._forest.counts[1])]
        serves: dict[str, int] = {}
        for k, members in enumerate(self._members):
            if len(members) == 1:
                continue
            host = self._source(k)
            group = int(np.searchsorted(ends, members[0], side="right")) if members else -1
            if not members or serves.setdefault(host, group) != group or 0 < room.get(host, 0) < len(members):
                return False
        return True

    def forwarding(self, free: Lines) -> Forwarding:
        """Return all of it."""
        lot, forest, groups = self._lot, self._forest, int(self._forest.counts[1])
        ends = [*range(1, lot.fixed + 1), *forest.ends[:groups].tolist()]
        last = forest.last[:groups]
        arrive_ns = forest.streams.end_ns[last] + self._world.routes.latency_ns[forest.streams.route[last]]
        arrivals = np.concatenate([self._fixed.arrive_ns, arrive_ns])
        begins = [0, *ends[:-1]]
        return Forwarding(
            shape=Shape.TREE if groups < len(lot.updates) - lot.fixed else Shape.DIRECT,
            arrive_ns=np.repeat(arrivals, np.diff([0, *ends])),
            groups=list(zip(begins, ends, strict=True)),
            last=[*range(lot.fixed), *(last + lot.fixed).tolist()],
            transfers=Lazy(lot.fixed + self._count, self._transfer),
            lines=free,
        )

    def _transfer(self, i: int) -> Transfer:
        return self._fixed_one(i) if i < self._lot.fixed else self._stream(i - self._lot.fixed)

    def _fixed_one(self, i: int) -> Transfer:
        lot, fixed, end_ns = self._lot, self._fixed, int(self._fixed.end_ns[i])
        return Transfer(
            kind=Kind.UPDATE,
            toward=self._toward,
            source=lot.sources[i],
            destination=self._hosts.names[-1],
            path=self._world.path(self._world.route(lot.sources[i], self._hosts.names[-1])),
            size_bytes=int(lot.bits[i]) // 8,
            ready_ns=int(lot.ready_ns[i]),
            profile=profile_at(fixed.rows, fixed.first, i, end_ns),
            arrive_ns=int(fixed.arrive_ns[i]),
            members=(lot.updates[i],),
            planned=bool(lot.planned[i]),
        )

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
            toward=self._toward,
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
        """Take the columns of all streams out of their arrays once."""
        streams, count = self._forest.streams, self._count
        route, end_ns, first = streams.route[:count], streams.end_ns[:count], streams.first[: count + 1]
        arrive_ns = end_ns + self._world.routes.latency_ns[route]
        found = (route, streams.bits[:count], streams.start_ns[:count], end_ns, arrive_ns, first[:-1], first[1:])
        self._columns = list(zip(*(column.tolist() for column in found), strict=True))
        self._pieces = list(map(Piece._make, self._rows.tolist()))

    def _source(self, k: int) -> str:
        return self._world.ends(int(self._forest.streams.route[k]))[0]

    def _trace(self) -> None:
        """Find out once which streams feed which, and who is in them."""
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
    updates = [UpdateId(host, 0, 0) for host in "ab"]
    bits, ready_ns = np.full(2, 8000, np.int64), np.zeros(2, np.int64)
    lot = Lot(updates, ["a", "b"], bits, ready_ns, 0, None, [True, True])
    forward_trees(
        lot, world, world.lines, "s", [Aggregator(host="a"), Aggregator(host="b")],
        now_ns=0, objective=Objective.LAST_COMMIT, carried=1, chunk_bytes=100, toward=Toward.PRIMARY,
    )  # fmt: skip
