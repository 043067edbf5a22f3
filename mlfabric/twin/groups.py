"""What a plan sends to the server: transfers, and the groups of updates that reach it as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning import Plan, Transfer
from mlfabric.scheduler.records import OVERDUE_SLACK_NS
from mlfabric.scheduler.reservations import QUARTER
from mlfabric.scheduler.updates.ingress_queue import Coming
from mlfabric.twin.planned import Legs, Order, Way

__all__ = ["Gathering", "Group", "Leg", "Name", "Prepared", "Update", "drifted", "prepare"]


class Update(NamedTuple):
    """A worker's update of a step; ``computed_from`` is the version of the model that it was computed with."""

    worker: int
    step: int
    computed_from: int


Name = tuple[int, int]
"""Of an update: its worker, and its step (0 in a plan that is made for any step)."""


class Gathering(NamedTuple):
    """A group of a plan: its members, the places of its transfers, the root first, none if it is on its way already;
    when its first update begins and all of it is there, and how many of its transfers follow one another."""

    members: tuple[Name, ...]
    places: tuple[int, ...]
    begin_ns: int
    arrive_ns: int
    hops: int


class Prepared(NamedTuple):
    """A plan as transfers."""

    transfers: list[Transfer]
    legs: Legs
    groups: list[Gathering]


class Leg(NamedTuple):
    """A transfer on its way: the key of its reservation, the worker whose host sends it, when it is planned to begin
    and end, and its way, None if nothing is reserved."""

    key: int
    sender: int
    start_ns: int
    end_ns: int
    way: Way | None


@dataclass(slots=True, eq=False, kw_only=True)
class Group:
    """Updates that reach the server as one.

    Args:
        root: number of the transfer that ends there; start_ns, end_ns: when that is planned to begin and end.
        flows: all transfers of it that have not arrived.
        due_ns: when it is planned to be there.
        patience_ns: how much later than planned it becomes overdue.
        known: the rates that it was planned with.
        begin_ns: when the first of its updates is planned to begin.
    """

    members: tuple[Update, ...]
    root: int
    flows: dict[int, Leg]
    due_ns: float
    patience_ns: float
    start_ns: int
    end_ns: int
    begin_ns: int
    known: NDArray[np.int64]
    received: bool = False
    is_late: bool = False

    @property
    def is_lone(self) -> bool:
        """Whether it is one update, which goes by itself."""
        return len(self.members) == 1

    def expected_ns(self, now_ns: float) -> float:
        """Return when it is to be there as far as anybody knows."""
        if self.received:
            return now_ns
        return now_ns + self._again_ns if self.is_overdue(now_ns) else self.due_ns

    def is_overdue(self, now_ns: float) -> bool:
        """Tell whether a lone update should have been there for a while."""
        return self.is_lone and not self.received and now_ns >= self.due_ns + self.patience_ns

    def put_off(self, now_ns: float) -> None:
        """Expect one that is overdue later, and have more patience with it."""
        self.due_ns = now_ns + self._again_ns
        self.patience_ns *= 2
        self.is_late = True

    def put_off_behind(self, now_ns: float) -> None:
        """Grant a sum its time once more: what was before it has only now made way."""
        if not self.is_lone:
            self.due_ns = max(self.due_ns, now_ns + self.end_ns - self.start_ns)

    def coming(self, needs_ns: int) -> Coming:
        """Return what the server's link has to do for it, which takes so long if it has nothing else to do."""
        end_ns = int(self.due_ns) if self.is_late else self.end_ns
        return Coming(end_ns, needs_ns, shares=self.end_ns - self.start_ns > 2 * needs_ns)

    def is_off(self, known: NDArray[np.int64], now_ns: float) -> bool:
        """Tell whether links that it is to go over have become faster or slower by a quarter since it was planned."""
        if known is self.known:
            return False
        ahead = [link for leg in self.flows.values() if leg.start_ns > now_ns and leg.way for link in leg.way.links]
        return bool(ahead) and bool(drifted(self.known[ahead], known[ahead]).any())

    @property
    def _again_ns(self) -> float:
        return max(self.patience_ns, OVERDUE_SLACK_NS)


def drifted(then: NDArray[np.int64], now: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which links have become faster or slower by a quarter."""
    found: NDArray[np.bool_] = np.abs(now - then) * QUARTER > then
    return found


def prepare(found: Plan, order: Order, workers: Mapping[str, int]) -> Prepared:
    """Make transfers of a plan; what is on its way already is none of them, and is no input of any.

    Args:
        workers: numbers by name.
    """
    everything, gathered = list(found.transfers), list(found.groups)
    place_of = {n: place for place, n in enumerate(n for n, transfer in enumerate(everything) if transfer.planned)}
    transfers = everything if len(place_of) == len(everything) else _renumbered(everything, place_of)
    roots = {place_of[last] for group in gathered for last in group.last if last in place_of}
    legs = order.legs(transfers, roots)
    groups = []
    for group in gathered:
        members = tuple((workers[member.worker], member.counter) for member in group.members)
        groups.append(_gathering(transfers, members, place_of.get(group.last[0])))
    return Prepared(transfers, legs, groups)


def _renumbered(transfers: Sequence[Transfer], place_of: Mapping[int, int]) -> list[Transfer]:
    """Return what is to be sent, each with its inputs by their places among these."""
    return [
        replace(transfers[n], inputs=tuple(place_of[i] for i in transfers[n].inputs))
        if transfers[n].inputs
        else transfers[n]
        for n in place_of
    ]


def _gathering(transfers: Sequence[Transfer], members: tuple[Name, ...], root: int | None) -> Gathering:
    if root is None:
        return Gathering(members, (), 0, 0, 1)
    places = [root]
    for place in places:  # grows while it is walked
        places += transfers[place].inputs
    begin_ns = min([_begin_ns(transfers, place) for place in places])
    return Gathering(members, tuple(places), begin_ns, transfers[root].arrive_ns, _hops(transfers, root))


def _begin_ns(transfers: Sequence[Transfer], place: int) -> int:
    """Return when the first update of a transfer begins that no other one brings; what is there already, at once."""
    transfer = transfers[place]
    if not transfer.inputs and len(transfer.members) == 1:
        return transfer.profile.start_ns
    if len(transfer.members) > sum(len(transfers[i].members) for i in transfer.inputs) + (not transfer.inputs):
        return transfer.ready_ns
    return transfer.profile.start_ns


def _hops(transfers: Sequence[Transfer], root: int) -> int:
    """Return how many transfers follow one another on the longest way."""
    inputs = transfers[root].inputs
    return 1 + max([_hops(transfers, place) for place in inputs]) if inputs else 1
