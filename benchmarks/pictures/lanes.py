"""A plan as bars on lanes, ready to be drawn: one lane for each link and purpose, bars as high as their share of it.

Lanes stand in the order of groups, a group's nearest to the server first, so that a sum stands above what it is made
of; lanes of models from the server on. What shares a link at an instant is stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mlfabric.network import LinkId, Network
from mlfabric.planning.plan import Kind, Plan, Toward, Transfer

__all__ = ["Bar", "Lane", "groups_of", "lanes_of"]

_TOWARD = (Toward.PRIMARY, Toward.WORKERS, Toward.REPLICA)


class Bar(NamedTuple):
    """A part of a transfer: its index, when (ns), and where on its lane, as shares of the link's capacity."""

    transfer: int
    start_ns: int
    end_ns: int
    bottom: float
    height: float


class Lane(NamedTuple):
    """What crosses one link for one purpose."""

    toward: Toward
    link: LinkId
    bars: tuple[Bar, ...]


def lanes_of(plan: Plan, network: Network | None = None) -> list[Lane]:
    """Return all lanes that carry something, from top to bottom.

    Args:
        network: to scale a lane by its link's capacity; without it, by the most that the plan takes of it.
    """
    transfers = list(plan.transfers)
    crossing: dict[tuple[Toward, LinkId], list[int]] = {}
    for i, transfer in enumerate(transfers):
        for link in transfer.path:
            crossing.setdefault((_purpose(transfer), link), []).append(i)
    peaks = _peaks(plan, transfers, network)
    group, place, later, earlier = groups_of(plan), _places(plan), _later(transfers), _earlier(transfers)

    def rank(lane: tuple[Toward, LinkId]) -> tuple[int, int, int, int]:
        """Sums: what groups share, then each group from its end back. Models: from their source on."""
        toward, link = lane
        section = _TOWARD.index(toward)
        if toward is Toward.WORKERS:
            first = min(crossing[lane], key=lambda i: (earlier[i], i))
            return section, earlier[first], transfers[first].path.index(link), first
        first = min(crossing[lane], key=lambda i: (later[i], group.get(i, i), i))
        hops = len(transfers[first].path) - transfers[first].path.index(link)
        shared = later[first] == 0 and len({group.get(i, i) for i in crossing[lane]}) > 1
        return section, -1 if shared else group.get(first, first), place.get(first, first), hops

    return [
        Lane(toward, link, tuple(_stacked(transfers, crossing[toward, link], peaks[link])))
        for toward, link in sorted(crossing, key=rank)
    ]


def _purpose(transfer: Transfer) -> Toward:
    """In an AllReduce all is for the workers; what makes the sum stands apart from what brings it back."""
    summing = transfer.toward is Toward.WORKERS and transfer.kind in (Kind.UPDATE, Kind.SUM)
    return Toward.PRIMARY if summing else transfer.toward


def groups_of(plan: Plan) -> dict[int, int]:
    """Return by transfer the number of the group, or replica step after all groups, that it belongs to."""
    return {i: n for n, members in enumerate(_ends(plan)) for last in members for i in _before(plan, last)}


def _places(plan: Plan) -> dict[int, int]:
    """By transfer, its place when each sum is followed back, branch after branch, the short ones first."""
    found: dict[int, int] = {}
    for last in (last for ends in _ends(plan) for last in ends):
        for i in _before(plan, last):
            found.setdefault(i, len(found))
    return found


def _ends(plan: Plan) -> list[tuple[int, ...]]:
    return [*(group.last for group in plan.groups), *(step.transfers for step in plan.replica_steps)]


def _before(plan: Plan, last: int) -> Iterator[int]:
    """Yield a transfer and all that its content comes through."""
    waiting = [last]
    while waiting:
        i = waiting.pop()
        yield i
        waiting += sorted(plan.transfers[i].inputs, key=lambda k: (-len(plan.transfers[k].members), -k))


def _later(transfers: Sequence[Transfer]) -> list[int]:
    """How many transfers carry each one's content on, one after the other."""
    found = [0] * len(transfers)
    for i in reversed(range(len(transfers))):
        for k in transfers[i].inputs:
            found[k] = max(found[k], found[i] + 1)
    return found


def _earlier(transfers: Sequence[Transfer]) -> list[int]:
    """How many transfers each one's content has come through, one after the other."""
    found: list[int] = []
    for transfer in transfers:
        found.append(max((found[k] + 1 for k in transfer.inputs), default=0))
    return found


def _peaks(plan: Plan, transfers: Sequence[Transfer], network: Network | None) -> dict[LinkId, int]:
    """What a full lane stands for, in bit/s."""
    changes: dict[LinkId, list[tuple[int, int]]] = {}
    for transfer in transfers:
        for link in transfer.path:
            for start_ns, end_ns, bps in transfer.profile.pieces:
                changes.setdefault(link, []).extend([(start_ns, bps), (end_ns, -bps)])
    peaks = {}
    for link, steps in changes.items():
        used = most = 0
        for _, bps in sorted(steps):
            used += bps
            most = max(most, used)
        known = network.rate_bps(link, plan.state.now_ns) if network is not None else 0
        peaks[link] = max(known, most)
    return {link: peaks.get(link, 1) for transfer in transfers for link in transfer.path}


def _stacked(transfers: Sequence[Transfer], crossing: Sequence[int], peak: int) -> list[Bar]:
    """Put what crosses a link at the same time on top of one another; join what goes on unchanged."""
    pieces = [(i, *piece) for i in crossing for piece in transfers[i].profile.pieces]
    instants = sorted({t for _, start_ns, end_ns, _ in pieces for t in (start_ns, end_ns)})
    bars: list[Bar] = []
    open_at: dict[int, int] = {}
    active: list[tuple[int, int, int, int]] = []
    pieces.sort(key=lambda piece: piece[1])
    upcoming = 0
    for start_ns, end_ns in pairwise(instants):
        active = [piece for piece in active if piece[2] > start_ns]
        while upcoming < len(pieces) and pieces[upcoming][1] <= start_ns:
            active.append(pieces[upcoming])
            upcoming += 1
        used = 0
        for i, _, _, bps in sorted(active):
            bar = Bar(i, start_ns, end_ns, used / peak, bps / peak)
            used += bps
            last = open_at.get(i)
            if last is not None and bars[last][2:] == (start_ns, *bar[3:]):
                bars[last] = bars[last]._replace(end_ns=end_ns)
            else:
                open_at[i] = len(bars)
                bars.append(bar)
    return bars
