"""What goes over the wire comes back as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric import wire
from mlfabric.protocol import (
    Following,
    GetId,
    Instruction,
    JobClaim,
    MemberEvent,
    MemberLeft,
    ModelVersion,
    Outcome,
    ServerHolds,
    TransferEnded,
    UpdateId,
    Welcome,
)
from mlfabric.specs import (
    Member,
    ModelSpec,
)
from mlfabric.v1 import fabric_pb2, session_pb2, types_pb2
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


@given(events, st.data())
def test_every_event_comes_back_as_it_was(event: MemberEvent, data: st.DataObject) -> None:
    sent = wire.to_event(event).SerializeToString()
    incarnation = event.incarnation if isinstance(event, MemberLeft) else data.draw(u64)
    back = wire.from_event(session_pb2.Event.FromString(sent), ME, incarnation)
    assert back == event
    assert type(back) is type(event)


@given(ends)
def test_a_transfer_comes_back_as_the_kind_of_request_it_was(event: TransferEnded) -> None:
    back = wire.from_event(wire.to_event(event), ME)
    assert isinstance(back, TransferEnded)
    assert type(back.transfer) is type(event.transfer)


@given(instructions)
def test_every_instruction_comes_back_as_it_was(instruction: Instruction) -> None:
    sent = wire.to_instruction(instruction).SerializeToString()
    back = wire.from_instruction(session_pb2.Instruction.FromString(sent), ME)
    assert back == instruction
    assert type(back) is type(instruction)


@given(specs)
def test_every_model_comes_back_as_it_was(spec: ModelSpec) -> None:
    assert wire.from_spec(types_pb2.ModelSpec.FromString(wire.to_spec(spec).SerializeToString())) == spec


@given(members, text)
def test_every_member_comes_back_as_it_was(member: Member, software: str) -> None:
    message = wire.to_member(member, software)
    assert message.software_version == software
    assert wire.from_member(message, member.role) == member


@given(welcomes, st.binary(), st.integers(0, 65535))
def test_every_admission_comes_back_as_it_was(welcome: Welcome, token: bytes, port: int) -> None:
    message = wire.to_admission(welcome, token, port)
    assert (message.session_token, message.pulse_port) == (token, port)
    assert wire.from_admission(message, welcome.to, welcome.incarnation) == welcome


@given(claims)
def test_every_claim_comes_back_as_it_was(claim: JobClaim) -> None:
    assert wire.from_claim(types_pb2.JobClaim.FromString(wire.to_claim(claim).SerializeToString())) == claim


@given(followings)
def test_what_is_followed_comes_back_as_it_was(following: Following) -> None:
    sent = wire.to_following(following).SerializeToString()
    assert wire.from_following(fabric_pb2.RegisterAsReplicaRequest.FromString(sent)) == following


@given(outcomes, u32, u64)
def test_every_shared_value_comes_back_as_it_was(entry: tuple[UpdateId, Outcome], epoch: int, number: int) -> None:
    update, outcome = entry
    get, version = GetId(*update), ModelVersion(epoch, number)
    assert wire.from_transfer_id(wire.to_transfer_id(update)) == update
    assert wire.from_get_id(wire.to_get_id(get)) == get
    assert wire.from_version(wire.to_version(version)) == version
    assert wire.from_outcomes(wire.to_outcomes({update: outcome})) == {update: outcome}


@given(holds)
def test_what_a_server_holds_comes_back_as_it_was(event: ServerHolds) -> None:
    assert wire.from_server_holds(wire.to_server_holds(event), ME) == event
