"""At most at which rate each stream of stripes is sent, so that those that meet at a slow link keep in step. Pure.

All streams of all stripes are planned to go at once, each at its even share of the slowest link. TCP shares a link
among streams unevenly, and the slower the link the more so: some of a host's stripes are through long before the
others, whose trees all wait for it, and what does not fit into a short queue is sent twice. So the streams of a link
that is the narrow place are held to about their even shares of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mlfabric.methods.byte_trees import Trees
from mlfabric.network import LinkId, Network, down_link, up_link

__all__ = ["held_to_shares"]

_HELD = 1.1
"""How many times its even share a stream may have: what a queue takes in, and enough to show a link that is faster."""


def held_to_shares(
    trees: Sequence[Trees], network: Network, hosts: Mapping[str, str], now_ns: int
) -> tuple[Trees, ...]:
    """Return the trees with the rates to which streams over narrow links are held.

    Args:
        trees: of one round; all their streams run at once.
        hosts: of each worker; links of hosts that the network does not know hold nothing.
    """
    load: Counter[LinkId] = Counter()
    for tree in trees:
        for source, destination in (*tree.parents.items(), *((s, w) for w, s in tree.sources.items())):
            for link in _links(network, hosts[source], hosts[destination]):
                load[link] += tree.end - tree.start
    bps = {link: network.rate_bps(link, now_ns) for link in load}

    def most_bps(tree: Trees, source: str, destination: str) -> int:
        links = _links(network, hosts[source], hosts[destination])
        shares = [bps[link] * (tree.end - tree.start) // load[link] for link in links]
        held_bps = round(_HELD * min(shares, default=0))
        return held_bps if held_bps < tree.rate_bps else 0

    return tuple(
        replace(
            tree,
            sums_bps={worker: most_bps(tree, worker, parent) for worker, parent in tree.parents.items()},
            results_bps={worker: most_bps(tree, source, worker) for worker, source in tree.sources.items()},
        )
        for tree in trees
    )


def _links(network: Network, source: str, destination: str) -> Iterator[LinkId]:
    """Yield the links of both hosts that a stream between them uses."""
    if source != destination:
        if network.has_host(source):
            yield up_link(source)
        if network.has_host(destination):
            yield down_link(destination)
