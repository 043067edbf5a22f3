"""The numbers in an optimizer's parameter groups: learning rate, weight decay, momentum and so on.

A round's members may be at different places of their schedules. All workers apply it with the means of the members'
numbers, so that they keep the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["is_new_rate", "rates_of", "with_rates"]

_NEW_RATE = 0.25
"""A learning rate that changes by more than this share from one step to the next is a new one."""


def is_new_rate(rate: float, before: float) -> bool:
    """Tell whether a learning rate has changed so much that averages of models begin anew (CROSSBOW, section 3.2)."""
    return abs(rate - before) > _NEW_RATE * abs(before)


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """Return the numbers of all groups, in order."""
    return tuple(float(value) for _, _, values in _numbers(optimizer) for value in values)


@contextmanager
def with_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> Iterator[None]:
    """Have an optimizer step with other numbers for a moment.

    Args:
        rates: as :func:`rates_of` returns them.
    """
    places = [(group, key, group[key]) for group, key, _ in _numbers(optimizer)]
    left = iter(rates)
    for group, key, own in places:
        group[key] = _like(own, left)
    try:
        yield
    finally:
        for group, key, own in places:
            group[key] = own


def _numbers(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], str, tuple[Any, ...]]]:
    for group in optimizer.param_groups:
        for key in optimizer.defaults:
            value = group.get(key)
            values = tuple(value) if isinstance(value, tuple | list) else (value,)
            if values and all(_is_number(one) for one in values):
                yield group, key, values


def _is_number(value: object) -> bool:
    is_scalar = torch.is_tensor(value) and value.numel() == 1
    return is_scalar or (isinstance(value, int | float) and not isinstance(value, bool))


def _like(own: Any, rates: Iterator[float]) -> Any:
    """Return the next numbers in the form of a group's own."""
    if isinstance(own, tuple | list):
        return type(own)(_like(one, rates) for one in own)
    given = next(rates)
    if torch.is_tensor(own):
        return torch.full_like(own, given)
    return own if given == own else given
