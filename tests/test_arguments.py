"""What a user gives is taken in its type, or refused with its name, its value, what is allowed and what to do."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pytest

from mlfabric.arguments import enum_of, flag_of, instance_of, integer_of, number_of, shown, text_of
from mlfabric.errors import UsageError


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


@pytest.mark.parametrize("given", [Colour.DARK_BLUE, "dark-blue"])
def test_a_member_s_value_stands_for_it(given):
    assert enum_of(Colour, "colour", given) is Colour.DARK_BLUE


@pytest.mark.parametrize(("given", "said"), [("DARK_BLUE", "'DARK_BLUE'"), (None, "None"), (1, "1"), ([], "[] (list)")])
def test_another_value_is_refused_with_those_that_there_are(given, said):
    with pytest.raises(UsageError) as caught:
        enum_of(Colour, "colour", given)
    assert str(caught.value) == f"colour={said}; allowed: 'red', 'dark-blue'"


@pytest.mark.parametrize("given", [3, np.int64(3)])
def test_integers_of_every_kind_become_plain_ones(given):
    found = integer_of("n", given)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (True, "n=True; allowed: an integer, 0 or more; or None"),
        (1.0, "n=1.0; allowed: an integer, 0 or more; or None"),
        ("1", "n='1'; allowed: an integer, 0 or more; or None"),
        (-1, "n=-1; allowed: an integer, 0 or more; or None"),
        (10, "n=10; allowed: an integer, 0 or more, 9 or less; or None"),
        (1 << 70, f"n={1 << 70}; allowed: an integer, 0 or more, 9 or less; or None"),
    ],
)
def test_what_is_no_integer_of_the_range_is_refused(given, said):
    with pytest.raises(UsageError) as caught:
        integer_of("n", given, least=0, most=9, instead="None")
    assert str(caught.value) == said


@pytest.mark.parametrize("given", [1, 1.0, np.float32(1)])
def test_numbers_of_every_kind_become_plain_ones(given):
    found = number_of("x", given)
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0.1", "x='0.1'; allowed: a number; write x=0.1"),
        ("fast", "x='fast'; allowed: a number"),
        (False, "x=False; allowed: a number"),
    ],
)
def test_what_is_no_number_is_refused(given, said):
    with pytest.raises(UsageError) as caught:
        number_of("x", given)
    assert str(caught.value).startswith(said)


def test_other_types_are_refused_with_what_is_allowed():
    with pytest.raises(UsageError, match="on=1; allowed: True or False"):
        flag_of("on", 1)
    with pytest.raises(UsageError, match="name=3; allowed: a text, or None"):
        text_of("name", 3, "None")
    with pytest.raises(UsageError, match=r"who=\{\} \(dict\); allowed: a colour"):
        instance_of(Colour, "who", {}, "a colour")
    assert instance_of(Colour, "who", Colour.RED, "a colour") is Colour.RED


def test_a_long_value_is_cut():
    assert len(shown("x", ["word"] * 1000)) < 100
    assert shown("x", np.zeros((9, 9))).count("\n") == 0
