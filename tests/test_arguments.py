"""What a user gives is taken in its type, or refused with its name, its value, what is allowed and what to do."""

from __future__ import annotations

from enum import Enum
from functools import partial

import numpy as np
import pytest

from mlfabric.arguments import enum_of, flag_of, instance_of, integer_of, number_of, shown, text_of
from mlfabric.errors import UsageError


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


integer = partial(integer_of, "n", least=0, most=9, instead="None")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        *((enum_of(Colour, "colour", given), Colour.DARK_BLUE) for given in (Colour.DARK_BLUE, "dark-blue")),
        *((integer_of("n", given), 3) for given in (3, np.int64(3))),
        *((number_of("x", given), 1.0) for given in (1, 1.0, np.float32(1))),
        (instance_of(Colour, "who", Colour.RED, "a colour"), Colour.RED),
    ],
)
def test_what_stands_for_a_value_becomes_it_in_its_plain_type(found, wanted):
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("ask", "given", "said"),
    [
        *(
            (partial(enum_of, Colour, "colour"), given, f"colour={said}; allowed: 'red', 'dark-blue'")
            for given, said in (("DARK_BLUE", "'DARK_BLUE'"), (None, "None"), (1, "1"), ([], "[] (list)"))
        ),
        *((integer, given, f"n={given!r}; allowed: an integer, 0 or more; or None") for given in (True, 1.0, "1", -1)),
        *(
            (integer, given, f"n={given}; allowed: an integer, 0 or more, 9 or less; or None")
            for given in (10, 1 << 70)
        ),
        (partial(number_of, "x"), "0.1", "x='0.1'; allowed: a number; write x=0.1"),
        (partial(number_of, "x"), "fast", "x='fast'; allowed: a number"),
        (partial(number_of, "x"), False, "x=False; allowed: a number"),
        (partial(flag_of, "on"), 1, "on=1; allowed: True or False"),
        (partial(text_of, "name", instead="None"), 3, "name=3; allowed: a text, or None"),
        (partial(instance_of, Colour, "who", allowed="a colour"), {}, "who={} (dict); allowed: a colour"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name_and_what_is_allowed(ask, given, said):
    with pytest.raises(UsageError) as caught:
        ask(given)
    assert str(caught.value).startswith(said)


def test_a_long_value_is_cut():
    assert len(shown("x", ["word"] * 1000)) < 100
    assert shown("x", np.zeros((9, 9))).count("\n") == 0
