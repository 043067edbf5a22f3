"""Which commits wait for the replica, and which of its steps are kept for that (paper, section 5.3, mended).

All commits form one sequence: first those that the replica lacks already, then the plan's. The replica holds a prefix
of it, step by step. The lead at an instant is what is committed and not held.

A plan sends steps: first all updates that the replica lacks, as one step, then one step for each update. A step counts
when it and all before it have arrived and it is committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import NamedTuple, Self

from mlfabric.model.divergence import Lead, Limit

__all__ = ["Gated", "Steps", "gate"]


class Steps(NamedTuple):
    """The steps that the replica could get.

    ``end``: how many of the sequence it holds with this step and all before it. ``arrive_ns``: when the step itself has
    arrived. ``there_ns``: when all before it have arrived, too. ``transfers``: how many these take together.
    """

    end: Sequence[int]
    arrive_ns: Sequence[int]
    there_ns: Sequence[int]
    transfers: Sequence[int]

    @classmethod
    def of(cls, arrive_ns: Sequence[int], folded: int, behind: int) -> Self:
        """Make one step of the folded items, if any, and one of each other item; none if a folded item is missing.

        Args:
            arrive_ns: by item; the first ``folded`` are the first ``behind`` of the sequence.
        """
        if len(arrive_ns) < folded:
            return cls((), (), (), ())
        first = [max(arrive_ns[:folded])] if folded else []
        steps_ns = [*first, *arrive_ns[folded:]]
        ends = [behind + 1 - len(first) + n for n in range(len(steps_ns))]
        return cls(ends, steps_ns, list(accumulate(steps_ns, max)), [end - behind + folded for end in ends])


class Gated(NamedTuple):
    """When commits are made, and how many steps are kept.

    ``commit_ns``: by commit; shorter than the sequence if the next one cannot be made. ``waits_for``: by commit, the
    step that it waits for; -1 if it is made as soon as it could be.
    """

    commit_ns: list[int]
    waits_for: list[int]
    kept: int


def gate(lead: Lead, limit: Limit, steps: Steps, arrive_ns: Sequence[int], behind: int) -> Gated:
    """Let each commit wait for the first steps with which the lead stays within its limit.

    Args:
        lead: of the whole sequence.
        arrive_ns: when each commit could be made, ascending.
        behind: how many of the sequence were committed before.
    """
    end, there_ns = steps.end, steps.there_ns
    kept = bisect_right(there_ns, arrive_ns[-1]) if arrive_ns else 0
    commit_ns: list[int] = []
    waits_for: list[int] = []
    now_ns, counted, held, may = 0, 0, 0, limit.most(lead, 0)
    while (first := len(commit_ns)) < len(arrive_ns):
        most = min(may - behind, len(arrive_ns))
        if first < most:
            late = bisect_left(arrive_ns, now_ns, first, most)
            commit_ns += [*repeat(now_ns, late - first), *arrive_ns[late:most]]
            waits_for += repeat(-1, most - first)
            now_ns = commit_ns[-1]
            continue
        committed, could_ns, before = behind + first + 1, max(now_ns, arrive_ns[first]), counted
        now_ns = could_ns
        while counted < kept and there_ns[counted] <= now_ns and end[counted] <= committed:
            held, counted = end[counted], counted + 1
        may = limit.most(lead, held) if counted > before else may
        while committed > may:
            if counted == len(end):
                return Gated(commit_ns, waits_for, kept)
            held, now_ns, counted = end[counted], max(now_ns, there_ns[counted]), counted + 1
            may = limit.most(lead, held)
        kept = max(kept, counted)
        commit_ns.append(now_ns)
        waits_for.append(counted - 1 if now_ns > could_ns else -1)
    return Gated(commit_ns, waits_for, kept)
