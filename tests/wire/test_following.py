"""What a replica says when it registers."""

from __future__ import annotations

import math

import pytest

from mlfabric import wire
from mlfabric.errors import UsageError
from mlfabric.protocol import Following
from mlfabric.v1 import fabric_pb2


def request(**fields) -> fabric_pb2.RegisterAsReplicaRequest:
    given = {"server": "s", "div_max": math.inf, **fields}
    return fabric_pb2.RegisterAsReplicaRequest(**given)


@pytest.mark.parametrize(("norm", "updates"), [(0.0, None), (2.5, 0), (math.inf, 7)])
def test_what_is_followed_comes_through_as_it_was(norm: float, updates: int | None):
    message = request(div_max=norm, div_max_updates=updates)
    assert wire.from_following(message) == Following(server="s", norm=norm, updates=updates)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"server": ""}, "the name of a server"),
        ({"div_max": -1.0}, "div_max"),
        ({"div_max": math.nan}, "div_max"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], words: str):
    with pytest.raises(UsageError, match=words):
        wire.from_following(request(**fields))
