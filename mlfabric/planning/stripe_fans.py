"""For how many others each host of an AllReduce sums, and to how many it hands the result on, stripe by stripe.

Each link carries the tensor once whatever is planned: its host sends its part of every sum, and gets every result. What
a link carries beyond that in the time of the round is its *room*, and the work of the round is spread over the room of
all hosts. In a round of N hosts each stripe is received N - 1 times on its way in and N - 1 times on its way out. So in
time T, where a link of rate 1 carries the tensor once in time 1, a host has room ``T d - 1`` if its down-link has rate
d, and T is the least time for which the rooms sum up to N - 2, as the root of a stripe is spared one result; the same
holds of the up-links on the way out. A slow link has no room, and carries everything once. If that takes longer, hosts
with fast links are not given more to do: they may have become slow since they were measured, and delay all that they
pass on. So the whole takes ``max(1 / u_min, 1 / d_min, 2 (N - 1) / sum(u), 2 (N - 1) / sum(d))`` if all hosts pass on.

Hosts are dealt to the stripes so that all have about the same room, and each host gets as many others as it has room
for; the number is rounded so that no host has much more than its share (the method of D'Hondt). Then each stripe gets
so many of the bytes that all stripes end together. With more time fewer hosts can do all of the work, over fewer hops.

A host passes on in at most one stripe each way, for about ``MOST_FAN`` others at most, and sends one sum in each other
stripe: so it has about ``MOST_STRIPES + MOST_FAN`` streams each way at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from typing import NamedTuple

__all__ = ["MOST_FAN", "MOST_STRIPES", "Fans", "Work", "alone", "sketches"]

MOST_STRIPES = 8
MOST_FAN = 32
_COUNTS = (1, 2, 3, 4, 5, 6)
_COUNT_OF_MANY = 3
"""Of how many stripes sketches are made; of many hosts only of so many: more would gain a hundredth or two, and take
more time to plan. Of few hosts also of as many as have room both ways, and of half as many: then each of them, or each
second one, is a root, and most others are next to it."""
_MANY = 100
_TIMES = (1.0, 1.5, 3.0)
"""In how many times the least time hosts are to do their work; more than once is worth while only if hops count."""
_SURELY = 1.0 + 1e-9
_MOST_STEPS = 30


class Work(NamedTuple):
    """The work of one way, in or out, for hosts by number.

    Args:
        rates: how often each host's link carries the tensor in the unit of time.
        carried: how often it does so anyway, 0 or 1.
        able: hosts that may pass on, preferred ones first.
        edges: how often each stripe is received on this way.
    """

    rates: Sequence[float]
    carried: Sequence[int]
    able: Sequence[int]
    edges: int

    def least_time(self) -> float:
        """Return the time in which the links of hosts that pass on can do all of the work, and carry what they do
        anyway; slow ones are not among them."""
        order = sorted(self.able, key=lambda host: -self.rates[host])
        rates = accumulate(self.rates[host] for host in order)
        carried = accumulate(self.carried[host] for host in order)
        return min((self.edges - 1 + n) / rate for rate, n in zip(rates, carried, strict=True))

    def rooms(self, time: float) -> dict[int, float]:
        """Return how often links carry the tensor in this time beyond what they carry anyway, the most first."""
        rates, carried = self.rates, self.carried
        found = [(time * rates[host] - carried[host], -n, host) for n, host in enumerate(self.able)]
        found.sort(reverse=True)
        return {host: max(0.0, room) for room, _, host in found}


class Fans(NamedTuple):
    """Who passes on, stripe by stripe, for how many others: the work of a round as it was dealt out.

    Args:
        roots: of the stripes.
        summing, handing: by stripe, how many send to a host, and how many it sends the result to; hosts that are not
            there pass nothing on.
        shares: of the bytes, by stripe.
        time: in which the busiest link carries all that goes over it.
        hops: by stripe, the most hops from a host to its root and on to another host.
        most: how often the tensor goes over the link that carries most.
    """

    roots: tuple[int, ...]
    summing: tuple[Mapping[int, int], ...]
    handing: tuple[Mapping[int, int], ...]
    shares: tuple[float, ...]
    time: float
    hops: tuple[int, ...]
    most: float


def alone(inward: Work, outward: Work) -> Fans:
    """Return the work of a round that one host does alone: the one that can do it in the least time."""
    root = min(inward.able, key=lambda host: -min(inward.rates[host], outward.rates[host]))
    return _weighed(inward, outward, (root,), ({root: inward.edges},), ({root: outward.edges},))


def sketches(inward: Work, outward: Work, most_stripes: int, *, hops_count: bool) -> Iterator[Fans]:
    """Yield ways to deal out the work of a round.

    Args:
        inward, outward: of the sums, over down-links, and of the results, over up-links. Who may sum may hand on.
        most_stripes: no more than so many.
        hops_count: the round is so short that fewer hops may be worth more time on the links.
    """
    in_time, out_time = (way.least_time() * _SURELY for way in (inward, outward))
    for times in _TIMES if hops_count else _TIMES[:1]:
        summing, handing = inward.rooms(times * in_time), outward.rooms(times * out_time)
        both = {host: min(room, handing[host]) for host, room in summing.items()}
        order = sorted(both, key=lambda host: -both[host])
        full = sum(room > 0.0 for room in both.values())
        most = min(MOST_STRIPES, most_stripes, len(order))
        for count in sorted({count for count in _counts(len(order), full) if 0 < count <= most} or {most}):
            roots = tuple(order[:count])
            sums, hands = _dealt(summing, roots, inward.edges), _dealt(handing, roots, outward.edges)
            yield _weighed(inward, outward, roots, sums, hands)


def _counts(able: int, full: int) -> tuple[int, ...]:
    """Return of how many stripes sketches are made if so many hosts may pass on, and so many have room both ways."""
    if able > _MANY:
        return (_COUNT_OF_MANY,)
    return (*_COUNTS, full, full // 2) if able <= 2 * MOST_STRIPES else _COUNTS


def _dealt(rooms: Mapping[int, float], roots: Sequence[int], edges: int) -> tuple[dict[int, int], ...]:
    """Deal hosts to the stripes until these have room for all edges; return for how many others each host passes on."""
    count, most = len(roots), MOST_FAN / len(roots)
    groups = [{root: min(most, rooms[root]) + 1 / count} for root in roots]
    held = [(groups[k][root], k) for k, root in enumerate(roots)]
    heapify(held)
    taken, wanted = set(roots), edges / count
    for host, room in rooms.items():
        if host in taken:
            continue
        had, k = held[0]
        if had >= wanted or not room:
            break
        groups[k][host] = min(most, room)
        heapreplace(held, (had + min(most, room), k))
    return tuple(_rounded(group, root, edges) for group, root in zip(groups, roots, strict=True))


def _rounded(rooms: Mapping[int, float], root: int, edges: int) -> dict[int, int]:
    """Give hosts whole numbers of others in proportion to their rooms; the root has one at least."""
    per_room = edges / sum(rooms.values())
    fans = {host: int(per_room * room) for host, room in rooms.items()}
    left = edges - sum(fans.values())
    if left and not fans[root]:
        fans[root], left = 1, left - 1
    next_up = [((fans[host] + 1) / room, n, host) for n, (host, room) in enumerate(rooms.items())]
    heapify(next_up)
    for _ in range(left):
        _, n, host = heappop(next_up)
        fans[host] += 1
        heappush(next_up, ((fans[host] + 1) / rooms[host], n, host))
    return {host: fan for host, fan in fans.items() if fan}


def _weighed(
    inward: Work,
    outward: Work,
    roots: tuple[int, ...],
    summing: tuple[dict[int, int], ...],
    handing: tuple[dict[int, int], ...],
) -> Fans:
    """Find the shares of the bytes with which all stripes end earliest: together.

    A link that carries a stripe k times beyond what it carries anyway allows it ``(T rate - carried) / k`` of the
    bytes; the least of these is the stripe's share, and T is the time for which the shares sum up to 1. Their sum grows
    with T, by less and less, so Newton's steps come to it from below.
    """
    limits = [
        [
            (way.rates[host] / (fan - (host == root)), way.carried[host] / (fan - (host == root)))
            for way, fans in ((inward, sums), (outward, hands))
            for host, fan in fans.items()
            if fan > (host == root)
        ]
        for root, sums, hands in zip(roots, summing, handing, strict=True)
    ]
    time = max(n / rate for way in (inward, outward) for n, rate in zip(way.carried, way.rates, strict=True) if n)
    shares = [1.0] * len(roots)
    for _ in range(_MOST_STEPS if all(limits) else 0):
        found = [min((time * rate - less, rate) for rate, less in limit) for limit in limits]
        shares, missing = [max(0.0, share) for share, _ in found], 1.0 - sum(share for share, _ in found)
        if missing <= 1e-9:
            break
        time += missing / sum(rate for _, rate in found)
    total = sum(shares)
    shares = [share / total for share in shares]
    most, hops = 1.0, []
    for root, share, sums, hands in zip(roots, shares, summing, handing, strict=True):
        for way, fans in ((inward, sums), (outward, hands)):
            loads = (way.carried[host] + (fan - (host == root)) * share for host, fan in fans.items())
            most = max(most, max(loads, default=0.0))
        hops.append(_height(sums, root, inward.edges) + _height(hands, root, outward.edges))
    return Fans(roots, summing, handing, tuple(shares), time, tuple(hops), most)


def _height(fans: Mapping[int, int], root: int, edges: int) -> int:
    """Return how many hops the farthest of so many hosts is from the root; nearest are those with most others."""
    others = sorted((fan for host, fan in fans.items() if host != root), reverse=True)
    height, slots, placed, begun = 0, fans.get(root, 0), 0, 0
    while placed < edges and slots:
        height, placed = height + 1, placed + slots
        passing = others[begun : begun + slots]
        begun, slots = begun + len(passing), sum(passing)
    return height
