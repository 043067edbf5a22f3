"""How long updates of one model wait for one another: the rules, for the live scheduler and for its twin. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from mlfabric.scheduler.updates.pace import Pace

__all__ = [
    "EXPECTED_LATE_NS",
    "INGRESS_LEAD_NS",
    "NO_END_NS",
    "PATIENCE_SHARE",
    "Late",
    "Way",
    "committed_meanwhile",
    "group_cost_ns",
    "keep_open_until_ns",
    "patience_ns",
    "room_ns",
    "ways",
]

INGRESS_LEAD_NS = 2_000_000
EXPECTED_LATE_NS = 2_000_000
PATIENCE_SHARE = 0.5
"""How long a commit waits for an update that would else miss its deadline, of the time that one takes to come in."""
NO_END_NS = 1 << 60


def keep_open_until_ns(expected_ns: Iterable[int], count: int, least_ns: int, now_ns: int) -> int | None:
    """Return until when a batch that could be summed now waits for others; None if it is to be closed.

    It takes a sum ``least_ns`` to come in, and what comes later goes into the next one. So it pays to wait for the next
    n updates if ``(count + n) * wait < n * least_ns``: those here lose less than the others gain.

    Args:
        expected_ns: when workers that compute are to push, in any order.
        count: how many updates the batch has.
    """
    coming = sorted(ns for ns in expected_ns if now_ns < ns < now_ns + least_ns)
    for n, at_ns in enumerate(coming, start=1):
        if (count + n) * (at_ns - now_ns) < n * least_ns:
            return at_ns + EXPECTED_LATE_NS
    return None


def patience_ns(pace: Pace, workers: Iterable[str], least_ns: int) -> int:
    """Return how long others wait for a transfer with updates of these workers that would else miss its deadline."""
    return NO_END_NS if any(map(pace.is_waited_for, workers)) else int(PATIENCE_SHARE * least_ns)


def committed_meanwhile(pace: Pace, takes_ns: int, least_ns: int) -> float:
    """Return about how many updates are committed while one comes in that takes so long, for none waits longer."""
    return pace.commits_in(takes_ns - int(PATIENCE_SHARE * least_ns))


def room_ns(stay_ns: Iterable[int], least_ns: int, now_ns: int) -> int:
    """Return for how long the server's link must have room before a batch is closed.

    As long as one transfer takes, whatever is reserved later: sums of slow updates are planned for the end of these,
    and who is committed before does not wait for them. But behind what does not make way, a batch that is closed early
    gains nothing, or has that given up; it stays open for more updates until all that is reserved is there.

    Args:
        stay_ns: when what does not make way for the batch is expected at the server, in any order.
        least_ns: how long a transfer takes to come in if the link has nothing else to do.
    """
    latest_ns = now_ns + least_ns + int(PATIENCE_SHARE * least_ns)
    return NO_END_NS if any(ns > latest_ns for ns in stay_ns) else least_ns


def group_cost_ns(least_ns: int, others: int) -> int:
    """Return what each further group of a plan costs: how long it holds up the updates of others that come soon.

    Args:
        others: how many workers have none in the batch; about half of theirs find the server's link busy with it.
    """
    return least_ns * max(0, others) // 2


class Way(Enum):
    """What becomes of a transfer that comes later than something new could."""

    STAYS = "others wait for it"
    BEHIND = "it is committed after everything new"
    TOO_LATE = "it cannot be, and others would have to wait for too long"


class Late(NamedTuple):
    """Such a transfer: the versions that its updates were computed from, when it is expected, how long others wait."""

    computed_from: Sequence[int]
    due_ns: int
    latest_ns: int


def ways(late: Sequence[Late], place: int, tau_max: int) -> list[Way]:
    """Choose what becomes of late transfers, first come first.

    Args:
        place: the version that the first update would find after everything new.
    """
    found = []
    for transfer in late:
        if all(place + i - version <= tau_max for i, version in enumerate(transfer.computed_from)):
            found.append(Way.BEHIND)
        else:
            found.append(Way.TOO_LATE if transfer.due_ns > transfer.latest_ns else Way.STAYS)
        if found[-1] is not Way.TOO_LATE:
            place += len(transfer.computed_from)
    return found
