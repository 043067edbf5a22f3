"""How far a primary can be from what its replica can recover: bounds that are never below the truth (paper, 5.3). Pure.

A *lead* is the commits that the replica does not hold. Its length as a path, the sum of the steps' norms, bounds the
distance. Of a commit that was made the step's norm is known. Of a planned one it is bounded: under ``h <- gamma*h + u;
w <- w + h`` step i moves the model by

    |h_i| <= H_i = gamma * H_(i-1) + |u_i|,        H_0 = |h_0|, the history after the last commit made.

The sum of H_(a+1) to H_b is the bound of the design (section 5) for the lead of a+1..b, with H_a for the history at its
beginning. It is reached if the history and all updates point the same way. :func:`step_bound` does the same for every
rule, from the norms of gradients: with weight decay the weights take part (W_i is at least |w_i|), ::

    |h_i| <= H_i = gamma * H_(i-1) + lr_i * (|g_i| + wd * W_(i-1))
    |w_i| <= W_i = |1 - lr_i * wd| * W_(i-1) + gamma * H_(i-1) + lr_i * |g_i|

and a step of ADAM is bounded whatever its gradients are, see :class:`Adam`; where its decay is decoupled, by ``lr_i *
wd * W_(i-1)`` more. All of it is about the PARAMETER tensors:
buffers and counters are values, not steps, and no norm counts them.

A bound that is rounded the wrong way is none. So norms become whole numbers of ``2**-100``, rounded up, and all that
follows is exact or rounded up; sums from the first commit on can be subtracted without loss. Limits are rounded down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from mlfabric.errors import UsageError
from mlfabric.model.update_rules import RuleKind, RuleSpec

__all__ = [
    "Adam",
    "Lead",
    "Limit",
    "RuleState",
    "Units",
    "as_norm",
    "step_bound",
    "units_above",
    "units_below",
]

Units = int
"""A norm as a whole number of ``2**-100``."""

UNIT_BITS = 100
HUGE = 2.0**900
BEYOND_EVERY_LIMIT: Units = 1 << 4000
MOST_UNITS_OF_A_FLOAT: Units = 1 << 1023
_LARGEST_EXPONENT = 700.0


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
class Adam:
    """Adam with bias correction, one step for each group in the log.

    By Cauchy and Schwarz, ``|m_t|`` is at most ``(1-beta1) sqrt(sum_{k<t} r^k) / sqrt(1-beta2) * sqrt(v_t)`` for every
    element, with ``r = beta1^2 / beta2``, whatever the gradients are; epsilon only shortens the step.

    Args:
        elements: of the PARAMETER tensors.
    """

    elements: int
    beta1: float = 0.9
    beta2: float = 0.999

    def step_bound(self, lrs: Sequence[float], steps_before: int) -> list[Units]:
        """Bound each of the steps that come next.

        Args:
            lrs: learning rate of each.
            steps_before: how many steps this Adam has made.
        """
        return [self._bound(lr, steps_before + n) for n, lr in enumerate(lrs, 1)]

    def _bound(self, lr: float, t: int) -> Units:
        if lr == 0:
            return 0
        squares = self._sum_of_powers(t) / (1 - self.beta2) * (1 - self.beta2**t)
        element = (1 - self.beta1) * math.sqrt(squares) / (1 - self.beta1**t)
        # Far more than what a dozen roundings take away.
        return units_above(lr * math.sqrt(self.elements) * element * (1 + 2**-30))

    def _sum_of_powers(self, count: int) -> float:
        """Return the sum of r^k for k below ``count``; infinite beyond what a float can hold."""
        if self.beta1 == 0 or count == 1:
            return 1.0
        ratio = self.beta1**2 / self.beta2 if self.beta2 else math.inf
        if ratio == 1:
            return float(count)
        if ratio > 1 and count * math.log(ratio) > _LARGEST_EXPONENT:
            return math.inf
        return float((1 - ratio**count) / (1 - ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """What a bound has to know of a model besides the updates to come.

    Args:
        history_norm: l2 norm of the momentum's history at the server; 0 without.
        weights_norm: l2 norm of the PARAMETER tensors, or a bound of it; asked for by weight decay alone.
        steps: how many steps ADAM made.
        elements: of the PARAMETER tensors; asked for by ADAM alone.
    """

    history_norm: float = 0.0
    weights_norm: float = 0.0
    steps: int = 0
    elements: int = 0


def step_bound(rule: RuleSpec, norms: Sequence[float], lrs: Sequence[float], state: RuleState) -> list[Units]:
    """Bound the l2 norm of each of the steps that come next, over the PARAMETER tensors.

    Args:
        rule: of the model.
        norms: l2 norm of each update over the PARAMETER tensors, as its worker tells it: after clipping, and of the
            velocity where workers keep the momentum. ADAM: of each logged group any number, which is not looked at.
        lrs: learning rate of each step, as planned.
        state: before the first of them.

    Raises:
        UsageError: a norm that is negative or not a number, or not as many learning rates.
    """
    if len(lrs) != len(norms):
        raise UsageError(f"{len(lrs)} learning rates for {len(norms)} steps; allowed: one for each")
    if rule.kind is RuleKind.ADAM:
        return _adam_bound(rule, lrs, state)
    return _linear_bound(rule, norms, lrs, state)


def _adam_bound(rule: RuleSpec, lrs: Sequence[float], state: RuleState) -> list[Units]:
    steps = Adam(elements=state.elements, beta1=rule.beta1, beta2=rule.beta2).step_bound(lrs, state.steps)
    if not rule.decoupled:
        return steps
    weights, bounds = units_above(state.weights_norm), []
    for step, lr in zip(steps, lrs, strict=True):
        bounds.append(step + _times_above(_times_above(weights, rule.weight_decay), lr))
        weights += bounds[-1]
    return bounds


def _linear_bound(rule: RuleSpec, norms: Sequence[float], lrs: Sequence[float], state: RuleState) -> list[Units]:
    gamma, decay = rule.server_momentum, rule.server_weight_decay
    history, weights = units_above(state.history_norm), units_above(state.weights_norm) if decay else 0
    updates = [_times_above(units_above(norm), lr) for norm, lr in zip(norms, lrs, strict=True)]
    if not gamma and not decay:
        return updates
    bounds = []
    for update, lr in zip(updates, lrs, strict=True):
        coasting = _times_above(history, gamma)
        decayed = _times_above(_times_above(weights, decay), lr)
        history = coasting + update + decayed
        # Rounded up twice, what decays is at most 1 + lr units too long.
        weights = max(weights - decayed + 1 + math.ceil(lr), decayed - weights) + coasting + update if decay else 0
        bounds.append(history)
    return bounds


def _times_above(units: Units, factor: float) -> Units:
    """Return the least units that are not below a multiple; the factor is numerator / 2**shift, exactly."""
    if factor == 1 or not units:
        return units
    numerator, denominator = factor.as_integer_ratio()
    return -(-units * numerator >> denominator.bit_length() - 1)


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

    def longest(self, held: Sequence[int], norm: Units | None) -> list[int]:
        """Return how many may be committed at most for a bound of no more than ``norm``, for each of ``held``; None
        allows any.
        """
        path = self._path
        if norm is None:
            return [len(path) - 1] * len(held)
        return [bisect_right(path, path[first] + norm) - 1 for first in held]


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

    def most(self, lead: Lead, held: Sequence[int]) -> list[int]:
        """Return how many may be made at most while the replica can recover the first of ``held``, for each of them."""
        longest = lead.longest(held, self.norm)
        if self.commits is None:
            return longest
        return [min(most, first + self.commits) for most, first in zip(longest, held, strict=True)]

    def allows(self, lead: Lead, held: int, committed: int) -> bool:
        """Say whether the first ``committed`` may be made while the replica can recover the first ``held``."""
        return committed <= self.most(lead, [held])[0]
