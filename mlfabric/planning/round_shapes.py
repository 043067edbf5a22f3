"""Candidates for the two trees of an AllReduce: into a root, and out of it to everyone.

A tree is its edges (from, to), hosts by number, in the order in which their streams are reserved. Shapes are made by
``fluid/stream_shape.py``; for the tree out, in a field that is mirrored in time: a stream that would begin late ends
early. The host that takes longest to reach is served first: its stream is long and uses little bandwidth, and streams
of others, later and at full rate, fit beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.stream_field import FAR_NS, Field, Members, limits_of, survey_field
from mlfabric.planning.fluid.stream_shape import by_begin, make_tree, shape
from mlfabric.planning.fluid.world import World

__all__ = ["Edges", "Shaper"]

Edges = tuple[tuple[int, int], ...]

_MOST_ROOTS = 4
_SHARES = np.array([9, 24, 4096], np.int64)


class Shaper:
    """Proposes trees over hosts that may all sum and relay.

    Args:
        world: has the routes between all of them, in order.
        bits, ready_ns: by host, of its largest update and when the last of them is ready.
    """

    def __init__(
        self, world: World, bits: Sequence[int], ready_ns: Sequence[int], now_ns: int, chunk_bits: int
    ) -> None:
        count = len(bits)
        routes = np.full((count, count + 1), -1, np.int64)
        routes[:, :count] = np.arange(count * count).reshape(count, count)
        np.fill_diagonal(routes, -1)
        back = routes.copy()
        back[:, :count] = routes[:, :count].T
        zeros: Ints = np.zeros(count, np.int64)
        scalars = np.array([now_ns, max(1, *bits), chunk_bits, 1, 0, 0], np.int64)
        self._gather = survey_field(world.lines, world.routes, routes, zeros, scalars, False)
        self._hand = survey_field(world.lines, world.routes, back, zeros, scalars, True)
        hosts = np.arange(count)
        self._updates = Members(hosts, np.array(bits, np.int64), np.array(ready_ns, np.int64), zeros)
        self._result = Members(hosts, np.full(count, scalars[1]), np.full(count, now_ns, np.int64), zeros)
        self._count, self._now_ns, self._ready_ns = count, now_ns, ready_ns

    def roots(self) -> list[int]:
        """Return the few hosts that may be a root: those without a slow link, the latest ready first."""
        ranks = self._gather.rank_ns
        able = [host for host in range(self._count) if not self._is_slow(host)]
        return sorted(able, key=lambda host: (-self._ready_ns[host], ranks[host], host))[:_MOST_ROOTS]

    def flat(self, root: int) -> Edges:
        """Return the tree in which all hosts send to the root."""
        others = [host for host in range(self._count) if host != root]
        took_ns = self._gather.took_ns[:, root]
        return tuple((host, root) for host in sorted(others, key=lambda host: (-took_ns[host], host)))

    def gatherings(self, root: int) -> Iterator[Edges]:
        """Yield trees into a root; each also with all slow hosts moved to the root, where they delay nobody's sum."""
        for parents, order in self._shapes(self._gather, self._updates, root):
            yield tuple((host, parents[host]) for host in order if host != root)
            slow = [host for host in order if host != root and self._is_slow(host)]
            if not any(above in slow for above in parents.values()):
                moved = [(host, parents[host]) for host in order if host != root and host not in slow]
                yield (*((host, root) for host in slow), *moved)

    def handings(self, root: int) -> Iterator[Edges]:
        """Yield trees out of a root."""
        for parents, _ in self._shapes(self._hand, self._result, root):
            yield self.downward(root, parents)

    def mirrored(self, root: int, gathering: Edges) -> Edges:
        """Return the tree out of a root that has the edges of one into it."""
        return self.downward(root, dict(gathering))

    def onward(self, root: int, gathering: Edges) -> Edges:
        """Return a chain from the root through all hosts, in the order of a tree into it; slow hosts are next to the
        root.

        A host that sends first has its own uplink free first.
        """
        parents, above = {}, root
        for host, _ in gathering:
            slow = self._is_slow(host)
            parents[host] = root if slow else above
            above = above if slow else host
        return self.downward(root, parents)

    def downward(self, root: int, parents: dict[int, int]) -> Edges:
        """Order the edges of a tree from the root on: of the possible next edges the slowest, then the highest."""
        height = dict.fromkeys(range(self._count), 0)
        for host in parents:
            above, level = host, 0
            while above != root:
                above, level = parents[above], level + 1
                height[above] = max(height[above], level)
        took_ns, edges, reached, left = self._hand.took_ns, [], {root}, set(parents)
        while left:
            ready = [host for host in left if parents[host] in reached]
            host = min(ready, key=lambda host: (-took_ns[host, parents[host]], -height[host], host))
            edges.append((parents[host], host))
            reached.add(host)
            left.remove(host)
        return tuple(edges)

    def _is_slow(self, host: int) -> bool:
        ranks = self._gather.rank_ns
        return int(ranks[host]) > min(int(ranks.min()) * 3 // 2, FAR_NS - 1)

    def _shapes(self, field: Field, members: Members, root: int) -> Iterator[tuple[dict[int, int], list[int]]]:
        """Yield parents by host, and all hosts in the order in which they begin."""
        count, outside = self._count, self._count
        spans = self._hand.took_ns[[host for host in range(count) if host != root], root]
        places = np.zeros(count, np.int64)
        everyone, none_later = np.ones(count, np.int64), np.zeros(count, np.int64)
        for limit_ns in limits_of(field, _SHARES):
            for span_ns in sorted({int(spans.min()), int(spans.max())}):
                field.took_ns[:, outside], field.took_ns[root, outside] = FAR_NS, span_ns
                field.hop_ns[root, outside] = 0
                tree = make_tree(count, count)
                limit = max(int(limit_ns), int(field.rank_ns[root]))
                reach_ns = shape(
                    field, members, 0, count, everyone, limit, self._now_ns, none_later, tree,
                    np.zeros(2 * count + 2, np.int64),
                )  # fmt: skip
                if reach_ns < self._now_ns + FAR_NS:
                    by_begin(tree, places)
                    order = [int(tree.host[i]) for i in places]
                    above = {int(tree.host[i]): int(tree.parent[i]) for i in range(count)}
                    yield {host: int(tree.host[i]) for host, i in above.items() if i >= 0}, order
