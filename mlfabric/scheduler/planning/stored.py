"""Aggregation that stores a group, then forwards its sum (paper, section 5.2, algorithm 3, mended).

An order of updates and k aggregators, none of which is used twice. Case n: the first n updates go directly, as the
ordering planned it (or each in turn); then aggregator after aggregator takes the next updates as long as they reach it
before the destination's ingress runs dry, and the last one takes the rest. The paper's text leaves holes; here

- an empty group is skipped, the last group's transfer counts, and the best case is the one with the least sum of commit
  times (or last commit); of equal ones, the one in which most go directly;
- an aggregator is closed when an update cannot reach it in time, or at all, or when it has as many as it may take. What
  comes when all are closed goes directly, in turn;
- without aggregators everything goes directly;
- if no case is possible (an update cannot leave its host, and the ordering did not say how it would), the longest
  prefix of the lot is forwarded with which one is: ``len(forwarding.arrive_ns)`` updates, perhaps none. The first one
  left out is the one that is stuck; those after it may not be committed before it.

The shape is STORED if some group goes through an aggregator. The kernel is in ``fluid/stored_kernel.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mlfabric.network import Network
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid import stored_kernel as kernel
from mlfabric.scheduler.planning.fluid.lines import Ints, Lines
from mlfabric.scheduler.planning.fluid.stored_groups import groups_of
from mlfabric.scheduler.planning.fluid.stored_load import Load
from mlfabric.scheduler.planning.fluid.world import World, profile_of
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.lazy import Lazy
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from mlfabric.scheduler.planning.profiles import Profiles

__all__ = ["StoredTransfers", "forward_stored", "warm"]


def forward_stored(
    lot: Lot,
    world: World,
    lines: Lines,
    destination: str,
    aggregators: Sequence[Aggregator],
    *,
    now_ns: int,
    objective: Objective,
    carried: int,
    toward: Toward,
) -> Forwarding:
    """Forward a lot by the best case of algorithm 3; ``lines`` are not changed.

    Args:
        world: knows the routes from all sources and aggregators to all aggregators and the destination.
        lines: what is free before the lot's own transfers, except those on their way.
        destination: a host.
        aggregators: different hosts, the first group's first.
        carried: how many tensors the sum of several updates has.
        toward: where the destination belongs.

    Returns:
        The best case; of a prefix of the lot if that is all that can be sent.
    """
    mean = objective is Objective.MEAN_COMMIT
    load = _load(lot, world, destination, aggregators, now_ns, carried)
    count = len(lot.updates)
    found = _search(load, lot, world, lines, mean, count)
    if found is None:
        count = _longest(lambda most: _search(load, lot, world, lines, mean, most) is not None, count)
        found = _search(load, lot, world, lines, mean, count) or _Found.nothing(lines)
    hosts = (destination, *(aggregator.host for aggregator in aggregators))
    return _forwarding(found, StoredTransfers(found, load, lot, world, hosts, toward), load, world)


def warm() -> None:
    """Run the kernels once on a tiny case."""
    network = Network.star(10**9)
    for host in "abs":
        network.add_host(host)
    world = World(network, "ab", "sb")
    columns = np.array([[8, 8], [0, 0]], np.int64)
    planned = Profiles(columns[1], np.zeros((0, 3), np.int64), np.zeros(3, np.int64))
    for direct, aggregators in ((None, []), (planned, [Aggregator(host="b")])):
        lot = Lot([UpdateId("a", 0, n) for n in range(2)], "aa", columns[0], columns[1], 0, direct, [True, True])
        forward_stored(
            lot,
            world,
            world.lines,
            "s",
            aggregators,
            now_ns=0,
            objective=Objective.MEAN_COMMIT,
            carried=1,
            toward=Toward.PRIMARY,
        )


class _Found(NamedTuple):
    """A case: the first ``direct`` updates as in ``solo``, then transfers as the rows of ``kernel.Sheet``."""

    direct: int
    lines: Lines
    pieces: Ints
    rows: Ints
    solo: kernel.Solo

    @classmethod
    def nothing(cls, lines: Lines) -> _Found:
        nothing, rows = np.zeros(0, np.int64), np.zeros((0, 7), np.int64)
        return cls(0, lines, rows[:, :3], rows, kernel.Solo(nothing, rows[:, :3], nothing, nothing))


class StoredTransfers(Lazy[Transfer]):
    """The transfers of a case: what goes directly first, then each group's updates and its sum."""

    def __init__(self, found: _Found, load: Load, lot: Lot, world: World, hosts: Sequence[str], toward: Toward) -> None:
        super().__init__(found.direct + len(found.rows), self._transfer)
        self._found, self._load, self._lot, self._world, self._hosts = found, load, lot, world, hosts
        self._toward = toward

    def _transfer(self, index: int) -> Transfer:
        found, lot = self._found, self._lot
        if index < found.direct:
            pieces = found.solo.pieces[found.solo.first[index] : found.solo.first[index + 1]]
            end_ns = int(found.solo.end_ns[index])
            return self._update(index, 0, end_ns, pieces, planned=bool(lot.planned[index]))
        what, begin, end, j, ready_ns, end_ns, first = found.rows[index - found.direct].tolist()
        following = found.rows[index - found.direct + 1 : index - found.direct + 2, 6].tolist()
        pieces = found.pieces[first : following[0] if following else None]
        if what == kernel.FORWARD:
            return self._sum(index, range(begin, end), j, ready_ns, end_ns, pieces)
        return self._update(begin, j + 1 if what == kernel.GATHER else 0, end_ns, pieces)

    def _update(self, i: int, host: int, end_ns: int, pieces: Ints, *, planned: bool = True) -> Transfer:
        ready_ns = int(self._load.ready_ns[i])
        route = int(self._load.route[i] + (self._load.shift[host - 1] if host else 0))
        return Transfer(
            kind=Kind.UPDATE,
            toward=self._toward,
            source=self._lot.sources[i],
            destination=self._hosts[host],
            path=self._world.path(route),
            size_bytes=int(self._load.bits[i]) // 8,
            ready_ns=ready_ns,
            profile=profile_of(pieces.tolist(), end_ns, end_ns),
            arrive_ns=end_ns + int(self._world.routes.latency_ns[route]),
            members=(self._lot.updates[i],),
            planned=planned,
        )

    def _sum(self, index: int, members: range, j: int, ready_ns: int, end_ns: int, pieces: Ints) -> Transfer:
        route, count = int(self._load.out[j]), len(members)
        bits = int(self._load.bits[members.start])
        if count > 1:
            bits = int(self._load.tensor_bits[members.start : members.stop].max()) * self._load.carried
        return Transfer(
            kind=Kind.SUM if count > 1 else Kind.UPDATE,
            toward=self._toward,
            source=self._hosts[j + 1],
            destination=self._hosts[0],
            path=self._world.path(route),
            size_bytes=bits // 8,
            ready_ns=ready_ns,
            profile=profile_of(pieces.tolist(), ready_ns, end_ns),
            arrive_ns=end_ns + int(self._world.routes.latency_ns[route]),
            members=tuple(self._lot.updates[i] for i in members),
            inputs=tuple(range(index - count, index)),
        )


