from __future__ import annotations

import logging

import pytest

from mlfabric.protocol import TransferEnd
from mlfabric.telemetry import FORWARDING_LOG, Forwarding
from tests.aggregator.by_hand import SIZE, Stand, image, order, send, takes
from tests.aggregator.stage import update

A, B = update("wa"), update("wb")


def test_it_logs_who_sent_what_to_be_summed_when(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, FORWARDING_LOG):
        stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
        for transfer in (A, B):
            send(stand.offer(transfer), transfer, image(1.0))
        assert [stand.scheduler.ended().end for _ in range(2)] == [TransferEnd.RECEIVED] * 2

    found: list[Forwarding] = [record.__dict__["forwarded"] for record in caplog.records]
    assert [(one.from_host, one.to_host, one.n_bytes) for one in found] == [("host-w", "host-a", SIZE)] * 2
    assert all(one.began_ns < one.ended_ns for one in found)


def test_it_says_nothing_of_that_while_nobody_listens(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, FORWARDING_LOG):
        stand.scheduler.tell(order(stand, 1, takes(A), takes(B)))
        for transfer in (A, B):
            send(stand.offer(transfer), transfer, image(1.0))
        assert [stand.scheduler.ended().end for _ in range(2)] == [TransferEnd.RECEIVED] * 2

    assert not [record for record in caplog.records if record.name == FORWARDING_LOG]
