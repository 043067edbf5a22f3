"""Sums over real sockets: what comes out of them, and to whom outcomes go."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import mlfabric
from mlfabric.channels import Frame, FrameKind, TcpOptions
from mlfabric.protocol import (
    Outcome,
    TransferEnd,
    UpdateId,
)
from mlfabric.telemetry import FORWARDING_LOG
from mlfabric.v1 import data_pb2
from tests.aggregator.by_hand import (
    ELEMENTS,
    SIZE,
    TINY,
    Accepted,
    Stand,
    frame_of,
    granted_sum,
    image,
    offer_on,
    order,
    outcomes_of,
    say_outcomes,
    seal,
    send,
    takes,
    torn,
)
from tests.aggregator.stage import committed, sum_id, ticket, update
from tests.fabric.harness import PATIENCE_S, wait_until

MOST_CHUNK_BYTES = 512 * 1024
A, B = update("wa"), update("wb")


def test_it_registers_with_what_it_takes(stand: Stand) -> None:
    with mlfabric.register_as_aggregator(
        mlfabric.AggregatorOptions(
            scheduler=stand.scheduler.address, name="b", host="h", most_updates=5, tcp=TcpOptions(up_bps=1000)
        )
    ):
        request = stand.scheduler.registered.get(timeout=PATIENCE_S)
        assert (request.member.name, request.most_updates) == ("b", 5)
        assert (request.member.host, request.member.up_bps) == ("h", 1000)


def test_a_sum_has_two_images_with_their_coefficients_and_buffers_go_into_the_first_as_they_are(stand: Stand) -> None:
    inputs = (takes(A, first=0.5, second=-2.0), takes(B, first=0.25, second=3.0))
    stand.scheduler.tell(order(stand, 1, *inputs, images=2))
    for transfer, value, stats in ((A, 2.0, 5.0), (B, 4.0, 7.0)):
        send(stand.offer(transfer), transfer, image(value, stats))

    found = granted_sum(stand.accept(), sum_id(1), 2 * SIZE)
    first, second = found[: SIZE // 4], found[SIZE // 4 :]

    assert np.all(first[:ELEMENTS] == 2.0)
    assert np.all(second[:ELEMENTS] == 8.0)
    assert np.all(first[ELEMENTS:] == 12.0)
    assert np.all(second[ELEMENTS:] == 0.0)
    assert [stand.scheduler.ended().end for _ in range(2)] == [TransferEnd.RECEIVED] * 2
    assert stand.metric("mlfabric_received_bytes_total") == 2 * SIZE


def test_a_cut_through_sum_leaves_before_its_last_input_has_come(stand: Stand) -> None:
    stand.scheduler.tell(order(stand, 1, takes(A), takes(B), cut_through=True))
    line_a, line_b = stand.offer(A), stand.offer(B)
    receiver = stand.accept()
    send(line_a, A, image(1.0))
    frame_of(line_b, FrameKind.GRANT)
    half = SIZE // 2
    line_b.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(B), length=SIZE), image(2.0)[:half])

    frame_of(receiver, FrameKind.OFFER)
    receiver.send(Frame(kind=FrameKind.GRANT, ticket=ticket("out")))
    frame_of(receiver, FrameKind.PAYLOAD)
    assert np.all(receiver.payload(half // 2) == 3.0)

    line_b.socket.sendall(image(2.0)[half:])
    assert np.all(receiver.payload(SIZE - half // 2)[:1000] == 3.0)
    seal(line_b, B)
    assert frame_of(receiver, FrameKind.PAYLOAD).length == 0
    wait_until(lambda: stand.metric("mlfabric_sums_total") == 1, "the sum is counted")
    assert stand.metric("mlfabric_sum_updates_sum") == 2


def test_a_sum_of_sums_comes_through_two_aggregators_and_outcomes_find_their_way_back(stand: Stand) -> None:
    upper = stand.aggregator("b")
    c = update("wc")
    top = order(stand, 2, takes(sum_id(1)), takes(c), to="b", members=(A, B, c), cut_through=True)
    low = order(
        stand, 1, takes(A), takes(B), cut_through=True, address=upper._service.address, ticket=ticket(sum_id(1))
    )
    stand.scheduler.tell(top, low)
    lines = {A: stand.offer(A), B: stand.offer(B), c: stand.offer(c, to="b")}
    for value, (transfer, line) in enumerate(lines.items(), start=1):
        send(line, transfer, image(float(value)))

    receiver = stand.accept()
    assert np.all(granted_sum(receiver, sum_id(2), SIZE)[:ELEMENTS] == 6.0)
    frame_of(receiver, FrameKind.PAYLOAD)
    told: dict[UpdateId, Outcome] = {A: committed(1), B: committed(2), c: committed(3)}
    say_outcomes(receiver, told)

    assert {transfer: outcomes_of(line) for transfer, line in lines.items()} == {t: {t: o} for t, o in told.items()}


def test_small_updates_and_small_sums_travel_with_their_offers(stand: Stand) -> None:
    size = TINY.layout.size_bytes
    inputs = (takes(A, size_bytes=size), takes(B, first=2.0, size_bytes=size))
    stand.scheduler.tell(order(stand, 1, *inputs, model=TINY.name, cut_through=True))
    lines = [
        stand.offer(transfer, spec=TINY, image=image(value, spec=TINY)) for transfer, value in ((A, 1.0), (B, 4.0))
    ]
    receiver = stand.accept()
    offered = data_pb2.OfferMeta.FromString(frame_of(receiver, FrameKind.OFFER).meta)

    assert np.all(np.frombuffer(offered.image, dtype=np.float32) == 9.0)
    say_outcomes(receiver, {A: committed(1), B: committed(2)})
    assert [outcomes_of(line) for line in lines] == [{A: committed(1)}, {B: committed(2)}]


def test_connections_are_used_again(stand: Stand) -> None:
    line = stand.connect()
    receivers: list[Accepted] = []
    for counter in (1, 2):
        transfer = update("wa", counter)
        stand.scheduler.tell(order(stand, counter, takes(transfer)))
        offer_on(line, transfer)
        send(line, transfer, image(1.0))
        receivers = receivers or [stand.accept()]
        granted_sum(receivers[0], sum_id(counter), SIZE)
        frame_of(receivers[0], FrameKind.PAYLOAD)
        say_outcomes(receivers[0], {transfer: committed(counter)})
        assert outcomes_of(line) == {transfer: committed(counter)}


def test_memory_is_given_back_and_never_more_than_two_tensors_and_a_chunk_for_each_input(stand: Stand) -> None:
    inputs = (takes(A, first=0.5, second=2.0), takes(B, first=0.5, second=3.0))
    stand.scheduler.tell(order(stand, 1, *inputs, images=2, cut_through=True))
    lines = {transfer: stand.offer(transfer) for transfer in (A, B)}
    buffers = stand.aggregators["a"]._service._buffers
    for transfer, line in lines.items():
        frame_of(line, FrameKind.GRANT)
        line.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket(transfer), length=SIZE), image(1.0)[: SIZE // 2])
    wait_until(lambda: buffers.memory_bytes()["sums"] > 2 * SIZE, "they come")
    assert buffers.memory_bytes()["sums"] <= 2 * SIZE + 3 * MOST_CHUNK_BYTES
    lines[A].socket.close()
    torn(stand, 1)
    assert buffers.memory_bytes() == {"sums": 0, "models": 0}


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO], ids=["listened to", "not listened to"])
def test_it_logs_who_sent_what_to_be_summed_when_if_somebody_listens(
    stand: Stand, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    with caplog.at_level(level, FORWARDING_LOG):
        stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
        for transfer in (A, B):
            send(stand.offer(transfer), transfer, image(1.0))
        assert [stand.scheduler.ended().end for _ in range(2)] == [TransferEnd.RECEIVED] * 2

    records = [record.__dict__["forwarded"] for record in caplog.records if record.name == FORWARDING_LOG]
    expected = [("host-w", "host-a", SIZE)] * 2 if level == logging.DEBUG else []
    assert [(one.from_host, one.to_host, one.n_bytes) for one in records] == expected
    assert all(one.began_ns < one.ended_ns for one in records)
