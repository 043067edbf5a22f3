"""Which commits wait for the replica, and which of its steps are kept for that (paper, section 5.3, mended).

All commits of interest are one sequence: first those that the replica is behind already, then the plan's. The replica
holds a prefix of it, step by step; the lead is what it does not hold of all that is committed at an instant.

A step of several updates is one sum, of which the replica can make no use before the log has all of them. So a step
counts from the instant on at which it has arrived and its last member is committed, and where a commit within a step
would go too far alone, it and the rest of that step are committed at one instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import NamedTuple, Self

from mlfabric.divergence import Lead, Limit
from mlfabric.scheduler.planning.forwarding import Forwarding

__all__ = ["Gated", "Steps", "gate"]


class Steps(NamedTuple):
    """What the replica could get, step by step.

    ``end``: how many of the sequence it holds with this step and all before it. ``arrive_ns``: when the step itself has
    arrived. ``there_ns``: when all before it have, too. ``transfers``: how many these take together.
    """

    end: Sequence[int]
    arrive_ns: Sequence[int]
    there_ns: Sequence[int]
    transfers: Sequence[int]

    @classmethod
    def of(cls, forwarding: Forwarding, folded: int, behind: int) -> Self:
        """Make each group a step, but one of all groups that have a share in what was pending; none if that lacks any.

        Args:
            forwarding: whose first ``folded`` items are the first ``behind`` of the sequence; group after group in its
                transfers.
        """
        end: list[int] = []
        arrive_ns: list[int] = []
        transfers: list[int] = []
        arrivals = forwarding.arrive_ns.tolist()
        if len(arrivals) < folded:
            return cls((), (), (), ())
        for (first, after), last in zip(forwarding.groups, forwarding.last, strict=True):
            if end and first < folded:
                arrive_ns[0], end[0], transfers[0] = max(arrive_ns[0], arrivals[first]), after, last + 1
            else:
                arrive_ns.append(arrivals[first])
                end.append(after)
                transfers.append(last + 1)
        return cls([n - folded + behind for n in end], arrive_ns, list(accumulate(arrive_ns, max)), transfers)


class Gated(NamedTuple):
    """When commits are made, and how many steps are kept.

    ``commit_ns``: by commit; shorter than asked for if the next one cannot be made. ``waits_for``: by commit, the step
    that it waits for, be it to arrive or to be committed with it; -1 if it is made as soon as it could be.
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
    now_ns, counted, held = 0, 0, 0
    while (first := len(commit_ns)) < len(arrive_ns):
        most = min(limit.most(lead, held) - behind, len(arrive_ns))
        if first < most:
            late = bisect_left(arrive_ns, now_ns, first, most)
            commit_ns += [*repeat(now_ns, late - first), *arrive_ns[late:most]]
            waits_for += repeat(-1, most - first)
            now_ns = commit_ns[-1]
            continue
        committed, before_ns = behind + first + 1, now_ns
        now_ns = max(now_ns, arrive_ns[first])
        while counted < kept and there_ns[counted] <= now_ns and end[counted] <= committed:
            held, counted = end[counted], counted + 1
        while committed > limit.most(lead, held):
            if counted == len(end):
                return Gated(commit_ns, waits_for, kept)
            held, now_ns = end[counted], max(now_ns, there_ns[counted])
            committed, counted = max(committed, held), counted + 1
        kept = max(kept, counted)
        now_ns = max(now_ns, arrive_ns[committed - behind - 1])
        most = committed - behind
        late = bisect_left(arrive_ns, now_ns, first, most) if now_ns > before_ns else first
        commit_ns += repeat(now_ns, most - first)
        waits_for += [*repeat(counted - 1, late - first), *repeat(-1, most - late)]
    return Gated(commit_ns, waits_for, kept)
