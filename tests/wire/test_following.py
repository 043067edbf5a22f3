"""What a replica says when it registers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlfabric import wire
from mlfabric.errors import UsageError
from mlfabric.protocol import Following
from mlfabric.v1 import fabric_pb2


@pytest.mark.parametrize(("norm", "updates"), [(0.0, None), (2.5, 0), (math.inf, 7)])
def test_what_is_followed_comes_through_as_it_was(norm: float, updates: int | None):
    following = Following(server="s", norm=norm, updates=updates)
    sent = wire.to_following(following).SerializeToString()
    assert wire.from_following(fabric_pb2.RegisterAsReplicaRequest.FromString(sent)) == following


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"server": ""}, r"RegisterAsReplicaRequest\.server=''; allowed: a name"),
        ({"norm": -1.0}, r"RegisterAsReplicaRequest\.norm=-1\.0; allowed: 0 or more, or infinite"),
        ({"norm": math.nan}, r"RegisterAsReplicaRequest\.norm=nan"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str):
    given: dict[str, Any] = {"server": "s", "norm": math.inf, **fields}
    with pytest.raises(UsageError, match=words):
        wire.from_following(fabric_pb2.RegisterAsReplicaRequest(**given))
