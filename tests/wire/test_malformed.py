"""Nothing malformed gets past the wire: it is refused by field, and no other error escapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric import wire
from mlfabric.errors import UsageError
from mlfabric.model.samples import MOST_RANGES
from mlfabric.model.specs import (
    Layout,
    ModelSpec,
    TensorSpec,
)
from mlfabric.protocol import (
    Initialise,
    Refuse,
    RefuseReason,
    Tick,
    Void,
)
from mlfabric.v1 import fabric_pb2, session_pb2, types_pb2
from mlfabric.wire.field_limits import ADDED, LIMITS, REFUSED, ZERO_IS_DEFAULT
from mlfabric.wire.filling import filler
from mlfabric.wire.reading import reader
from mlfabric.wire.shapes import SPEAKERS, Field, Form, fields_of
from tests.wire.strategies import ME, ROOTS, all_values, events, instructions, values

MINE = types_pb2.RequestId(worker=ME, incarnation=1, counter=2)
VERSION = types_pb2.ModelVersion(epoch=1, number=2)
S = session_pb2
PUSH = S.PushRequested(update=MINE, computed_from=VERSION, kind=S.UPDATE_KIND_GRADIENT)


def pushed(**changed: Any) -> session_pb2.PushRequested:
    """Return a push that is well-formed but for what is given."""
    message = S.PushRequested(**changed)
    whole = S.PushRequested()
    whole.CopyFrom(PUSH)
    whole.MergeFrom(message)
    return whole


def counted(*runs: int) -> session_pb2.Event:
    return S.Event(samples_reported=S.SamplesReported(server=ME, counts=S.SampleCounts(runs=runs)))


def reduced(**changed: Any) -> session_pb2.Event:
    return S.Event(
        reduce_requested=S.ReduceRequested(reduce=MINE, op=S.REDUCE_OP_SUM, together=1, updates=1, weight=1, **changed)
    )


def timed(computed_ns: list[int], rest_ns: list[int]) -> session_pb2.Event:
    steps = S.StepsTimed(worker=ME, micro_batches=2, computed_ns=computed_ns, rest_ns=rest_ns)
    return S.Event(steps_timed=steps)


def reduced_part(start: int, end: int) -> session_pb2.Instruction:
    part = S.ReducePart(start=start, end=end)
    return S.Instruction(reduce=S.Reduce(reduce=MINE, round=S.RoundId(term=1, counter=2), parts=[part]))


MALFORMED_EVENTS = [
    (S.Event(), r"Event\.event=None; allowed: push_requested,"),
    (S.Event(push_requested=S.PushRequested(computed_from=VERSION)), r"PushRequested\.update is missing"),
    (
        S.Event(push_requested=pushed(update=types_pb2.RequestId(worker="x"))),
        r"PushRequested\.update\.worker='x'; allowed: 'node-3', whose session this is",
    ),
    (S.Event(worker_holds=S.WorkerHolds(worker="x")), r"WorkerHolds\.worker='x'"),
    (S.Event(commits_reported=S.CommitsReported(server="x")), r"CommitsReported\.server='x'"),
    (S.Event(samples_reported=S.SamplesReported(server="x")), r"SamplesReported\.server='x'"),
    (S.Event(links_reported=S.LinksReported(rates=[S.LinkRate(bps=1)])), r"LinksReported\.monitor=''"),
    (
        S.Event(transfer_ended=S.TransferEnded(member=ME, end=S.TRANSFER_END_RECEIVED)),
        r"TransferEnded\.transfer=None; allowed: update, get, sum",
    ),
    (S.Event(samples_dropped=S.SamplesDropped(samples=[1, 2, 3])), r"SamplesDropped\.samples='3 numbers'"),
    (S.Event(samples_dropped=S.SamplesDropped(samples=[4, 0])), r"SamplesDropped\.samples='a range from 4 up to 4'"),
    (S.Event(samples_dropped=S.SamplesDropped(samples=[2**62, 1])), r"ranges that are not empty, up to 2\*\*62"),
    (
        S.Event(push_requested=pushed(samples=[1] * 2 * (MOST_RANGES + 1))),
        r"PushRequested\.samples='514 numbers'; allowed: 2 for each of at most 256 ranges",
    ),
    (counted(0, 4, 0), r"SampleCounts\.runs='samples trained on 0 times'"),
    (counted(0, 4, 1, 0, 4, 1), r"SampleCounts\.runs='two runs that are one'"),
    (reduced(dtype="int7"), r"ReduceRequested\.dtype='int7'; allowed: float16,"),
    (
        reduced(dtype="float32", size_bytes=6),
        r"ReduceRequested\.size_bytes=6; allowed: a multiple of 4 \(float32\)",
    ),
    (timed([1, 2, 3], [1]), r"StepsTimed\.computed_ns='3 times'; allowed: 2 for each of 1 steps"),
    (timed([1, 0], [1]), r"StepsTimed\.computed_ns=\(1, 0\); allowed: each 1 or more"),
]
PART = r"ReducePart\.start, end=\({}, 32\); allowed: a start at a multiple of 16, and an end after it"
MALFORMED_INSTRUCTIONS = [
    (S.Instruction(), r"Instruction\.instruction=None; allowed: host_model,"),
    (S.Instruction(host_model=S.HostModel()), r"HostModel\.spec is missing"),
    (S.Instruction(void=S.Void(transfer=types_pb2.TransferId())), r"TransferId\.transfer=None; allowed: update, sum"),
    (S.Instruction(resolve=S.Resolve(update=MINE, outcome=S.Outcome())), r"Outcome\.outcome=None; allowed: committed"),
    (reduced_part(8, 32), PART.format(8)),
    (reduced_part(32, 32), PART.format(32)),
]

FIELDS = [(kind, field) for kind, message in dict.fromkeys(all_values(*ROOTS)) for field in fields_of(kind, message)]


def fields_with(wanted: Callable[[Field], bool]) -> pytest.MarkDecorator:
    """Parametrize a test with each field of each value that travels, if it is wanted."""
    found = {field.path: (kind, field) for kind, field in FIELDS if field.slot is not None and wanted(field)}
    return pytest.mark.parametrize(("kind", "field"), found.values(), ids=list(found))


def sent_and_read(kind: Any, field: Field, data: st.DataObject) -> tuple[Any, Any]:
    """Draw a value with this field; return its message, and how to read it."""
    owner: Descriptor = field.slot.containing_type
    value, message = data.draw(values(kind, owner)), GetMessageClass(owner)()
    filler(kind, owner)(message, value)
    beside = {each.name: getattr(value, each.name) for each in fields_of(kind, owner) if each.form is Form.BESIDE}
    beside = {"member": ME, "incarnation": 0} if kind in SPEAKERS else beside
    return message, lambda: reader(kind, owner, tuple(beside))(message, *beside.values())


def beyond(field: Field) -> list[Any]:
    """Return what the limit of a field does not allow."""
    limit = LIMITS[field.path]
    wrong: list[Any] = [() if field.is_many else ""] if limit.is_some else []
    numbers: list[Any] = [limit.least - 1] if limit.least > 0 or (field.type is float and limit.least == 0) else []
    numbers += [limit.most + 1] if 1 <= limit.most < 2**63 else []
    numbers += [math.nan] if field.type is float else []
    return wrong + [(field.type(number),) if field.is_many else field.type(number) for number in numbers]


def is_needed(field: Field) -> bool:
    is_one = field.form in (Form.VALUE, Form.ENUM) and not field.is_many
    return is_one and not field.is_optional and not field.may_lack


@fields_with(lambda field: field.path in LIMITS)
@settings(max_examples=5)
@given(st.data())
def test_a_value_beyond_its_limit_is_refused_by_field(kind: Any, field: Field, data: st.DataObject) -> None:
    assert beyond(field)
    for wrong in beyond(field):
        message, read = sent_and_read(kind, field, data)
        message.ClearField(field.name)
        if field.is_many:
            getattr(message, field.name).extend(wrong)
        else:
            setattr(message, field.name, wrong)
        with pytest.raises(UsageError) as refused:
            read()
        assert str(refused.value) == f"{field.path}={wrong!r}; allowed: {LIMITS[field.path].allowed}"


@fields_with(is_needed)
@settings(max_examples=5)
@given(st.data())
def test_a_field_that_is_missing_is_refused_by_name(kind: Any, field: Field, data: st.DataObject) -> None:
    message, read = sent_and_read(kind, field, data)
    message.ClearField(field.name)
    given = "=0; allowed: 1" if field.form is Form.ENUM else " is missing; it must be set"
    with pytest.raises(UsageError) as refused:
        read()
    assert str(refused.value).startswith(field.path + given)


@fields_with(lambda field: field.may_lack and not field.is_many)
@settings(max_examples=5)
@given(st.data())
def test_a_field_that_may_be_missing_is_its_default_then(kind: Any, field: Field, data: st.DataObject) -> None:
    message, read = sent_and_read(kind, field, data)
    message.ClearField(field.name)
    if field.path == "ModelSpec.shards":
        message.ClearField("shard")  # there is no part of a model that is not cut
    assert getattr(read(), field.name) == field.default


def test_what_is_said_of_fields_is_said_of_fields_that_there_are() -> None:
    read = {field.path for _, field in FIELDS}
    messages = {message for _, message in all_values(*ROOTS)}
    there = {f"{message.name}.{field.name}" for message in messages for field in message.fields}
    assert set(LIMITS) | ZERO_IS_DEFAULT <= read
    assert ADDED | set(REFUSED) <= there - read


def test_what_one_side_lacks_is_found_when_a_function_is_made() -> None:
    with pytest.raises(TypeError, match=r"Void\.transfer is no field of .*Initialise"):
        fields_of(Initialise, S.Void.DESCRIPTOR)
    with pytest.raises(TypeError, match=r"transfer of .*Void.* is no field of Initialise"):
        fields_of(Void, S.Initialise.DESCRIPTOR)


@st.composite
def damaged(draw: st.DrawFn, messages: st.SearchStrategy[Message]) -> bytes:
    """Draw a good message with some of its bytes overwritten, which gets deeper than noise does."""
    raw = bytearray(draw(messages).SerializeToString())
    for at in draw(st.lists(st.integers(0, len(raw)), max_size=4)):
        raw[at : at + 1] = draw(st.binary(max_size=2))
    return bytes(raw)


@given(st.binary(max_size=200) | damaged(events.map(wire.to_event)))
def test_arbitrary_bytes_become_an_event_or_a_clear_error(raw: bytes) -> None:
    try:
        event = wire.from_event(session_pb2.Event.FromString(raw), ME)
    except (DecodeError, UsageError):
        return
    wire.to_event(event)


@given(st.binary(max_size=200) | damaged(instructions.map(wire.to_instruction)))
def test_arbitrary_bytes_become_an_instruction_or_a_clear_error(raw: bytes) -> None:
    try:
        instruction = wire.from_instruction(session_pb2.Instruction.FromString(raw), ME)
    except (DecodeError, UsageError):
        return
    wire.to_instruction(instruction)


@pytest.mark.parametrize(("message", "story"), MALFORMED_EVENTS)
def test_a_malformed_event_is_refused_by_field(message: session_pb2.Event, story: str) -> None:
    with pytest.raises(UsageError, match=story):
        wire.from_event(message, ME)


@pytest.mark.parametrize(("message", "story"), MALFORMED_INSTRUCTIONS)
def test_a_malformed_instruction_is_refused_by_field(message: session_pb2.Instruction, story: str) -> None:
    with pytest.raises(UsageError, match=story):
        wire.from_instruction(message, ME)


def test_an_unknown_number_of_a_newer_contract_is_refused() -> None:
    message = session_pb2.Event(transfer_ended=S.TransferEnded(member=ME, update=MINE))
    message.transfer_ended.end = 99  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"TransferEnded\.end=99"):
        wire.from_event(message, ME)


def damaged_spec(damage: Callable[[types_pb2.ModelSpec], object]) -> types_pb2.ModelSpec:
    tensor = TensorSpec(name="w", shape=(2, 3), dtype="float32")
    message = wire.to_spec(ModelSpec(name="m", layout=Layout((tensor,))))
    damage(message)
    return message


@pytest.mark.parametrize(
    ("damage", "story"),
    [
        (lambda m: setattr(m.layout[0], "dtype", "int7"), "dtype 'int7'"),
        (lambda m: setattr(m.rule, "lr", -1), "lr=-1.0"),
        (lambda m: m.ClearField("method"), "ModelSpec.method=0"),
        (lambda m: m.ClearField("layout"), "at least one tensor"),
        (lambda m: setattr(m, "tau_max", -1), "tau_max=-1"),
        (lambda m: setattr(m, "div_max", 0.5), "div_max"),
        (lambda m: m.ClearField("rule"), "rule"),
    ],
)
def test_a_malformed_model_is_refused_by_field(damage: Callable[[types_pb2.ModelSpec], object], story: str) -> None:
    with pytest.raises(UsageError, match=story):
        wire.from_spec(damaged_spec(damage))


@pytest.mark.parametrize("job", ["a,b", "a\nb", "x" * 201])
def test_a_job_that_nobody_can_read_is_refused(job: str) -> None:
    with pytest.raises(UsageError, match=r"JobClaim\.job=.*; allowed: printable characters without comma, at most 200"):
        wire.from_claim(types_pb2.JobClaim(job=job))


def test_server_epochs_of_other_models_are_refused() -> None:
    request = fabric_pb2.RegisterAsServerRequest(server_epochs=[1, 2])
    with pytest.raises(UsageError, match=r"RegisterAsServerRequest\.server_epochs=2; allowed: as many as models, 0"):
        wire.from_server_epochs(request)


def test_what_never_travels_on_a_session_is_refused_at_the_sender() -> None:
    with pytest.raises(UsageError, match="event='Tick'; allowed: PushRequested,"):
        wire.to_event(Tick())
    with pytest.raises(UsageError, match="instruction='Refuse'; allowed: HostModel,"):
        wire.to_instruction(Refuse(to=ME, cause=RefuseReason.NOT_YET, reason="wait"))
