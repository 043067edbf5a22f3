"""What a round of AllReduce in stripes tells of its workers' links. Pure.

Whoever has bytes ready at the beginning of a round sends them as fast as it can, to several others: then its way up is
full, and what its interface carried at best is what that link can carry. The same holds for the way down of who sums
what several others send. Of other links a round tells only that they carry at least what they did; after a while they
are taken to be as fast as they ever were, and get more to do, which shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mlfabric.network import LinkId, Network, down_link, up_link
from mlfabric.scheduler.running_round import RunningRound

__all__ = ["RoundLinks"]

_FULL_SHARE = 0.5
"""What share of a tensor must go over a link at once so that it shows what it can carry."""
_FORGET_AFTER = 8


@dataclass(slots=True)
class _Known:
    """What a link could carry at best, and how many rounds ago it was last seen full."""

    best_bps: int = 0
    age: int = 0


class RoundLinks:
    """Learns from the rounds of one model."""

    def __init__(self) -> None:
        self._known: dict[LinkId, _Known] = {}

    def learn(self, network: Network, running: RunningRound, hosts: Mapping[str, str]) -> None:
        """Set the rates of a round's links to what it has shown.

        Args:
            running: all have arrived.
            hosts: of its workers; links of hosts with several workers are left alone, as these share them.
        """
        alone = {host for host, count in Counter(hosts.values()).items() if count == 1}
        for worker, (up_bps, down_bps) in running.measured.items():
            host = hosts[worker]
            if host in alone and network.has_host(host):
                size_bytes = running.members[worker].size_bytes
                ready, coming = running.ready_bytes(worker), running.coming_bytes(worker)
                self._take(network, up_link(host), up_bps, is_full=ready >= _FULL_SHARE * size_bytes)
                self._take(network, down_link(host), down_bps, is_full=coming >= _FULL_SHARE * size_bytes)

    def _take(self, network: Network, link: LinkId, bps: int, *, is_full: bool) -> None:
        """Take in what a link carried at best; 0 if that is unknown."""
        if not bps or link not in network.links:
            return
        known = self._known.setdefault(link, _Known())
        known.best_bps = max(known.best_bps, bps)
        known.age = 0 if is_full else known.age + 1
        if is_full or bps > network.rate_bps(link, 0):
            network.set_rate(link, bps)
        elif known.age > _FORGET_AFTER:
            known.age = 0
            network.set_rate(link, max(known.best_bps, network.rate_bps(link, 0)))
