"""Which links have changed, told from probes that each went over two of them. Pure.

A probe comes at the rate of the slower of its two links. One that comes faster than both were thought to allow shows
that both carry at least that. One that comes slower shows that one of them has become slow; which one, tell the other
probes over them: a link that carried another one faster is not to blame. Blamed are as few links as explain everything
that was seen; where two explain it equally well, both are, since a link that is taken for too slow costs little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mlfabric.network import LinkId

__all__ = ["changed_rates"]

_SAME = 1.2
"""Rates that differ by less than this factor are the same."""


def changed_rates(seen_bps: Mapping[tuple[LinkId, LinkId], int], known_bps: Mapping[LinkId, int]) -> dict[LinkId, int]:
    """Return the new rates of the links that have changed.

    Args:
        seen_bps: at which rate probes came, by the way up and the way down that each took.
        known_bps: what all of these links were thought to carry.
    """
    at_least: dict[LinkId, int] = {}
    for links, bps in seen_bps.items():
        for link in links:
            at_least[link] = max(bps, at_least.get(link, 0))
    rates = {link: max(bps, at_least[link]) for link, bps in known_bps.items() if link in at_least}
    unexplained = {links: bps for links, bps in seen_bps.items() if bps * _SAME < min(rates[link] for link in links)}
    while unexplained:
        support = Counter(link for links, bps in unexplained.items() for link in links if at_least[link] <= bps * _SAME)
        if not support:
            break  # each of the links carried something faster: other traffic was in the way
        most = max(support.values())
        for link in [link for link, count in support.items() if count == most]:
            rates[link] = at_least[link]
        unexplained = {
            links: bps for links, bps in unexplained.items() if bps * _SAME < min(rates[link] for link in links)
        }
    return {
        link: bps
        for link, bps in rates.items()
        if not known_bps[link] <= bps * _SAME or not bps <= known_bps[link] * _SAME
    }
