"""Numbers of simulated tensors: exact, whatever the order in which they are added. Pure.

Every tensor is one integer modulo a prime. Each float is a fraction whose denominator has an inverse there: what is
equal over the fractions is equal here, and what is not is (all but surely) not equal here either. So a sum in which an
update is missing, doubled, torn or weighted wrongly leads to other weights.

An image is what travels: one number for each tensor carried. It travels in chunks, each with numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from mlfabric.model.update_rules import RuleKind, RuleSpec

__all__ = [
    "PRIME",
    "Image",
    "Weights",
    "added",
    "after_window",
    "carried",
    "cut",
    "exact",
    "joined",
    "mean_of",
    "own_step",
    "single_step",
    "sum_step",
]

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
    if rule.kind is RuleKind.ADAM:
        return single_step(rule, weights, mean_of(image[0], len(lrs)), lrs[0])
    return after_window(rule, weights, image, lrs)


# Windows and prefixes: what workers fold for a replica, and what it makes of it


def carried(rule: RuleSpec, image: Image, lrs: Sequence[float]) -> Image:
    """Return what the steps of these learning rates make of the images of a window that ends before them."""
    ww, wh, hw, hh = _places(rule, lrs)
    if len(image) == 1:
        return (ww * image[0] % PRIME,)
    return (ww * image[0] + wh * image[1]) % PRIME, (hw * image[0] + hh * image[1]) % PRIME


def own_step(rule: RuleSpec, gradient: int, lr: float, share: float) -> Image:
    """Return the window of one update: its step without what was before; ``share`` is one over a whole number."""
    step = -exact(lr) * gradient * pow(round(1 / share), -1, PRIME) % PRIME
    return (step,) * rule.sum_images


def added(image: Image, other: Image) -> Image:
    """Return two windows of the same places as one."""
    return tuple((a + b) % PRIME for a, b in zip(image, other, strict=True))


def after_window(rule: RuleSpec, weights: Weights, image: Image, lrs: Sequence[float]) -> Weights:
    """Return what a window over all of these steps makes of weights and history."""
    value, history = carried(rule, weights, lrs)
    return (value + image[0]) % PRIME, (history + image[1]) % PRIME if len(image) > 1 else weights[1]


def _places(rule: RuleSpec, lrs: Sequence[float]) -> tuple[int, int, int, int]:
    """Return the transition of these steps, see ``stepping``; here it is exact however many they are."""
    gamma, decay = exact(rule.server_momentum), exact(rule.server_weight_decay)
    ww, wh, hw, hh = 1, 0, 0, 1
    for lr in lrs:
        lost = exact(lr) * decay % PRIME
        from_weights, from_history = gamma * hw - lost * ww, gamma * hh - lost * wh
        ww, wh = (ww + from_weights) % PRIME, (wh + from_history) % PRIME
        hw, hh = from_weights % PRIME, from_history % PRIME
    return ww, wh, hw, hh
