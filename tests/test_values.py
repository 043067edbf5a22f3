"""Values that are made for every message compare, hash and print as frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from mlfabric.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    name: str
    size: int = 0
    of: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    name: str
    size: int = 0
    of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    name: str


@dataclass(slots=True)
class Changing:
    name: str


@dataclass(frozen=True)
class Rounded:
    at: float

    def __hash__(self) -> int:
        return round(self.at)


def test_a_value_is_what_its_fields_are() -> None:
    one, same, other = Value(name="a", size=2), Value(name="a", size=2), Value(name="a", size=3)
    assert one == same
    assert one != other
    assert hash(one) == hash(same) == hash(Standard(name="a", size=2))
    assert repr(one) == "Value(name='a', size=2, of=())"
    assert dataclasses.replace(one, size=3) == other
    assert copy.copy(one) == one == pickle.loads(pickle.dumps(one))


def test_only_what_is_frozen_and_compared_is_hashed_by_its_fields() -> None:
    assert Handle("a") != Handle("a")
    assert hash(Handle("a")) != hash(("a",))
    assert hash(Rounded(2.2)) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing("a"))


def test_making_a_value_costs_no_call_for_each_field() -> None:
    assert "__setattr__" in Standard.__init__.__code__.co_names
    assert "__setattr__" not in Value.__init__.__code__.co_names


def test_a_slotted_value_takes_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        Value(name="a").colour = "red"  # type: ignore[attr-defined]
