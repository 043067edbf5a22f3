"""How far a primary can be from what its replica can recover: bounds that are never below the truth (paper, 5.3). Pure.

A *lead* is the commits that the replica does not hold. Its length as a path, the sum of the steps' norms, bounds the
distance. Of a commit that was made the step's norm is known. Of a planned one it is bounded: under ``h <- gamma*h + u;
w <- w + h`` step i moves the model by

    |h_i| <= H_i = gamma * H_(i-1) + |u_i|,        H_0 = |h_0|, the history after the last commit made.

The sum of H_(a+1) to H_b is the bound of the design (section 5) for the lead of a+1..b, with H_a for the history at its
beginning. It is reached if the history and all updates point the same way.

A bound that is rounded the wrong way is none. So norms become whole numbers of ``2**-100``, rounded up, and all that
follows is exact or rounded up; sums from the first commit on can be subtracted without loss. Limits are rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from mlfabric.errors import UsageError

__all__ = ["Adam", "Lead", "Limit", "Momentum", "Units", "as_norm", "units_above", "units_below"]

Units = int
"""A norm as a whole number of ``2**-100``."""

UNIT_BITS = 100
HUGE = 2.0**900
BEYOND_EVERY_LIMIT: Units = 1 << 4000
MOST_UNITS_OF_A_FLOAT: Units = 1 << 1023


def units_above(norm: float) -> Units:
    """Return the least units that are not below a norm; from 2**900 on it is beyond every limit.

    Raises:
        UsageError: a negative norm, or not a number.
    """
    if 0 <= norm < HUGE:
        return math.ceil(math.ldexp(norm, UNIT_BITS))
    if norm >= HUGE:
        return BEYOND_EVERY_LIMIT
    raise UsageError(f"norm {norm}; allowed: 0 or more")


def units_below(limit: float) -> Units | None:
    """Return the most units that are not above a limit; None (no limit) from 2**900 on.

    Raises:
        UsageError: a negative limit, or not a number.
    """
    if 0 <= limit < HUGE:
        return math.floor(math.ldexp(limit, UNIT_BITS))
    if limit >= HUGE:
        return None
    raise UsageError(f"limit {limit} of a divergence; allowed: 0 or more")


def as_norm(units: Units) -> float:
    """Return units as a norm, for people to read."""
    return math.ldexp(units, -UNIT_BITS) if units < MOST_UNITS_OF_A_FLOAT else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """The rule ``h <- gamma*h + u; w <- w + h``; plain SGD with gamma 0."""

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise UsageError(f"gamma={self.gamma}; allowed: 0 to below 1")

    def step_bound(self, norms: Iterable[float], history_norm: float) -> list[Units]:
        """Bound each of the steps that come next.

        Args:
            norms: l2 norms of the updates, in the order of commits.
            history_norm: l2 norm of h before the first of them.

        Raises:
            UsageError: a norm that is negative or not a number.
        """
        # gamma is numerator / 2**shift, exactly.
        numerator, denominator = self.gamma.as_integer_ratio()
        shift = denominator.bit_length() - 1
        bound, bounds = units_above(history_norm), []
        for norm in norms:
            bound = units_above(norm) - (-bound * numerator >> shift)
            bounds.append(bound)
        return bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam with bias correction, one step for each group in the log.

    By Cauchy and Schwarz, ``|m_t|`` is at most ``(1-beta1) sqrt(sum_{k<t} r^k) / sqrt(1-beta2) * sqrt(v_t)`` for every
    element, with ``r = beta1^2 / beta2``, whatever the gradients are; epsilon only shortens the step.

    Args:
        lr: the largest learning rate in question.
        elements: of the model.
    """

    lr: float
    elements: int
    beta1: float = 0.9
    beta2: float = 0.999

    def step_bound(self, norms: Sequence[float], steps_before: int) -> list[Units]:
        """Bound each of the steps that come next.

        Args:
            norms: one for each step; what they are does not matter.
            steps_before: how many steps this Adam has made.
        """
        return [self._bound(steps_before + n) for n in range(1, len(norms) + 1)]

    def _bound(self, t: int) -> Units:
        ratio = self.beta1**2 / self.beta2
        ratios = float(t) if ratio == 1 else (1 - ratio**t) / (1 - ratio)
        element = (1 - self.beta1) * math.sqrt(ratios / (1 - self.beta2) * (1 - self.beta2**t)) / (1 - self.beta1**t)
        # Far more than what a dozen roundings take away.
        return units_above(self.lr * math.sqrt(self.elements) * element * (1 + 2**-30))


class Lead:
    """Bounds of all leads of a sequence of commits, each in O(1).

    Args:
        steps: norms of the first steps, or bounds of them.
    """

    def __init__(self, steps: Iterable[Units] = ()) -> None:
        self._path = list(accumulate(steps, initial=0))

    def append(self, step: Units) -> None:
        """Add the next commit."""
        self._path.append(self._path[-1] + step)

    def bound(self, held: int, committed: int) -> Units:
        """Bound the divergence when the first ``committed`` are made and the replica can recover the first ``held``.

        Args:
            held: 0 to ``committed``.
        """
        return self._path[committed] - self._path[held]


class Limit(NamedTuple):
    """How far a lead may go: its bound in units, and its length in commits; None for no such limit."""

    norm: Units | None
    commits: int | None

    @classmethod
    def of(cls, norm: float, commits: int | None) -> Self:
        """Make the limit of a bound; a norm of 0 means no lead at all, not even of steps of length 0.

        Args:
            norm: l2 distance, >= 0; infinite for no such limit.
            commits: >= 0; None for no such limit.

        Raises:
            UsageError: a norm that is negative or not a number.
        """
        return cls(units_below(norm), 0 if norm == 0 else commits)

    def part(self, share: float) -> Limit:
        """Return a share of it, 0 to 1; whole commits."""
        norm = None if self.norm is None else math.floor(share * self.norm)
        return Limit(norm, None if self.commits is None else math.floor(share * self.commits))

    def allows(self, lead: Lead, held: int, committed: int) -> bool:
        """Say whether the first ``committed`` may be made while the replica can recover the first ``held``."""
        if self.commits is not None and committed - held > self.commits:
            return False
        return self.norm is None or lead.bound(held, committed) <= self.norm
