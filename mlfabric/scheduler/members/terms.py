"""Which of several schedulers is the newest, and what an older one does when it learns of a newer one. Pure.

A scheduler's term is a number and an instance drawn at random. Members show the newest term that they were admitted
under whenever they register, and now and then to the other schedulers that they know of. Who is shown a newer one has
been succeeded: it decides nothing any more, and ends. Only who has admitted nobody yet may still *rise* above what is
shown by one who wants to join: its own clock or file was behind. So does the greater instance of two that took the same
number, for identities of sums, rounds and gets hold only that.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.model.specs import Term

__all__ = ["Verdict", "verdict"]


class Verdict(Enum):
    """What becomes of a scheduler that is shown a term."""

    STAYS = "it is the newest"
    RISES = "it begins anew under a greater term"
    FENCED = "it has been succeeded, and ends"


def verdict(own: Term, seen: Term, *, may_rise: bool) -> Verdict:
    """Say what becomes of the scheduler of term ``own`` when it is shown ``seen``.

    Args:
        may_rise: its own term is not in use yet, and who shows this wants to join.
    """
    if seen.number < own.number or seen == own:
        return Verdict.STAYS
    if may_rise or (seen.number == own.number and own > seen):
        return Verdict.RISES
    return Verdict.FENCED
