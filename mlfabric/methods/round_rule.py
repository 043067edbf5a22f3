"""What a method decides of rounds without a server: when one begins, and what becomes of what comes late. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import Protocol

from mlfabric.values import dataclass

__all__ = ["Late", "Readiness", "RoundRule"]


class Late(Enum):
    """What becomes of a gradient that is not computed from the newest version."""

    JOINS = auto()
    """It joins the next round."""
    IS_KEPT = auto()
    """Its worker adds it to its next one."""
    IS_REPLACED = auto()
    """It is dropped, as its worker has the time for a new one."""
    IS_DROPPED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Which workers have a gradient for the next round; all have the newest version of the model, or soon will.

    Args:
        ready_ns: since when each of those has had it.
        computing_ns: since when each of the others has been computing.
        usual_ns: how long workers usually compute; None if that is unknown.
        version: that the round is to make, from 1.
        since_full: how many rounds were made since one with everybody.
        recent_ns: how long each worker's last steps took, as far as that is known.
        settled_ns: when the last round was settled.
        round_ns: how long a round usually takes; None if that is unknown.
    """

    ready_ns: Mapping[str, int]
    computing_ns: Mapping[str, int]
    usual_ns: int | None
    version: int
    since_full: int
    recent_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    settled_ns: int = 0
    round_ns: int | None = None

    @property
    def workers(self) -> list[str]:
        """All of them, sorted."""
        return sorted([*self.ready_ns, *self.computing_ns])


class RoundRule(Protocol):
    """A method's answers for one model.

    Attributes:
        most_waiting: how many results may wait at a worker to be applied, at the most; who is further behind fetches
            the model from a peer.
        waits_for_slow: rounds wait for a worker that is so far behind.
    """

    most_waiting: int
    waits_for_slow: bool

    @property
    def delay_bound(self) -> int | None:
        """How many rounds late a gradient is at the most that is in one; None for no bound."""

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Return when the next round may begin if nobody else becomes ready; None if it waits for somebody."""

    def late(self, delay: int, gradients: int, *, can_renew: bool = False) -> Late:
        """Say what becomes of what a worker offers.

        Args:
            delay: how many rounds were settled, or are being made without it, since the version that it was computed
                from.
            gradients: how many it is the sum of.
            can_renew: its worker would begin with a new one at the same moment as all others, and was in time before.
        """
