"""Input to an aggregator that cannot be right: refused, counted, and the service lives."""

from __future__ import annotations

import struct
from typing import Any

import pytest

import mlfabric
from mlfabric.channels import Frame, FrameKind
from mlfabric.errors import UsageError
from mlfabric.protocol import (
    Dropped,
    DropReason,
)
from mlfabric.transfer import offers
from tests.aggregator.by_hand import (
    SIZE,
    TINY,
    Stand,
    a_good_sum_is_made,
    frame_of,
    image,
    order,
    outcomes_of,
    payload,
    refusal_of,
    takes,
    torn,
    want,
)
from tests.aggregator.stage import get, ticket, update
from tests.fabric.harness import wait_until

A, B = update("wa"), update("wb")
X = get("wx")


def test_garbage_on_the_data_port_is_cut_off_and_counted(stand: Stand) -> None:
    odd_kind = b"MLFB" + struct.pack("!HBB16sQQI", 1, 99, 0, bytes(16), 0, 0, 0)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), odd_kind):
        line = stand.connect()
        line.socket.sendall(garbage)
        assert line.is_closed()
    wait_until(lambda: stand.metric("mlfabric_broken_connections_total") == 3, "all are counted")
    a_good_sum_is_made(stand)


def test_frames_that_break_the_rules_end_their_connection_only(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A)))
    outcome = Frame(kind=FrameKind.OUTCOME, ticket=bytes(16))
    not_a_message = Frame(kind=FrameKind.OFFER, ticket=bytes(16), meta=b"\xff\xff")
    nothing = Frame(kind=FrameKind.OFFER, ticket=bytes(16))
    unasked = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=8)
    refuse = Frame(kind=FrameKind.REFUSE, ticket=bytes(16))
    for frame in (outcome, not_a_message, nothing, unasked, refuse):
        line = stand.connect()
        line.send(frame, bytes(frame.length))
        assert line.is_closed(), frame
    a_good_sum_is_made(stand)


def test_a_second_transfer_on_a_busy_connection_ends_it(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
    line = stand.offer(A)
    frame_of(line, FrameKind.GRANT)
    want(line, X)

    assert line.is_closed()
    assert "a second transfer" in torn(stand, 1)


def test_an_offer_with_an_image_of_another_length_is_cut_off(stand: Stand) -> None:
    assert stand.offer(A, spec=TINY, image=bytes(8)).is_closed()


def test_a_ticket_that_nobody_vouches_for_is_refused(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "EARLY_WAIT_NS", 10_000_000)
    stand.scheduler.tell(order(stand, 1, takes(A)))
    line = stand.offer(A, ticket=b"guessed".ljust(16))
    wanting = stand.connect()
    want(wanting, X)

    reason = "the scheduler never announced this ticket"
    assert (refusal_of(line), refusal_of(wanting)) == (reason, reason)
    wait_until(lambda: stand.metric("mlfabric_refused_transfers_total") == 2, "both are counted")
    monkeypatch.undo()  # what is good may come before the scheduler's word, too
    a_good_sum_is_made(stand)


@pytest.mark.parametrize("wrong", [{"digest": 7}, {"size_bytes": SIZE + 16}])
def test_an_update_of_another_layout_is_dropped(stand: Stand, wrong: dict[str, Any]) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))

    (outcome,) = outcomes_of(stand.offer(A, **wrong)).values()
    assert isinstance(outcome, Dropped)
    assert outcome.cause is DropReason.WRONG_LAYOUT
    assert stand.scheduler.ended().cause is DropReason.WRONG_LAYOUT
    torn(stand, 1)
    a_good_sum_is_made(stand)


@pytest.mark.parametrize("length", [SIZE - 16, SIZE + 16, 1 << 62])
def test_a_payload_of_another_length_than_granted_is_cut_off(stand: Stand, length: int) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
    line = stand.offer(A)
    frame_of(line, FrameKind.GRANT)
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(A), length=length))

    assert line.is_closed()
    assert "bytes" in torn(stand, 1)
    a_good_sum_is_made(stand)


def test_something_else_than_a_seal_tears_the_sum(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
    line = stand.offer(A)
    payload(line, A, image(1.0))
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(A), length=16), bytes(16))

    assert "wanted a seal" in torn(stand, 1)


@pytest.mark.parametrize("option", ["most_updates", "memory_budget_bytes"])
def test_options_that_cannot_be_used_are_named(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}=-1; allowed: >= 0"):
        mlfabric.AggregatorOptions(scheduler="127.0.0.1:1", **{option: -1})  # type: ignore[arg-type]
