"""Values to protobuf messages and back; only shells import it.

``to_...`` takes a value of :mod:`mlfabric.protocol` or :mod:`mlfabric.model.specs` and makes its message; ``from_...``
takes what came over the wire and makes the value, or raises :class:`~mlfabric.errors.UsageError` that names the field,
what was given and what is allowed. So nothing malformed gets past a shell, and ``from_x(to_x(v)) == v`` for every
value.

A field is stated in the value and in the contract, by the same name (:mod:`~mlfabric.wire.shapes`); the conversions are
made from both (:mod:`~mlfabric.wire.reading`, :mod:`~mlfabric.wire.filling`). What neither says is in
:mod:`~mlfabric.wire.field_limits`.

What a message cannot say is given beside it: who sent an event, and for whom an instruction is. An event speaks for the
member whose session carries it, and for nobody else. ``MemberJoined``, ``Welcome`` and ``Refuse`` are a registration
and its answers, ``TermShown`` is a call of its own; ``MemberLost``, ``MemberSilent`` and ``Tick`` do not travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from mlfabric.model.specs import MAX_TERM, Member, ModelSpec, Role, Term
from mlfabric.protocol import (
    Following,
    GetId,
    Instruction,
    JobClaim,
    MemberEvent,
    ModelVersion,
    Outcome,
    ServerHolds,
    TransferId,
    UpdateId,
    Welcome,
)
from mlfabric.protocol.lineage import term_of
from mlfabric.v1 import data_pb2 as data
from mlfabric.v1 import fabric_pb2 as fabric
from mlfabric.v1 import session_pb2 as session
from mlfabric.v1 import types_pb2 as types
from mlfabric.wire.field_limits import checked_job as from_job
from mlfabric.wire.field_limits import malformed
from mlfabric.wire.filling import filler
from mlfabric.wire.reading import reader

__all__ = [
    "from_admission",
    "from_claim",
    "from_event",
    "from_following",
    "from_get_id",
    "from_instruction",
    "from_job",
    "from_member",
    "from_outcomes",
    "from_server_epochs",
    "from_server_holds",
    "from_spec",
    "from_term",
    "from_transfer_id",
    "from_version",
    "to_admission",
    "to_claim",
    "to_event",
    "to_following",
    "to_get_id",
    "to_instruction",
    "to_member",
    "to_outcomes",
    "to_server_holds",
    "to_spec",
    "to_term",
    "to_transfer_id",
    "to_version",
]

_Value = TypeVar("_Value")
_Message = TypeVar("_Message", bound=Message)


def _to(kind: type[_Value], message: type[_Message]) -> Callable[[_Value], _Message]:
    """Return the function that makes a message of a value."""

    value_type: Any = kind

    def convert(value: _Value) -> _Message:
        made = message()
        filler(value_type, message.DESCRIPTOR)(made, value)
        return made

    return convert


def _from(kind: type[_Value], message: type[_Message]) -> Callable[[_Message], _Value]:
    """Return the function that makes a value of a message; it raises UsageError for one that is malformed."""

    value_type: Any = kind

    def convert(given: _Message) -> _Value:
        value: _Value = reader(value_type, message.DESCRIPTOR)(given)
        return value

    return convert


to_claim, from_claim = _to(JobClaim, types.JobClaim), _from(JobClaim, types.JobClaim)
to_get_id, from_get_id = _to(GetId, types.RequestId), _from(GetId, types.RequestId)
to_spec, from_spec = _to(ModelSpec, types.ModelSpec), _from(ModelSpec, types.ModelSpec)
to_term, from_term = _to(Term, types.Term), _from(Term, types.Term)
to_version, from_version = _to(ModelVersion, types.ModelVersion), _from(ModelVersion, types.ModelVersion)
to_server_holds = _to(ServerHolds, session.ServerHolds)
to_following = _to(Following, fabric.RegisterAsReplicaRequest)
from_following = _from(Following, fabric.RegisterAsReplicaRequest)
_to_member, _to_admission = _to(Member, types.Member), _to(Welcome, fabric.Admission)

_EVENT, _INSTRUCTION = session.Event.DESCRIPTOR, session.Instruction.DESCRIPTOR
_SPEAKER = ("member", "incarnation")
_fill_event, _read_event = filler(MemberEvent, _EVENT), reader(MemberEvent, _EVENT, _SPEAKER)
_fill_instruction = filler(Instruction, _INSTRUCTION)
_read_instruction = reader(Instruction, _INSTRUCTION, ("to", "reason"))
_TRANSFER = types.TransferId.DESCRIPTOR
_fill_transfer, _read_transfer = filler(TransferId, _TRANSFER), reader(TransferId, _TRANSFER)
_ENTRY = (tuple[UpdateId, Outcome], data.MemberOutcome.DESCRIPTOR)


def to_event(event: MemberEvent) -> session.Event:
    """Make the message of an event.

    Raises:
        UsageError: events of this kind do not travel on a session.
    """
    message = session.Event()
    _fill_event(message, event)
    return message


def from_event(message: session.Event, member: str, incarnation: int = 0) -> MemberEvent:
    """Return the event that a message holds.

    Args:
        message: what came on the session.
        member: whose session it is.
        incarnation: of that member; ``MemberLeft`` alone needs it.

    Raises:
        UsageError: it holds no event, an incomplete one, or one that speaks for another member.
    """
    event: MemberEvent = _read_event(message, member, incarnation)
    return event


def to_instruction(instruction: Instruction) -> session.Instruction:
    """Make the message of an instruction; its reason is on the outer message.

    Raises:
        UsageError: instructions of this kind do not travel on a session.
    """
    message = session.Instruction(reason=instruction.reason)
    _fill_instruction(message, instruction)
    return message


def from_instruction(message: session.Instruction, to: str) -> Instruction:
    """Return the instruction that a message holds.

    Args:
        message: what came on the session.
        to: whose session it is.

    Raises:
        UsageError: it holds no instruction, or an incomplete one.
    """
    instruction: Instruction = _read_instruction(message, to, message.reason)
    return instruction


def from_server_holds(message: session.ServerHolds, member: str) -> ServerHolds:
    """Return what the server ``member`` holds of one model.

    Raises:
        UsageError: it is incomplete, its model is malformed, or it is another server's.
    """
    holds: ServerHolds = reader(ServerHolds, message.DESCRIPTOR, _SPEAKER)(message, member, 0)
    return holds


def to_transfer_id(transfer: TransferId) -> types.TransferId:
    """Make the message of the id of an update or a sum."""
    message = types.TransferId()
    _fill_transfer(message, transfer)
    return message


def from_transfer_id(message: types.TransferId) -> TransferId:
    """Return the id of an update or a sum that a message holds.

    Raises:
        UsageError: it holds none.
    """
    transfer: TransferId = _read_transfer(message)
    return transfer


def to_outcomes(outcomes: Mapping[UpdateId, Outcome]) -> data.OutcomeMeta:
    """Make the message that says what became of the updates in a transfer."""
    message = data.OutcomeMeta()
    fill = filler(*_ENTRY)
    for entry in outcomes.items():
        fill(message.outcomes.add(), entry)
    return message


def from_outcomes(message: data.OutcomeMeta) -> dict[UpdateId, Outcome]:
    """Return what became of the updates in a transfer.

    Raises:
        UsageError: an entry is incomplete.
    """
    return dict(map(reader(*_ENTRY), message.outcomes))


def to_member(member: Member, software_version: str = "") -> types.Member:
    """Make the message of a member; its role is said by the call that carries it."""
    message = _to_member(member)
    message.software_version = software_version
    return message


def from_member(message: types.Member, role: Role) -> Member:
    """Return the member that a message holds, in the role that it registers as.

    Raises:
        UsageError: it has no name or no host, or has seen a scheduler that there cannot be.
    """
    member: Member = reader(Member, message.DESCRIPTOR, ("role",))(message, role)
    return member


def to_admission(welcome: Welcome, session_token: bytes, pulse_port: int) -> fabric.Admission:
    """Make the answer to a registration.

    Args:
        welcome: what the scheduler decided.
        session_token: what the member shows when it opens its session.
        pulse_port: where signs of life go.
    """
    message = _to_admission(welcome)
    message.session_token, message.pulse_port = session_token, pulse_port
    return message


def from_admission(message: fabric.Admission, to: str, incarnation: int) -> Welcome:
    """Return the welcome that a registration was answered with.

    Args:
        message: the answer.
        to: name of the member that registered.
        incarnation: of that member.
    """
    welcome: Welcome = reader(Welcome, message.DESCRIPTOR, ("to", "incarnation"))(message, to, incarnation)
    return welcome


def from_server_epochs(message: fabric.RegisterAsServerRequest) -> tuple[int, ...]:
    """Return the server epochs of the models that a server brings.

    Raises:
        UsageError: there are not as many as models.
    """
    if len(message.server_epochs) != len(message.models):
        given, allowed = len(message.server_epochs), f"as many as models, {len(message.models)}"
        raise malformed("RegisterAsServerRequest.server_epochs", given, allowed)
    if term_of(newest := max(message.server_epochs, default=0)) >= MAX_TERM:
        raise malformed("RegisterAsServerRequest.server_epochs", newest, f"of a term less than {MAX_TERM}")
    return tuple(message.server_epochs)