def _load(
    lot: Lot, world: World, destination: str, aggregators: Sequence[Aggregator], now_ns: int, carried: int
) -> Load:
    """Lay a lot out as columns; routes from one source to different hosts lie at equal distances."""
    routes, shift = world.routes_to(destination, lot.sources, [aggregator.host for aggregator in aggregators])
    out, _ = world.routes_to(destination, [aggregator.host for aggregator in aggregators])
    bits = np.ascontiguousarray(lot.bits, np.int64)
    return Load(
        bits=bits,
        tensor_bits=bits if lot.tensor_bits is None else np.ascontiguousarray(lot.tensor_bits, np.int64),
        ready_ns=np.maximum(lot.ready_ns, now_ns),
        route=routes,
        shift=shift,
        out=out,
        most=np.array([aggregator.most_updates for aggregator in aggregators], np.int64),
        carried=carried,
        now_ns=now_ns,
        fixed=lot.fixed,
    )


def _solo(load: Load, lot: Lot, world: World, lines: Lines, count: int) -> kernel.Solo:
    if lot.direct is None:
        found: kernel.Solo = kernel.plan_solo(lines, world.routes, load)
        return found
    planned = np.array(lot.planned[:count], np.int64)
    columns = (lot.direct.end_ns[:count], lot.direct.pieces, lot.direct.first[: count + 1])
    end_ns, pieces, first = (np.ascontiguousarray(column) for column in columns)
    return kernel.Solo(end_ns, pieces, first, planned)


def _prefix(load: Load, count: int) -> Load:
    columns = {name: getattr(load, name)[:count] for name in ("bits", "tensor_bits", "ready_ns", "route")}
    return load._replace(**columns)


def _search(load: Load, lot: Lot, world: World, lines: Lines, mean: bool, count: int) -> _Found | None:
    """Find the best case for the first ``count`` updates; None if none is possible."""
    if count == 0:
        return _Found.nothing(lines)
    part = load if count == len(load.bits) else _prefix(load, count)
    solo = _solo(part, lot, world, lines, count)
    if len(load.out):
        direct, sheet, _ = kernel.search(lines, world.routes, part, solo, mean, True)
    else:
        direct, sheet = kernel.send_all(lines, world.routes, part, solo)
    sends, pieces = sheet.used.tolist()
    return _Found(direct, sheet.lines, sheet.pieces[:pieces], sheet.sends[:sends], solo) if direct >= 0 else None


def _longest(is_possible: Callable[[int], bool], count: int) -> int:
    """Find the longest prefix that can be sent; what is possible for a prefix is so for each shorter one."""
    possible, impossible = 0, count
    while impossible - possible > 1:
        middle = (possible + impossible) // 2
        possible, impossible = (middle, impossible) if is_possible(middle) else (possible, middle)
    return possible


def _forwarding(found: _Found, transfers: StoredTransfers, load: Load, world: World) -> Forwarding:
    arrive_ns, first, end, last, stored = groups_of(
        found.direct, found.solo.end_ns, found.rows, load.route, load.out, world.routes.latency_ns
    )
    return Forwarding(
        shape=Shape.STORED if stored else Shape.DIRECT,
        arrive_ns=arrive_ns,
        groups=list(zip(first.tolist(), end.tolist(), strict=True)),
        last=last.tolist(),
        transfers=transfers,
        lines=found.lines,
    )
