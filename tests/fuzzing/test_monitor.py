"""The monitor's service, with records that anybody could send."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric import wire
from mlfabric.monitor.service import MonitorConfig, MonitorService
from mlfabric.network import MAX_RATE_BPS
from mlfabric.security.tokens import token_at
from mlfabric.v1 import monitor_pb2, monitor_pb2_grpc

from .messages import Words, noise, random_message

WORDS = Words(names=("a", "b", "c"), models=("net",), samples={}, size_bytes=2**20, epoch=1, wildness=0.1)
NOBODY = "127.0.0.1:9"
TOKEN = b"t" * 16
FITTING = (
    *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED),
)


def _honest() -> monitor_pb2.RecordTransfersRequest:
    record = monitor_pb2.TransferRecord(from_host="good", to_host="a", bytes=10**7, seconds=1.0)
    return monitor_pb2.RecordTransfersRequest(
        member="good", host="good", records=[record], up_bps=80_000_000, token=token_at(TOKEN, "good")
    )


async def _started(most_hosts: int = 4096) -> MonitorService:
    """Start a monitor that takes reports as if a scheduler had admitted it."""
    monitor = MonitorService(MonitorConfig(scheduler=NOBODY, most_hosts=most_hosts))
    await monitor.start()
    assert monitor._session is not None
    monitor._session.token = TOKEN
    return monitor


async def _storm(seed: int, calls: int, most_hosts: int) -> None:
    draw = random.Random(seed)
    monitor = await _started(most_hosts)
    try:
        async with grpc.aio.insecure_channel(monitor.address) as channel:
            stub = monitor_pb2_grpc.MonitorServiceStub(channel)
            raw: Any = channel.unary_unary("/mlfabric.v1.MonitorService/RecordTransfers")
            await stub.RecordTransfers(_honest(), timeout=20)
            for _ in range(calls):
                request = random_message(monitor_pb2.RecordTransfersRequest, draw, WORDS)
                if draw.random() < 0.9:
                    request.token = token_at(TOKEN, request.member)
                damaged = noise(request.SerializeToString(), draw)
                call = raw(damaged, timeout=20) if draw.random() < 0.2 else stub.RecordTransfers(request, timeout=20)
                assert await call.code() in FITTING, f"{await call.code()} does not fit: {await call.details()}"
            await stub.RecordTransfers(_honest(), timeout=20)
            estimates = monitor._estimates(time.monotonic())
            assert estimates
            assert len({link.host for link in estimates}) <= most_hosts
            wire.to_event(monitor._event(estimates)).SerializeToString()
    finally:
        await monitor.close()


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_recorded_the_status_fits_and_estimates_can_be_told(seed: int) -> None:
    asyncio.run(_storm(seed, calls=40, most_hosts=5))


async def test_a_transfer_that_was_faster_than_any_link_can_be_told_to_the_scheduler() -> None:
    monitor = await _started()
    record = monitor_pb2.TransferRecord(from_host="a", to_host="b", bytes=2**64 - 1, seconds=1e-6)
    request = monitor_pb2.RecordTransfersRequest(
        member="m", host="a", up_bps=2**64 - 1, records=[record], token=token_at(TOKEN, "m")
    )
    try:
        async with grpc.aio.insecure_channel(monitor.address) as channel:
            await monitor_pb2_grpc.MonitorServiceStub(channel).RecordTransfers(request, timeout=20)
        told = monitor._event(monitor._estimates(time.monotonic()))
        assert told.rates
        assert max(rate.bps for rate in told.rates) <= MAX_RATE_BPS
    finally:
        await monitor.close()


async def test_hosts_beyond_the_limit_are_refused_and_known_ones_still_heard() -> None:
    monitor = await _started(most_hosts=2)
    try:
        async with grpc.aio.insecure_channel(monitor.address) as channel:
            stub = monitor_pb2_grpc.MonitorServiceStub(channel)
            await stub.RecordTransfers(_honest(), timeout=20)
            stranger = monitor_pb2.RecordTransfersRequest(member="m", host="third", token=token_at(TOKEN, "m"))
            with pytest.raises(grpc.aio.AioRpcError, match="2 hosts are known and 1 new; allowed: 2") as caught:
                await stub.RecordTransfers(stranger, timeout=20)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await stub.RecordTransfers(_honest(), timeout=20)
            assert {link.host for link in monitor._estimates(time.monotonic())} <= {"good", "a"}
    finally:
        await monitor.close()
