"""Removing a model from a fabric."""

from __future__ import annotations

import asyncio

import grpc

from mlfabric.errors import UnavailableError, UsageError
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.security import SCHEDULER, Security
from mlfabric.security.secure_grpc import open_channel
from mlfabric.shell.scheduler_link import CHANNEL_OPTIONS
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["remove_model"]

WITHIN_S = 30.0
LOOK_AGAIN_S = 0.05


async def remove_model(scheduler: str, security: Security, name: str) -> None:
    """Have a model freed, and wait until it is.

    Raises:
        UsageError: there is none of this name, workers train it, or the certificate does not allow it.
        UnavailableError: no scheduler answers, or a member that holds the model does not.
        RefusedError: TLS between the two cannot be.
    """
    async with StatusReader(scheduler, security=security) as reader:
        newest = await reader.newest()
        async with open_channel(newest, SCHEDULER, security, CHANNEL_OPTIONS) as channel:
            try:
                await fabric_pb2_grpc.FabricServiceStub(channel).RemoveModel(
                    fabric_pb2.RemoveModelRequest(model=name), timeout=reader.timeout_s
                )
            except grpc.aio.AioRpcError as error:
                raise UsageError(error.details() or f"the scheduler refuses: {error.code().name}") from error
        try:
            async with asyncio.timeout(WITHIN_S):
                while any(model.whole == name for model in (await reader.read()).models):
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            waits = f"model {name!r} is not freed within {WITHIN_S:g} s"
            raise UnavailableError(f"{waits}; see who is silent: mlfabric status") from None
