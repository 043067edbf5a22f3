"""Checks of what a user gives: each error names the argument, what was given, what is allowed and what to do. Pure."""

from __future__ import annotations

from enum import Enum
from numbers import Integral, Real
from typing import TypeVar

from mlfabric.errors import UsageError

__all__ = ["enum_of", "flag_of", "instance_of", "integer_of", "number_of", "shown", "text_of"]

LONGEST_SHOWN = 80
MOST = 2**64 - 1
"""Of integers: more does not travel."""
EnumT = TypeVar("EnumT", bound=Enum)
T = TypeVar("T")


def shown(name: str, given: object) -> str:
    """Return an argument as an error shows it: its name, its value, and its type unless that is plain to see."""
    text = repr(given)
    first = text.split("\n")[0][:LONGEST_SHOWN]
    kind = "" if given is None or isinstance(given, str | Real) else f" ({type(given).__name__})"
    return f"{name}={text if first == text else f'{first}...'}{kind}"


def enum_of(kind: type[EnumT], name: str, given: object) -> EnumT:
    """Return the member of an enum that is given, or whose value is.

    Raises:
        UsageError: it is neither.
    """
    for member in kind:
        if given is member or (isinstance(given, str) and given == member.value):
            return member
    raise UsageError(f"{shown(name, given)}; allowed: {', '.join(repr(member.value) for member in kind)}")


def integer_of(name: str, given: object, least: int = -MOST, most: int = MOST, instead: str = "") -> int:
    """Return an integer; NumPy's are integers, booleans are not.

    Args:
        name: of the argument.
        given: its value.
        least, most: the range that is allowed.
        instead: what else is allowed, for the error.

    Raises:
        UsageError: it is none, or out of range.
    """
    number = None if isinstance(given, bool) or not isinstance(given, Integral) else int(given)
    if number is not None and least <= number <= most:
        return number
    bounds = [f"{least} or more"] * (least > -MOST)
    bounds += [f"{most} or less"] * (number is not None and number > most)
    allowed = ", ".join(["an integer", *bounds])
    raise UsageError(f"{shown(name, given)}; allowed: {allowed}{instead and f'; or {instead}'}")


def number_of(name: str, given: object) -> float:
    """Return a number; integers and NumPy's are numbers, booleans and tensors are not.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(given, bool) and isinstance(given, Real):
        return float(given)
    advice = f"; write {name}={given}" if isinstance(given, str) and _is_number(given) else ""
    raise UsageError(f"{shown(name, given)}; allowed: a number{advice}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def flag_of(name: str, given: object) -> bool:
    """Return a boolean.

    Raises:
        UsageError: it is none.
    """
    return instance_of(bool, name, given, "True or False")


def text_of(name: str, given: object, instead: str = "") -> str:
    """Return a text.

    Raises:
        UsageError: it is none.
    """
    return instance_of(str, name, given, f"a text{instead and f', or {instead}'}")


def instance_of(kind: type[T], name: str, given: object, allowed: str) -> T:
    """Return an object of a type.

    Args:
        kind: the type.
        name: of the argument.
        given: its value.
        allowed: what is, and what to do, for the error.

    Raises:
        UsageError: it is of another type.
    """
    if isinstance(given, kind):
        return given
    raise UsageError(f"{shown(name, given)}; allowed: {allowed}")
