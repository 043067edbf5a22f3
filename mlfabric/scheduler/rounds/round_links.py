"""What a round of AllReduce in stripes tells of its workers' links. Pure.

Whoever has bytes ready at the beginning of a round sends them as fast as it can, to several others: then its way up is
full, and what its interface carried at best is what that link can carry. The same holds for the way down of who sums
what several others send. Of other links a round tells only that they carry at least what they did; after a while they
are taken to be as fast as they ever were, and get more to do, which shows it. A link whose streams were held to their
shares of it (``methods/shares.py``) is full too, but does not show whether it could carry more. A ring goes at the pace
of its slowest link and fills no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mlfabric.network import LinkId, Network, down_link, up_link
from mlfabric.planning import Shape
from mlfabric.scheduler.rounds.probe_plans import Probing
from mlfabric.scheduler.rounds.running_round import RunningRound

__all__ = ["Carried", "RoundLinks"]

_FULL_SHARE = 0.5
"""What share of a tensor must go over a link at once so that it shows what it can carry."""
_HELD_SHARE = 0.9
"""From what share of its known rate a link whose streams are held to that may carry more than it shows."""
_FORGET_AFTER = 8


class Carried(NamedTuple):
    """What a host's link carried at best in a round, up and down, 0 if that is unknown; and what it was to carry.

    ``ready_bytes`` is what the host sends without waiting for others, ``coming_bytes`` what they send it to be summed;
    ``is_held`` says, up and down, whether what is sent first is held to shares of the link.
    """

    host: str
    shape: Shape
    size_bytes: int
    ready_bytes: int
    coming_bytes: int
    is_held: tuple[bool, bool]
    up_bps: int
    down_bps: int


@dataclass(slots=True)
class _Known:
    """What a link could carry at best, and how many rounds ago it was last seen full."""

    best_bps: int = 0
    age: int = 0


class RoundLinks:
    """Learns from the rounds of one model."""

    def __init__(self) -> None:
        self._known: dict[LinkId, _Known] = {}

    @property
    def best_bps(self) -> int:
        """What the fastest link has carried at best; 0 if none was measured."""
        return max((known.best_bps for known in self._known.values()), default=0)

    def learn(self, network: Network, running: RunningRound, hosts: Mapping[str, str], now_ns: int) -> None:
        """Set the rates of a round's links to what it has shown.

        Args:
            running: all have arrived.
            hosts: of its workers; links of hosts with several workers are left alone, as these share them.
        """
        alone = {host for host, count in Counter(hosts.values()).items() if count == 1}
        up_held, down_held = running.held()
        for worker, (up_bps, down_bps) in running.measured.items():
            host = hosts[worker]
            if host in alone and network.has_host(host):
                load = running.summed_bytes, running.ready_bytes(worker), running.coming_bytes(worker)
                is_held = worker in up_held, worker in down_held
                shape = Shape.RING if running.summed else running.shape  # gossip fills no link for certain either
                self.carried(network, Carried(host, shape, *load, is_held, up_bps, down_bps), now_ns)

    def carried(self, network: Network, carried: Carried, now_ns: int) -> None:
        """Set the rates of one host's link to what a round has shown."""
        fills, loads = carried.shape is not Shape.RING, (carried.ready_bytes, carried.coming_bytes)
        up_is_full, down_is_full = (fills and load >= _FULL_SHARE * carried.size_bytes for load in loads)
        up_is_held, down_is_held = carried.is_held
        up, down = up_link(carried.host), down_link(carried.host)
        self._take(network, up, carried.up_bps, now_ns, is_full=up_is_full, is_held=up_is_held)
        self._take(network, down, carried.down_bps, now_ns, is_full=down_is_full, is_held=down_is_held)

    def probed(self, probing: Probing) -> None:
        """Set the rates of links to what probes have shown."""
        for link in probing.learn():
            self._known.setdefault(link, _Known()).age = 0

    def _take(self, network: Network, link: LinkId, bps: int, now_ns: int, *, is_full: bool, is_held: bool) -> None:
        """Take in what a link carried at best; 0 if that is unknown."""
        if not bps or not network.has_link(link):
            return
        known = self._known.setdefault(link, _Known())
        known.best_bps = max(known.best_bps, bps)
        is_confirmed = bps >= _HELD_SHARE * network.rate_bps(link, 0)
        is_full = is_full and not (is_held and is_confirmed)
        known.age = 0 if is_full else known.age + 1
        if is_full or bps > network.rate_bps(link, 0):
            network.set_rate(link, bps)
            network.seen((link,), now_ns)
        elif known.age > _FORGET_AFTER:
            known.age = 0
            network.set_rate(link, max(known.best_bps, network.rate_bps(link, 0)))
        elif is_confirmed:
            network.seen((link,), now_ns)
