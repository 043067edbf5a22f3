"""Fixed paths between hosts.

In a star: up from one host, down to the other. In a graph: fewest hops, then least latency, then names, so every run
chooses the same path. A path never changes after its first use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from mlfabric.errors import UsageError
from mlfabric.network.links import LinkId, Path, down_link, up_link

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["GraphRoutes", "Routes", "StarRoutes"]


class Routes(Protocol):
    """Finds the links between two different hosts that are both known."""

    def find(self, source: str, destination: str) -> Path:
        """Return the links from ``source`` to ``destination`` in order."""
        ...


class StarRoutes:
    """Paths through a core that is never congested."""

    def find(self, source: str, destination: str) -> Path:
        """Return the up link of ``source`` and the down link of ``destination``."""
        return (up_link(source), down_link(destination))


class GraphRoutes:
    """Shortest paths in a directed graph whose edges may carry ``latency_ns``."""

    def __init__(self, graph: nx.DiGraph[str], hosts: Iterable[str]) -> None:
        from networkx import strongly_connected_components  # slow to import, and a star does not need it

        components = list(strongly_connected_components(graph))
        apart = sorted(hosts)
        if apart and not any(component.issuperset(apart) for component in components):
            raise UsageError(f"hosts {', '.join(apart)}: some cannot reach each other; give a path both ways")
        self._edges = {node: sorted(_out_edges(graph, node)) for node in graph.nodes}
        self._trees: dict[str, dict[str, tuple[str, ...]]] = {}

    def find(self, source: str, destination: str) -> Path:
        """Return the links of the shortest path."""
        if source not in self._trees:
            self._trees[source] = self._tree(source)
        nodes = self._trees[source][destination]
        return tuple(LinkId(tail, head) for tail, head in pairwise(nodes))

    def _tree(self, source: str) -> dict[str, tuple[str, ...]]:
        """Dijkstra over (hops, latency, names): each part only grows along a path, so the first visit is the best."""
        found: dict[str, tuple[str, ...]] = {}
        heap: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, (source,))]
        while heap:
            hops, latency_ns, nodes = heapq.heappop(heap)
            if nodes[-1] in found:
                continue
            found[nodes[-1]] = nodes
            for head, more_ns in self._edges[nodes[-1]]:
                if head not in found:
                    heapq.heappush(heap, (hops + 1, latency_ns + more_ns, (*nodes, head)))
        return found


def _out_edges(graph: nx.DiGraph[str], node: str) -> list[tuple[str, int]]:
    return [(head, int(data.get("latency_ns", 0))) for _, head, data in graph.out_edges(node, data=True)]
