"""Sums over real sockets that cannot be finished: everybody hears of it, and the service lives."""

from __future__ import annotations

import socket

import pytest

from mlfabric.channels import Frame, FrameKind
from mlfabric.protocol import (
    CancelSum,
    Dropped,
    DropReason,
    TransferEnd,
)
from mlfabric.transfer.exchange import LONGEST_REASON
from mlfabric.v1 import data_pb2
from tests.aggregator.by_hand import (
    SIZE,
    SPEC,
    TINY,
    Stand,
    a_good_sum_is_made,
    frame_of,
    granted_sum,
    image,
    offer_on,
    order,
    outcomes_of,
    payload,
    refusal_of,
    send,
    take_back,
    takes,
    torn,
)
from tests.aggregator.stage import sum_id, ticket, update

A, B = update("wa"), update("wb")


def test_a_broken_input_tears_the_sum_for_everybody(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B), cut_through=True))
    line_a, line_b = stand.offer(A), stand.offer(B)
    receiver = stand.accept()
    send(line_a, A, image(1.0))
    assert stand.scheduler.ended().transfer == A
    frame_of(receiver, FrameKind.OFFER)
    receiver.send(Frame(kind=FrameKind.GRANT, ticket=ticket("out")))
    frame_of(line_b, FrameKind.GRANT)
    line_b.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(B), length=SIZE), image(2.0)[: SIZE // 2])
    line_b.socket.close()

    assert "wb#0" in refusal_of(line_a)
    assert "wb#0" in torn(stand, 1)
    assert frame_of(receiver, FrameKind.PAYLOAD).length == SIZE
    with pytest.raises(AssertionError, match="ended within a payload"):
        receiver.payload(SIZE)
    a_good_sum_is_made(stand)
    assert stand.metric("mlfabric_sums_incomplete_total") == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_input_that_is_not_finite_is_dropped_and_its_connection_lives(stand: Stand, value: float) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
    line_a, line_b = stand.offer(A), stand.offer(B)
    send(line_a, A, image(1.0))
    assert stand.scheduler.ended().end is TransferEnd.RECEIVED
    send(line_b, B, image(value))

    (outcome,) = outcomes_of(line_b).values()
    assert outcome == Dropped(cause=DropReason.NOT_FINITE, detail="w has NaN or Inf")
    assert "NaN or Inf" in refusal_of(line_a)
    ended = [stand.scheduler.ended() for _ in range(2)]
    assert [(e.transfer, e.end, e.cause) for e in ended] == [
        (B, TransferEnd.DISCARDED, DropReason.NOT_FINITE),
        (sum_id(1), TransferEnd.TORN, None),
    ]
    later = update("wb", 1)
    stand.scheduler.tell(order(stand, 2, takes(later)))
    offer_on(line_b, later)
    frame_of(line_b, FrameKind.GRANT)
    a_good_sum_is_made(stand)


def test_a_small_update_that_is_not_finite_is_dropped_too(stand: Stand) -> None:
    size = TINY.layout.size_bytes
    stand.scheduler.tell(order(stand, 1, takes(A, size_bytes=size), takes(B, size_bytes=size), model=TINY.name))
    line = stand.offer(A, spec=TINY, image=image(float("nan"), spec=TINY))

    (outcome,) = outcomes_of(line).values()
    assert isinstance(outcome, Dropped)
    assert outcome.cause is DropReason.NOT_FINITE
    torn(stand, 1)


@pytest.mark.parametrize(("is_sent", "words"), [(True, "changed"), (False, "changed"), (False, "never mind " * 5957)])
def test_an_update_that_was_changed_is_taken_back_and_dropped_with_no_endless_reason(
    stand: Stand, is_sent: bool, words: str
) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
    line = stand.offer(A)
    if is_sent:
        payload(line, A, image(1.0))
    else:
        frame_of(line, FrameKind.GRANT)
    take_back(line, ticket(A), words)

    (outcome,) = outcomes_of(line).values()
    assert outcome == Dropped(cause=DropReason.CHANGED, detail=words[:LONGEST_REASON])
    ended = stand.scheduler.ended()
    assert (ended.transfer, ended.end, ended.cause) == (A, TransferEnd.DISCARDED, DropReason.CHANGED)
    assert words[:100] in torn(stand, 1)
    a_good_sum_is_made(stand)


REFUSAL = data_pb2.RefuseMeta(reason="delay 9 is above the bound").SerializeToString()


@pytest.mark.parametrize(
    ("kind", "meta", "words"),
    [
        (FrameKind.REFUSE, REFUSAL, "delay 9 is above the bound"),
        (FrameKind.WANT, b"\xff", "a WANT frame came; wanted OUTCOME"),
        (FrameKind.OUTCOME, b"\xff", "Error parsing message"),
    ],
    ids=["refusal", "another frame", "no message"],
)
def test_a_receiver_that_refuses_the_sum_or_answers_nonsense_tears_it(
    stand: Stand, kind: FrameKind, meta: bytes, words: str
) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A)))
    line = stand.offer(A)
    send(line, A, image(1.0))
    receiver = stand.accept()
    granted_sum(receiver, sum_id(1), SIZE)
    receiver.send(Frame(kind=kind, ticket=ticket("out"), meta=meta))

    told = refusal_of(line)
    assert told == torn(stand, 1)
    assert told.startswith(f"server-0: {words}")
    stand.listen_anew()
    a_good_sum_is_made(stand)


def test_a_receiver_that_goes_away_while_inputs_are_awaited_tears_the_sum_at_once(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B), cut_through=True))
    line = stand.offer(A)
    receiver = stand.accept()
    frame_of(receiver, FrameKind.OFFER)
    receiver.send(Frame(kind=FrameKind.GRANT, ticket=ticket("out")))
    frame_of(receiver, FrameKind.PAYLOAD)
    receiver.socket.close()

    assert line.receive() is not None  # the grant
    assert line.is_closed()
    assert "server-0" in torn(stand, 1)


def test_a_receiver_that_is_not_there_tears_the_sum(stand: Stand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    stand.scheduler.tell(order(stand, 1, takes(A), address=address))
    line = stand.offer(A)
    send(line, A, image(1.0))

    assert f"cannot reach {address}" in refusal_of(line)
    assert f"cannot reach {address}" in torn(stand, 1)


def test_a_cancelled_sum_ends_for_everybody(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B), cut_through=True))
    line_a, line_b = stand.offer(A), stand.offer(B)
    receiver = stand.accept()
    frame_of(receiver, FrameKind.OFFER)
    send(line_a, A, image(1.0))
    assert stand.scheduler.ended().end is TransferEnd.RECEIVED
    frame_of(line_b, FrameKind.GRANT)
    stand.scheduler.tell(CancelSum(to="a", model=SPEC.name, sum=sum_id(1), reason="a worker is gone"))

    assert refusal_of(line_a) == "a worker is gone"
    assert line_b.is_closed()
    assert receiver.is_closed()
    a_good_sum_is_made(stand)
