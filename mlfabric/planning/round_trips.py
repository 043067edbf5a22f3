"""The best pair of trees for an AllReduce: every candidate is planned exactly, as one set of streams.

The result leaves the root while the updates still arrive. The two trees share links, which estimates do not show, so
all pairs of some trees of each kind are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import HORIZON_NS, Profile
from mlfabric.planning.fluid.stream_forest import Streams, make_streams, run_all
from mlfabric.planning.fluid.world import World
from mlfabric.planning.profiles import Profiles
from mlfabric.planning.round_shapes import Edges, Shaper
from mlfabric.planning.tree_streams import inputs_of, profile_at

__all__ = ["RoundTrip", "best_round_trip"]


class Leg(NamedTuple):
    """One stream of a round trip; ``back`` if it brings the result, ``inputs`` by index, ``members`` hosts summed."""

    source: int
    destination: int
    back: bool
    route: int
    size_bytes: int
    start_ns: int
    profile: Profile
    arrive_ns: int
    inputs: tuple[int, ...]
    hosts: frozenset[int]


class RoundTrip(NamedTuple):
    """A tree into a root and one out of it, as planned; ``done_ns`` is by host when it has the sum."""

    root: int
    edges: Edges
    streams: Streams
    rows: NDArray[np.int64]
    done_ns: list[int]

    def legs(self, world: World) -> list[Leg]:
        """Return all streams, inputs first."""
        streams, count = self.streams, len(self.edges)
        inputs = inputs_of(streams.leaves[:count].tolist(), streams.reaches[:count].tolist())
        legs: list[Leg] = []
        for k, (source, to) in enumerate(self.edges):
            route, end_ns = int(streams.route[k]), int(streams.end_ns[k])
            back = k >= count // 2
            own = () if back and source != self.root else (source,)
            hosts = frozenset(own).union(*(legs[j].hosts for j in inputs[k]))
            legs.append(
                Leg(
                    source=source,
                    destination=to,
                    back=back,
                    route=route,
                    size_bytes=int(streams.bits[k]) // 8,
                    start_ns=int(streams.start_ns[k]),
                    profile=profile_at(Profiles(streams.end_ns, self.rows, streams.first), k),
                    arrive_ns=end_ns + int(world.routes.latency_ns[route]),
                    inputs=inputs[k],
                    hosts=hosts,
                )
            )
        return legs


def best_round_trip(
    world: World, bits: Sequence[int], ready_ns: Sequence[int], now_ns: int, chunk_bits: int, *, trees: bool
) -> RoundTrip | None:
    """Find the round trip with which the last host has the sum earliest.

    Args:
        world: has the routes between all hosts, at least two, in order.
        bits, ready_ns: by host, of its largest update and when the last of them is ready.
        trees: False for all hosts directly to the root and back.

    Returns:
        None if none ends before the horizon.
    """
    best: RoundTrip | None = None
    for root, gathering, handing in _cases(Shaper(world, bits, ready_ns, now_ns, chunk_bits), trees):
        found = _planned(world, bits, ready_ns, now_ns, chunk_bits, root, (*gathering, *handing))
        if found is not None and (best is None or max(found.done_ns) < max(best.done_ns)):
            best = found
    return best


def _cases(shaper: Shaper, trees: bool) -> Iterator[tuple[int, Edges, Edges]]:
    for root in shaper.roots():
        flat = shaper.flat(root)
        gatherings = list(dict.fromkeys([flat, *shaper.gatherings(root)])) if trees else [flat]
        handings = [shaper.mirrored(root, flat)]
        if trees:
            handings += [*shaper.handings(root), *(shaper.mirrored(root, gathering) for gathering in gatherings)]
        for gathering in gatherings:
            chain = [shaper.onward(root, gathering)] if trees else []
            for handing in dict.fromkeys([*handings, *chain]):
                yield root, gathering, handing


def _planned(
    world: World, bits: Sequence[int], ready_ns: Sequence[int], now_ns: int, chunk_bits: int, root: int, edges: Edges
) -> RoundTrip | None:
    count = len(bits)
    streams, carried, done_ns = make_streams(len(edges), 2 * count + 1), list(bits), list(ready_ns)
    for k, (source, to) in enumerate(edges):
        back = k >= count - 1
        own = not back or source == root
        if not back:
            carried[to] = max(carried[to], carried[source])
        streams.route[k], streams.bits[k] = source * count + to, max(bits) if back else carried[source]
        streams.ready_ns[k] = ready_ns[source] if own else now_ns
        streams.leaves[k], streams.reaches[k] = source if own else source + count, to + count if back else to
    rows, _ = run_all(world.lines, world.routes, streams, len(edges), chunk_bits)
    if streams.end_ns.max() >= HORIZON_NS:
        return None
    for k, (_, to) in enumerate(edges):
        arrive_ns = int(streams.end_ns[k] + world.routes.latency_ns[streams.route[k]])
        if to == root or k >= count - 1:
            done_ns[to] = max(done_ns[to], arrive_ns)
    return RoundTrip(root, edges, streams, rows, done_ns)
