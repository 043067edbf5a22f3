"""The paper's own rule for drops (section 5.1.3, algorithm 2) for updates in parts; as ``paper.py`` for whole ones."""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.network import HORIZON_NS
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.fluid.lines import Lines
from mlfabric.scheduler.planning.parts import PartsReserver
from mlfabric.scheduler.planning.parts_contest import PartsContest

__all__ = ["order_parts_by_paper"]


def order_parts_by_paper(contest: PartsContest, reserver: PartsReserver, lines: Lines) -> tuple[list[int], Lines]:
    """Order a batch by algorithm 2; return who commits, by position, and what is free then."""
    waiting, by_position = _reachable(contest, reserver, lines), list[int]()
    for iteration in range(1, len(waiting) + 1):
        _leave_late(contest, waiting, len(by_position))
        chosen = _choose(contest, reserver, waiting, lines, iteration)
        if chosen is None:
            break
        i, end_ns = chosen
        waiting.remove(i)
        if i not in contest.flying:
            profiles, after = reserver.reserve_one(lines, i)
            if contest.due[i] == iteration:
                following = _choose(contest, reserver, waiting, after, iteration + 1)
                if following is not None and end_ns > following[1]:
                    faster, faster_ns = following
                    candidates = contest.candidates
                    contest.leave(i, leaving.overtaken(candidates[i], candidates[faster], end_ns - faster_ns))
                    continue
            contest.keep({i: profiles})
            lines = after
        by_position.append(i)
    for i in waiting:
        contest.leave_unreachable(i)
    return by_position, lines


def _reachable(contest: PartsContest, reserver: PartsReserver, lines: Lines) -> list[int]:
    """Leave who cannot come at all; return the others by rank."""
    waiting = []
    for i, end_ns in enumerate(contest.solo_ends(reserver, lines)):
        if i in contest.flying or end_ns < HORIZON_NS:
            waiting.append(i)
        else:
            contest.leave_unreachable(i)
    return waiting


def _leave_late(contest: PartsContest, waiting: list[int], placed: int) -> None:
    for i in [i for i in waiting if contest.due[i] <= placed]:
        waiting.remove(i)
        contest.leave(i, leaving.unplaced(contest.candidates[i], placed, contest.due[i]))


def _choose(
    contest: PartsContest, reserver: PartsReserver, waiting: Sequence[int], lines: Lines, due: int
) -> tuple[int, int] | None:
    """Choose who is due, else who is through first; return the index and when."""
    at_deadline = [i for i in waiting if contest.due[i] == due]
    return _first(contest, reserver, at_deadline, lines) or _first(contest, reserver, waiting, lines)


def _first(contest: PartsContest, reserver: PartsReserver, pool: Sequence[int], lines: Lines) -> tuple[int, int] | None:
    chosen = reserver.choose(lines, [i for i in pool if i not in contest.flying])
    found = [(contest.end_ns(i), i) for i in pool if i in contest.flying]
    if chosen is not None:
        found.append((chosen[1], chosen[0]))
    return min(found)[::-1] if found else None
