"""Which links have changed, told from probes that each went over two of them. Pure.

A probe comes at the rate of the slower of its two links. One that comes faster than both were thought to allow shows
that both carry at least that. One that comes slower shows that one of them has become slow. Which one, the other probes
over them tell: a link that carried another one faster is not to blame, nor one that carried about as much as was to be
expected of this one. Where no other one clears it, it is taken to be slow, for a link that is taken for too slow costs
little, and one that is taken for too fast may hold up a whole round.

Links often change together. So once a probe has shown that one has become much slower, nothing is believed of any link
that its own probes did not show: what is known of its partners, which would explain why they were slow, may be of the
past. A smaller difference may come from other traffic, and says nothing of links that the probe did not take.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.network import LinkId

__all__ = ["SAME", "changed_rates"]

SAME = 1.2
"""Rates that differ by less than this factor are the same."""
_MUCH = 1.5
"""From this factor on a link has become much slower."""


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
    expected = {links: min(rates[link] for link in links) for links in seen_bps}
    slower = [links for links, bps in seen_bps.items() if expected[links] > bps * SAME]
    times = {(link, links): expected[links] / at_least[link] for links in slower for link in links}
    to_blame = {link for (link, _), factor in times.items() if factor > SAME}
    if any(factor > _MUCH for factor in times.values()):
        to_blame = {link for link in rates if rates[link] > at_least[link] * SAME}
    rates |= {link: at_least[link] for link in to_blame}
    return {
        link: bps
        for link, bps in rates.items()
        if not known_bps[link] <= bps * SAME or not bps <= known_bps[link] * SAME
    }
