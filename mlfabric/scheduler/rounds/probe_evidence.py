"""Which links have changed, told from probes that each went over two of them. Pure.

A probe comes at the rate of the slower of its two links. One that comes faster than both were thought to allow shows
that both carry at least that. One that comes slower shows that one of them has become slow. Which one, the other probes
over them tell: a link that carried another one faster is not to blame. Where no other one clears it, it is taken to be
slow, for a link that is taken for too slow costs little, and one that is taken for too fast may hold up a whole round.

Links often change together. So once a probe has shown that one has, nothing is believed of any link that its own probes
did not show: what is known of its partners, which would explain why they were slow, may be of the past.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.network import LinkId

__all__ = ["SAME", "changed_rates"]

SAME = 1.2
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
    not_shown = {link for link in rates if rates[link] > at_least[link] * SAME}
    slower = [links for links, bps in seen_bps.items() if min(rates[link] for link in links) > bps * SAME]
    if any(not_shown.intersection(links) for links in slower):  # or else other traffic was in the way
        rates |= {link: at_least[link] for link in not_shown}
    return {
        link: bps
        for link, bps in rates.items()
        if not known_bps[link] <= bps * SAME or not bps <= known_bps[link] * SAME
    }
