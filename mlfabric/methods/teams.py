"""Random groups around those workers whose links are fast: gossip where links differ. Pure.

In a ring each worker sends its model to two others and gets two, over a slow link as over a fast one. Here each group
of workers comes to its mean: one, the *collector*, gets the models of the others and sums; it hands the sum to another
one, the *giver*, and that hands it to the rest. So only the collector's way down and the giver's way up carry several
models, and all other links one. Both are chosen for that; whom they have beside them is drawn anew for each round.

In a group of g workers one part in g of the squared distance from the mean of all is left; a random ring, in which each
averages with two others, leaves a little less than one part in three. So groups have three, or more where that is not
enough. With three a round takes no longer than in a ring, whatever links really carry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

__all__ = ["MOST_WORSE", "Link", "Team", "ring_contraction", "teams"]

MOST_WORSE = 1.1
"""How many times the contraction of a random ring that of groups is at most, as it is to be expected."""
_LARGEST = 8
"""So many are in a group at most, if fewer bring models together as fast: a link that becomes slow holds up all."""
_TRIES = 8
_IN_RING = 2
"""So many models each link carries in a ring, each way."""


class Link(NamedTuple):
    """What a worker's link carries, in any unit, above 0."""

    up: float
    down: float


class Team(NamedTuple):
    """Workers that come to the mean of their models, by their numbers; of two, the second one is the giver.

    ``time`` is how long that takes at least, in models over the unit of links.
    """

    collector: int
    giver: int
    others: tuple[int, ...]
    time: float


def ring_contraction(workers: int) -> float:
    """Return what a random ring leaves of the squared distance from the mean, as it is to be expected; 0 for one."""
    return max(0.0, (workers - 3) / (3 * (workers - 1))) if workers > 1 else 0.0


def teams(links: Sequence[Link], version: int) -> list[Team]:
    """Return the groups of a round; each worker is in one.

    There are as many groups as make the round shortest; of equal ways, as many as possible. There are none if all
    of them take longer than a ring.

    Args:
        links: of each worker; at least two.
        version: that the round makes; whom a team has is drawn from it.
    """
    workers, draw = len(links), Random(f"teams/{version}")
    order = list(range(workers))
    draw.shuffle(order)
    most = _most_groups(workers)
    least = min(most, math.ceil(workers / _LARGEST))
    counts = sorted({most - (most - least) * i // _TRIES for i in range(_TRIES + 1)}, reverse=True)
    one_model = 1 / min(min(link) for link in links)
    best, shortest = list[Team](), _IN_RING * one_model
    for count in counts:
        groups = _grouped(links, order, count)
        time = max(team.time for team in groups)
        if time < shortest or (time == shortest and not best):
            best, shortest = groups, time
        if shortest <= one_model:
            break
    return best


def _most_groups(workers: int) -> int:
    """Return how many groups there may be, so that they mix nearly as fast as a random ring."""
    left = MOST_WORSE * ring_contraction(workers)
    return workers // math.ceil(1 / left) if left * workers >= 1 else 1


def _grouped(links: Sequence[Link], order: Sequence[int], count: int) -> list[Team]:
    """Make so many groups; of workers with equal links the first in this order are chosen.

    A collector is one with a fast way down, of those rather one with a slow way up: a giver needs that.
    """
    level = [Link(round(math.log2(link.up)), round(math.log2(link.down))) for link in links]
    place = {worker: at for at, worker in enumerate(order)}
    by_down = sorted(order, key=lambda worker: (-level[worker].down, level[worker].up))
    collectors, others = by_down[:count], by_down[count:]
    others.sort(key=lambda worker: (-level[worker].up, level[worker].down, place[worker]))
    givers, others = others[:count], others[count:]
    for chosen in (collectors, givers, others):
        chosen.sort(key=lambda worker: place[worker])
    return [
        _team(links, collector, giver, others[i::count])
        for i, (collector, giver) in enumerate(zip(collectors, givers, strict=True))
    ]


def _team(links: Sequence[Link], collector: int, giver: int, others: Sequence[int]) -> Team:
    models = 1 + len(others)
    slowest = min(min(links[worker]) for worker in (collector, giver, *others))
    time = max(models / links[collector].down, models / links[giver].up, 1 / slowest)
    return Team(collector, giver, tuple(others), time)
