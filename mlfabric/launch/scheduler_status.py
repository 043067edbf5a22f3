"""What the scheduler says of the fabric, and whether it is there at all."""

from __future__ import annotations

import asyncio
import time

import grpc

from mlfabric.errors import RefusedError, UnavailableError
from mlfabric.security import LOOPBACK, SCHEDULER, Security
from mlfabric.security.diagnosis import tls_fault
from mlfabric.security.secure_grpc import open_channel
from mlfabric.shell.scheduler_link import CHANNEL_OPTIONS
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["HERE", "StatusReader"]

HERE = "here"
LOOK_AGAIN_S = 0.1
_ABSENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class StatusReader:
    """Asks the scheduler for the status; an async context manager.

    Args:
        scheduler: its ``host:port``, or those of several, joined by commas: the newest that answers counts.
        timeout_s: longest wait for an answer.
        security: of who asks.
    """

    def __init__(self, scheduler: str, timeout_s: float = 3.0, security: Security = LOOPBACK) -> None:
        self.scheduler = scheduler
        self.timeout_s = timeout_s
        self._security = security

    async def __aenter__(self) -> StatusReader:
        self._channels = {
            address: open_channel(address, SCHEDULER, self._security, CHANNEL_OPTIONS)
            for address in self.scheduler.split(",")
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def read(
        self, *, all_samples: bool = False, history_since: int | None = None
    ) -> fabric_pb2.GetStatusResponse:
        """Return the status; of samples all ranges only if that is asked for, and what happened since an entry.

        Raises:
            UnavailableError: no scheduler answers there, or what answers is none.
            RefusedError: TLS between the two cannot be; says why.
        """
        request = fabric_pb2.GetStatusRequest(all_samples=all_samples, history_since=history_since)
        return (await self._newest(request))[1]

    async def newest(self) -> str:
        """Return the address of the newest scheduler that answers.

        Raises:
            UnavailableError, RefusedError: as ``read``.
        """
        return (await self._newest(fabric_pb2.GetStatusRequest()))[0]

    async def _newest(self, request: fabric_pb2.GetStatusRequest) -> tuple[str, fabric_pb2.GetStatusResponse]:
        answers = await asyncio.gather(*(self._ask(a, request) for a in self._channels), return_exceptions=True)
        found = [
            (address, answer)
            for address, answer in zip(self._channels, answers, strict=True)
            if isinstance(answer, fabric_pb2.GetStatusResponse)
        ]
        if found:
            return max(found, key=lambda one: one[1].term)
        raise next(answer for answer in answers if isinstance(answer, BaseException))

    async def _ask(self, address: str, request: fabric_pb2.GetStatusRequest) -> fabric_pb2.GetStatusResponse:
        stub = fabric_pb2_grpc.FabricServiceStub(self._channels[address])
        try:
            return await stub.GetStatus(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as error:
            if fault := await tls_fault(address, SCHEDULER, self._security):
                raise RefusedError(f"cannot ask the scheduler at {address}: {fault}") from error
            if error.code() in _ABSENT:
                why = f"no scheduler answers at {address} ({error.details()})"
            else:
                why = f"what answers at {address} is no scheduler ({error.code().name}: {error.details()})"
            raise UnavailableError(f"{why}; start one with 'mlfabric up', or give --scheduler HOST:PORT") from error

    async def round_trip_s(self) -> float:
        """Return how long one status takes.

        Raises:
            UnavailableError: as ``read``.
        """
        began = time.perf_counter()
        await self.read()
        return time.perf_counter() - began

    async def wait_for(self, members: frozenset[str]) -> fabric_pb2.GetStatusResponse:
        """Wait until the scheduler answers and all ``members`` are here; return that status."""
        while True:
            try:
                status = await self.read()
            except (RefusedError, UnavailableError):
                status = fabric_pb2.GetStatusResponse()
            if status.term and members <= {m.name for m in status.members if m.state == HERE}:
                return status
            await asyncio.sleep(LOOK_AGAIN_S)
