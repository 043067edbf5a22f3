"""What goes over the wire comes back as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from mlfabric import wire
from mlfabric.model.specs import Member
from mlfabric.protocol import GetId, MemberLeft, ModelVersion, Outcome, UpdateId, Welcome
from tests.wire.strategies import (
    ME,
    claims,
    ends,
    events,
    followings,
    holds,
    instructions,
    members,
    outcomes,
    specs,
    text,
    u32,
    u64,
    welcomes,
)


def sent(message: Message) -> Any:
    """Return a message as it arrives."""
    return type(message).FromString(message.SerializeToString())


def event_back(event: Any) -> Any:
    incarnation = event.incarnation if isinstance(event, MemberLeft) else 7
    return wire.from_event(sent(wire.to_event(event)), ME, incarnation)


@pytest.mark.parametrize(
    ("values", "there_and_back"),
    [
        (events, event_back),
        (ends, event_back),
        (instructions, lambda value: wire.from_instruction(sent(wire.to_instruction(value)), ME)),
        (specs, lambda value: wire.from_spec(sent(wire.to_spec(value)))),
        (claims, lambda value: wire.from_claim(sent(wire.to_claim(value)))),
        (followings, lambda value: wire.from_following(sent(wire.to_following(value)))),
        (holds, lambda value: wire.from_server_holds(sent(wire.to_server_holds(value)), ME)),
    ],
    ids=["event", "end of a transfer", "instruction", "model", "claim", "following", "what a server holds"],
)
@given(data=st.data())
def test_each_value_comes_back_as_it_was(
    values: st.SearchStrategy[Any], there_and_back: Callable[[Any], Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value), "ids of another kind are equal as tuples"


@given(members, text)
def test_every_member_comes_back_as_it_was(member: Member, software: str) -> None:
    message = sent(wire.to_member(member, software))
    assert message.software_version == software
    assert wire.from_member(message, member.role) == member


@given(welcomes, st.binary(), st.integers(0, 65535))
def test_every_admission_comes_back_as_it_was(welcome: Welcome, token: bytes, port: int) -> None:
    message = sent(wire.to_admission(welcome, token, port))
    assert (message.session_token, message.pulse_port) == (token, port)
    assert wire.from_admission(message, welcome.to, welcome.incarnation) == welcome


@given(outcomes, u32, u64)
def test_every_shared_value_comes_back_as_it_was(entry: tuple[UpdateId, Outcome], epoch: int, number: int) -> None:
    update, outcome = entry
    get, version = GetId(*update), ModelVersion(epoch, number)
    assert wire.from_transfer_id(wire.to_transfer_id(update)) == update
    assert wire.from_get_id(wire.to_get_id(get)) == get
    assert wire.from_version(wire.to_version(version)) == version
    assert wire.from_outcomes(wire.to_outcomes({update: outcome})) == {update: outcome}
