"""Which commits wait for the replica, and which of its steps are kept for that (paper, section 5.3, mended).

All commits form one sequence: first those that the replica lacks already, then the plan's. The replica holds a prefix
of it, step by step. The lead at an instant is what is committed and not held.

A plan sends steps: first all updates that the replica lacks, as one step, then one step for each update. A step counts
when it and all before it have arrived and it is committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
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
        steps_ns, end = [*first, *arrive_ns[folded:]], behind + 1 - len(first)
        ends = range(end, end + len(steps_ns))
        begin = end - behind + folded
        return cls(ends, steps_ns, list(accumulate(steps_ns, max)), range(begin, begin + len(steps_ns)))


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
    most = limit.most(lead, [0, *end])
    now_ns, counted, may = 0, 0, most[0]
    for committed, arrived_ns in enumerate(arrive_ns, start=behind + 1):
        could_ns = now_ns = arrived_ns if arrived_ns > now_ns else now_ns
        if committed > may:
            while counted < kept and there_ns[counted] <= now_ns and end[counted] <= committed:
                counted += 1
            while committed > most[counted]:
                if counted == len(end):
                    return Gated(commit_ns, waits_for, kept)
                now_ns, counted = max(now_ns, there_ns[counted]), counted + 1
            may, kept = most[counted], max(kept, counted)
        commit_ns.append(now_ns)
        waits_for.append(counted - 1 if now_ns > could_ns else -1)
    return Gated(commit_ns, waits_for, kept)
