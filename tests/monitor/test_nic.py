"""A network interface's counters are read as they are."""

from __future__ import annotations

import logging
import socket

import pytest

from mlfabric.errors import UsageError
from mlfabric.monitor.nic import NicSampler


def test_bytes_over_loopback_are_counted_in_both_directions() -> None:
    sampler = NicSampler("lo")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
    ):
        receiver, _ = listener.accept()
        with receiver:
            for _ in range(10):
                sender.sendall(bytes(10_000))
                while receiver.recv(10_000, socket.MSG_WAITALL) != bytes(10_000):
                    pass
    sample = sampler.sample()
    assert sample is not None
    assert sample.sent_bytes >= 100_000
    assert sample.received_bytes >= 100_000
    assert sample.up_bps == 8 * sample.sent_bytes / (sample.ended_s - sample.started_s)


def test_samples_follow_one_another_without_a_gap() -> None:
    sampler = NicSampler("lo")
    first, second = sampler.sample(), sampler.sample()
    assert first is not None
    assert second is not None
    assert second.started_s == first.ended_s


def test_loopback_states_no_speed_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sampler = NicSampler("lo")
        samples = [sampler.sample() for _ in range(3)]
    assert caplog.text.count("interface lo states no speed") == 1
    assert {sample.speed_bps for sample in samples if sample is not None} == {0}


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"interface 'eth99' does not exist; allowed: .*lo"):
        NicSampler("eth99")
