"""Why an update is left out of a batch, in words with figures."""

from __future__ import annotations

from mlfabric.planning.plan_values import Candidate, Left
from mlfabric.protocol import DropReason

__all__ = ["crowded_out", "too_late", "unreachable"]


def too_late(candidate: Candidate, v_init: int, tau_max: int | None) -> Left:
    """Leave out an update that is too old for any position."""
    detail = f"its delay would be {v_init - candidate.computed_from} or more, the bound is {tau_max}"
    return Left(update=candidate.update, cause=DropReason.DEADLINE_PAST, reason=detail)


def unreachable(candidate: Candidate) -> Left:
    """Leave out an update that cannot be sent before the horizon."""
    detail = f"nothing passes from {candidate.source} to the server"
    return Left(update=candidate.update, cause=DropReason.NO_CAPACITY, reason=detail)


def crowded_out(candidate: Candidate, took_ns: int) -> Left:
    """Leave out the slowest of the updates that compete for the positions up to one."""
    takes = f"it takes {took_ns / 1e6:.1f} ms from {candidate.source}"
    detail = f"more updates are due by its deadline than fit; the slowest of them is left out: {takes}"
    return Left(update=candidate.update, cause=DropReason.DEADLINE_CONFLICT, reason=detail)
