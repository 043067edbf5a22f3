"""Numbers of simulated tensors: exact, whatever the order in which they are added. Pure.

Every tensor is one integer modulo a prime. Each float is a fraction whose denominator has an inverse there: what is
equal over the fractions is equal here, and what is not is (all but surely) not equal here either. So a sum in which an
update is missing, doubled, torn or weighted wrongly leads to other weights.

An image is what travels: one number for each tensor carried. It travels in chunks, each with numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mlfabric.rules import RuleKind, RuleSpec
from mlfabric.stepping import transition

__all__ = ["PRIME", "Image", "Weights", "cut", "exact", "joined", "mean_of", "single_step", "sum_step"]

PRIME = (1 << 127) - 1

Image = tuple[int, ...]
"""The numbers of one payload: of an update one, of a sum one or two."""

Weights = tuple[int, int]
"""A model's weights and the history of its update rule."""


@cache
def exact(number: float) -> int:
    """Return what stands for a finite float."""
    above, below = float(number).as_integer_ratio()
    return above * pow(below, -1, PRIME) % PRIME


def cut(image: Image, chunks: int) -> list[Image]:
    """Cut a payload into chunks that differ from one another."""
    return [tuple(number * (place + 1) % PRIME for number in image) for place in range(chunks)]


def joined(chunks: Mapping[int, Image | None]) -> Image | None:
    """Return the payload whose chunks these are, None if one of them is not finite; they must fit together."""
    if None in chunks.values():
        return None
    whole = chunks.get(0)
    assert whole is not None, f"a payload is complete without its first chunk: {chunks}"
    wanted = dict(enumerate(cut(whole, len(chunks))))
    assert chunks == wanted, f"a payload is complete though its chunks do not fit together: {chunks}"
    return whole


def mean_of(total: int, count: int) -> int:
    """Return the mean of so many numbers that add up to ``total``."""
    return total * pow(count, -1, PRIME) % PRIME


def single_step(rule: RuleSpec, weights: Weights, gradient: int, lr: float) -> Weights:
    """Return what one step makes of weights and history: the rule as its documentation puts it.

    The step of ADAM is another one here, without roots; it is no more linear than the true one.
    """
    value, history = weights
    if rule.kind is RuleKind.ADAM:
        history = (history + gradient * gradient) % PRIME
        return (value - exact(lr) * gradient * history) % PRIME, history
    whole = gradient + exact(rule.server_weight_decay) * value
    step = exact(rule.server_momentum) * history - exact(lr) * whole
    return (value + step) % PRIME, step % PRIME if rule.server_momentum else history


def sum_step(rule: RuleSpec, weights: Weights, image: Image, lrs: tuple[float, ...]) -> Weights:
    """Return what a sum of several updates makes of weights and history: what a server does with it."""
    value, history = weights
    if rule.kind is RuleKind.ADAM:
        return single_step(rule, weights, mean_of(image[0], len(lrs)), lrs[0])
    places = transition(rule, lrs)
    moved = exact(places.ww) * value + exact(places.wh) * history + image[0]
    if len(image) < 2:
        return moved % PRIME, history
    return moved % PRIME, (exact(places.hw) * value + exact(places.hh) * history + image[1]) % PRIME
