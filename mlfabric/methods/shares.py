"""At most at which rate each stream of stripes is sent, so that those that meet at a slow link keep in step. Pure.

All streams of all stripes are planned to go at once, each at its even share of the slowest link. TCP shares a link
among streams unevenly, and the slower the link the more so: some of a host's stripes are through long before the
others, whose trees all wait for it, and what does not fit into a short queue is sent twice. So the streams of a link
that is the narrow place are held to about their even shares of it. While the first chunks are on their way, the first
hops have the links for themselves, and so have the last ones at the end: where that is a large part of a round, as its
tensor is short, streams may go faster by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mlfabric.methods.byte_trees import Trees
from mlfabric.network import LinkId, Network, down_link, up_link

__all__ = ["held_to_shares"]

_HELD = 1.1
"""How many times its even share a stream may have: what a queue takes in, and enough to show a link that is faster."""
_NO_LIMIT_BPS = 1 << 62


def held_to_shares(
    trees: Sequence[Trees], network: Network, hosts: Mapping[str, str], now_ns: int, over_span: float = 1.0
) -> tuple[Trees, ...]:
    """Return the trees with the rates to which streams over narrow links are held.

    Args:
        trees: of one round; all their streams run at once.
        hosts: of each worker; links of hosts that the network does not know hold nothing.
        over_span: how many times as long as one of its streams a round takes.
    """
    times = _HELD * over_span
    ups, downs = dict.fromkeys(hosts.values(), 0), dict.fromkeys(hosts.values(), 0)
    for tree in trees:
        size_bytes = tree.end - tree.start
        for source, destination in _streams(tree):
            one, other = hosts[source], hosts[destination]
            if one != other:
                ups[one] += size_bytes
                downs[other] += size_bytes
    up_bps, down_bps = (
        _rates_bps(network, link, loads, now_ns) for link, loads in ((up_link, ups), (down_link, downs))
    )

    def held(tree: Trees) -> Trees:
        size_bytes, limit_bps = tree.end - tree.start, tree.rate_bps
        up_shares = {w: _share(up_bps[host], size_bytes, ups[host], times) for w, host in hosts.items()}
        down_shares = {w: _share(down_bps[host], size_bytes, downs[host], times) for w, host in hosts.items()}

        def most_bps(source: str, destination: str) -> int:
            up, down = up_shares[source], down_shares[destination]
            held_bps = up if up < down else down
            return held_bps if held_bps < limit_bps and hosts[source] != hosts[destination] else 0

        return replace(
            tree,
            sums_bps={worker: most_bps(worker, parent) for worker, parent in tree.parents.items()},
            results_bps={worker: most_bps(source, worker) for worker, source in tree.sources.items()},
        )

    return tuple(map(held, trees))


def _share(bps: int, size_bytes: int, load_bytes: int, times: float) -> int:
    """Return at which rate so many bytes of a link's load may go."""
    return round(times * (bps * size_bytes // load_bytes)) if load_bytes else _NO_LIMIT_BPS


def _streams(tree: Trees) -> Iterator[tuple[str, str]]:
    """Yield who sends to whom."""
    yield from tree.parents.items()
    for worker, source in tree.sources.items():
        yield source, worker


def _rates_bps(
    network: Network, link: Callable[[str], LinkId], loads: Mapping[str, int], now_ns: int
) -> dict[str, int]:
    """Return what the links of hosts carry."""
    return {host: network.rate_bps(link(host), now_ns) if network.has_host(host) else _NO_LIMIT_BPS for host in loads}
