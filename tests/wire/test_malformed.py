"""Nothing malformed gets past the wire: it is refused by field, and no other error escapes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from mlfabric import wire
from mlfabric.errors import UsageError
from mlfabric.protocol import (
    Refuse,
    RefuseReason,
    Tick,
)
from mlfabric.samples import MOST_RANGES
from mlfabric.specs import (
    Layout,
    ModelSpec,
    Role,
    TensorSpec,
)
from mlfabric.v1 import session_pb2, types_pb2
from tests.wire.strategies import ME, events, instructions

MINE = types_pb2.RequestId(worker=ME, incarnation=1, counter=2)
VERSION = types_pb2.ModelVersion(epoch=1, number=2)
S = session_pb2
ROUND = S.RoundId(epoch=1, counter=2)
GRADIENT = S.UPDATE_KIND_GRADIENT
MALFORMED_EVENTS = [
    (S.Event(), r"Event\.event=None; allowed: push_requested,"),
    (
        S.Event(push_requested=S.PushRequested(computed_from=VERSION, kind=GRADIENT)),
        r"PushRequested\.update is missing",
    ),
    (S.Event(push_requested=S.PushRequested(update=MINE, kind=GRADIENT)), r"PushRequested\.computed_from is missing"),
    (
        S.Event(push_requested=S.PushRequested(update=MINE, computed_from=VERSION)),
        r"PushRequested\.kind=0; allowed: 1 \(GRADIENT\), 2 \(INITIAL\)",
    ),
    (
        S.Event(
            push_requested=S.PushRequested(update=types_pb2.RequestId(worker="x"), computed_from=VERSION, kind=GRADIENT)
        ),
        r"PushRequested\.update\.worker='x'; allowed: 'node-3', whose session this is",
    ),
    (S.Event(get_requested=S.GetRequested(get=MINE)), r"GetRequested\.min_version is missing"),
    (S.Event(worker_holds=S.WorkerHolds(worker="x")), r"WorkerHolds\.worker='x'"),
    (S.Event(server_holds=S.ServerHolds(server=ME, version=VERSION)), r"ServerHolds\.spec is missing"),
    (S.Event(commits_reported=S.CommitsReported(server="x")), r"CommitsReported\.server='x'"),
    (
        S.Event(commits_reported=S.CommitsReported(server=ME, commits=[S.Commit(update=MINE)])),
        r"Commit\.version is missing",
    ),
    (S.Event(initial_received=S.InitialReceived(server=ME)), r"InitialReceived\.version is missing"),
    (
        S.Event(transfer_ended=S.TransferEnded(member=ME, end=S.TRANSFER_END_RECEIVED)),
        r"TransferEnded\.transfer=None; allowed: update, get or sum",
    ),
    (S.Event(transfer_ended=S.TransferEnded(member=ME, update=MINE)), r"TransferEnded\.end=0; allowed: 1 \(RECEIVED\)"),
    (S.Event(samples_dropped=S.SamplesDropped(samples=[1, 2, 3])), r"SamplesDropped\.samples='3 numbers'"),
    (S.Event(samples_dropped=S.SamplesDropped(samples=[4, 0])), r"SamplesDropped\.samples='samples from 4 up to 4'"),
    (
        S.Event(samples_dropped=S.SamplesDropped(samples=[2**62, 1])),
        r"allowed: ranges that are not empty, up to 2\*\*62",
    ),
    (
        S.Event(
            push_requested=S.PushRequested(
                update=MINE, computed_from=VERSION, kind=GRADIENT, samples=[1] * 2 * (MOST_RANGES + 1)
            )
        ),
        r"PushRequested\.samples='514 numbers'; allowed: 2 for each of at most 256 ranges",
    ),
    (S.Event(samples_reported=S.SamplesReported(server="x")), r"SamplesReported\.server='x'"),
    (S.Event(samples_reported=S.SamplesReported(server=ME)), r"SamplesReported\.counts is missing"),
    (
        S.Event(samples_reported=S.SamplesReported(server=ME, counts=S.SampleCounts(runs=[0, 4, 0]))),
        r"SampleCounts\.runs='samples trained on 0 times'",
    ),
    (
        S.Event(samples_reported=S.SamplesReported(server=ME, counts=S.SampleCounts(runs=[0, 4, 1, 0, 4, 1]))),
        r"SampleCounts\.runs='two runs that are one'",
    ),
    (S.Event(samples_wanted=S.SamplesWanted(limit=8)), r"SamplesWanted\.limit='0 samples before 8'"),
    (S.Event(link_probed=S.LinkProbed(bps=1)), r"LinkProbed\.round is missing"),
    (S.Event(link_probed=S.LinkProbed(round=ROUND)), r"LinkProbed\.bps=0; allowed: 1 or more"),
]
MALFORMED_INSTRUCTIONS = [
    (S.Instruction(), r"Instruction\.instruction=None; allowed: host_model,"),
    (S.Instruction(host_model=S.HostModel()), r"HostModel\.spec is missing"),
    (S.Instruction(samples_granted=S.SamplesGranted()), r"SamplesGranted\.answer=0; allowed: 1 \(GRANTED\)"),
    (S.Instruction(send=S.Send(receiver="s")), r"Send\.update is missing"),
    (
        S.Instruction(expect=S.Expect(transfer=types_pb2.TransferId(update=MINE))),
        r"0 members, 0 parts'; allowed: at least 1",
    ),
    (S.Instruction(expect=S.Expect(members=[S.Expected(update=MINE)], parts=1)), r"Expect\.transfer is missing"),
    (
        S.Instruction(
            expect=S.Expect(transfer=types_pb2.TransferId(update=MINE), members=[S.Expected(update=MINE)], parts=1)
        ),
        r"Expected\.computed_from is missing",
    ),
    (S.Instruction(void=S.Void(transfer=types_pb2.TransferId())), r"TransferId\.transfer=None; allowed: update or sum"),
    (S.Instruction(sum=S.Sum()), r"Sum\.sum is missing"),
    (S.Instruction(sum=S.Sum(sum=types_pb2.SumId())), r"0 inputs, 0 images'; allowed: at least 1 input, and 1 or 2"),
    (S.Instruction(cancel_sum=S.CancelSum()), r"CancelSum\.sum is missing"),
    (S.Instruction(hand_on=S.HandOn()), r"HandOn\.get is missing"),
    (S.Instruction(cancel_hand_on=S.CancelHandOn()), r"CancelHandOn\.get is missing"),
    (S.Instruction(drop=S.Drop(update=MINE)), r"Drop\.cause=0; allowed: 1 \(DEADLINE_PAST\)"),
    (S.Instruction(resolve=S.Resolve(update=MINE)), r"Resolve\.outcome is missing"),
    (S.Instruction(resolve=S.Resolve(update=MINE, outcome=S.Outcome())), r"Outcome\.outcome=None; allowed: committed"),
    (S.Instruction(serve=S.Serve(min_version=VERSION)), r"Serve\.get is missing"),
    (S.Instruction(cancel_serve=S.CancelServe()), r"CancelServe\.get is missing"),
    (S.Instruction(probe=S.Probe(size_bytes=1)), r"Probe\.round is missing"),
    (S.Instruction(probe=S.Probe(round=ROUND)), r"Probe\.size_bytes=0; allowed: 1 or more"),
]


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


def _spec_message() -> types_pb2.ModelSpec:
    tensor = TensorSpec(name="w", shape=(2, 3), dtype="float32")
    return wire.to_spec(ModelSpec(name="m", layout=Layout((tensor,))))


def test_a_malformed_model_is_refused_by_field() -> None:
    damages: dict[str, types_pb2.ModelSpec] = {}
    for story in (
        "dtype 'int7'",
        "lr=-1.0",
        "ModelSpec.mode=0",
        "at least one tensor",
        "tau_max=-1",
        "div_max",
        "rule",
    ):
        damages[story] = _spec_message()
    damages["dtype 'int7'"].layout[0].dtype = "int7"
    damages["lr=-1.0"].rule.lr = -1
    damages["ModelSpec.mode=0"].ClearField("mode")
    damages["at least one tensor"].ClearField("layout")
    damages["tau_max=-1"].tau_max = -1
    damages["div_max"].div_max = 0.5
    damages["rule"].ClearField("rule")
    for story, message in damages.items():
        with pytest.raises(UsageError, match=story):
            wire.from_spec(message)


def test_a_member_without_name_or_host_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Member\.name=''"):
        wire.from_member(types_pb2.Member(host="h"), Role.WORKER)
    with pytest.raises(UsageError, match=r"Member\.host=''"):
        wire.from_member(types_pb2.Member(name="w"), Role.WORKER)


def test_link_rates_without_names_are_refused() -> None:
    rate = session_pb2.LinkRate(bps=1)
    with pytest.raises(UsageError, match=r"LinksReported\.monitor=''"):
        wire.from_event(session_pb2.Event(links_reported=session_pb2.LinksReported(rates=[rate])), ME)
    with pytest.raises(UsageError, match=r"LinkRate\.host=''"):
        wire.from_event(session_pb2.Event(links_reported=session_pb2.LinksReported(monitor=ME, rates=[rate])), ME)


def test_what_never_travels_on_a_session_is_refused_at_the_sender() -> None:
    with pytest.raises(UsageError, match="event='Tick'; allowed: PushRequested,"):
        wire.to_event(Tick())
    with pytest.raises(UsageError, match="instruction='Refuse'; allowed: HostModel,"):
        wire.to_instruction(Refuse(to=ME, cause=RefuseReason.NOT_YET, reason="wait"))
