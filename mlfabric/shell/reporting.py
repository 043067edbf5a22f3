"""Tells the monitor what finished transfers achieved. Shell-level, shared by every member that moves tensors.

A record is sent at once, and those that follow closely are gathered. While there is no monitor, or it does not answer,
they are dropped and counted: training never waits for a measurement.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import grpc

from mlfabric import clock
from mlfabric.channels import TransferRecord
from mlfabric.errors import UsageError
from mlfabric.model.specs import Role
from mlfabric.security import LOOPBACK, Security
from mlfabric.security.secure_grpc import open_channel
from mlfabric.v1 import monitor_pb2, monitor_pb2_grpc

__all__ = ["TransferReporter"]

REPORT_INTERVAL_S = 0.2
ANSWER_WITHIN_S = 1.0
KEEP_RECORDS = 4096
MONITOR = Role.MONITOR.value
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000)]
log = logging.getLogger("mlfabric.shell.reporting")
_pause = asyncio.sleep

_Record = tuple[TransferRecord, str, str, str]
"""What was measured, where the bytes came from, and where they went, or to whom."""


class TransferReporter:
    """One member's line to the monitor.

    Args:
        name: of this member.
        host: the machine that it runs on; "" if ``up_bps`` and ``down_bps`` are unknown as well.
        up_bps, down_bps: nominal rate of the host's link in bit/s; 0 means unknown.
        security: of the member.
        succeeds: the replica that it was before it took its server's place; "" of one that never was a replica.
    """

    def __init__(
        self,
        name: str,
        host: str = "",
        up_bps: int = 0,
        down_bps: int = 0,
        security: Security = LOOPBACK,
        *,
        succeeds: str = "",
    ) -> None:
        self._header = monitor_pb2.RecordTransfersRequest(
            member=name, host=host, up_bps=up_bps, down_bps=down_bps, succeeds=succeeds
        )
        self._records: deque[_Record] = deque()
        self._security = security
        self._address = ""
        self._token = b""
        self._connected_to = ""
        self._channel: grpc.aio.Channel | None = None
        self._wake = asyncio.Event()
        self.sent = 0
        self.dropped = 0

    def set_monitor(self, address: str, token: bytes) -> None:
        """Report to the monitor at ``host:port`` from now on, and show it this token; "" means that there is none."""
        if address != self._address:
            log.debug("transfers are reported to %s", address or "nobody")
        self._address, self._token = address, token

    def record(self, record: TransferRecord, from_host: str, to_host: str = "", to_peer: str = "") -> None:
        """Take in a finished transfer.

        Args:
            record: what this member measured.
            from_host, to_host: where the bytes came from and where they went.
            to_peer: the receiver, by its name or its host, if ``to_host`` is perhaps not known.
        """
        if not self._address or len(self._records) >= KEEP_RECORDS:
            self.dropped += 1
            return
        self._records.append((record, from_host, to_host, to_peer))
        self._wake.set()

    async def run(self) -> None:
        """Send records until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._send()
            await _pause(REPORT_INTERVAL_S)

    async def close(self) -> None:
        """Close the connection; what was not sent is dropped."""
        self.dropped += len(self._records)
        self._records.clear()
        await self._disconnect()

    async def _send(self) -> None:
        taken, self._records = self._records, deque()
        if not taken:
            return
        try:
            stub = await self._stub()
            if stub is None:
                self.dropped += len(taken)
                return
            await stub.RecordTransfers(self._message(taken), timeout=ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            self.dropped += len(taken)
            log.debug("%s records dropped, the monitor at %s: %s", len(taken), self._address, error.details())
        except UsageError as error:
            self.dropped += len(taken)
            log.warning("%s records dropped: %s", len(taken), error)
        else:
            self.sent += len(taken)

    def _message(self, taken: deque[_Record]) -> monitor_pb2.RecordTransfersRequest:
        message = monitor_pb2.RecordTransfersRequest()
        message.CopyFrom(self._header)
        message.token = self._token
        now_ns = clock.monotonic_ns()
        for record, from_host, to_host, to_peer in taken:
            message.records.add(
                from_host=from_host,
                to_host=to_host,
                to_peer=to_peer,
                bytes=record.bytes,
                seconds=record.seconds,
                paced=record.paced,
                ended_ago_s=(now_ns - record.ended_ns) / 1e9,
                busy_bytes=record.busy_bytes,
                busy_seconds=record.busy_ns / 1e9,
            )
        return message

    async def _stub(self) -> monitor_pb2_grpc.MonitorServiceAsyncStub | None:
        """Return a stub for the present address; None if there is none."""
        if self._address != self._connected_to:
            await self._disconnect()
        if not self._address:
            return None
        if self._channel is None:
            self._channel = open_channel(self._address, MONITOR, self._security, _CHANNEL_OPTIONS)
            self._connected_to = self._address
        return monitor_pb2_grpc.MonitorServiceStub(self._channel)

    async def _disconnect(self) -> None:
        channel, self._channel, self._connected_to = self._channel, None, ""
        if channel is not None:
            await channel.close()
