"""Holding a job at the scheduler: it has a name, and goes on until whoever runs it has ended, in whatever way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from mlfabric.errors import UnavailableError, UsageError
from mlfabric.security import SCHEDULER, Security
from mlfabric.security.secure_grpc import open_channel
from mlfabric.shell.scheduler_link import CHANNEL_OPTIONS
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["check_job_name", "held_job", "stem_of"]

AGAIN_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FOR_GOOD = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)


def check_job_name(name: str) -> None:
    """Check the name that somebody gives a job; "" leaves it to the scheduler.

    Raises:
        UsageError: it cannot begin the names of workers and models.
    """
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"--job {name}; allowed: letters, digits, '_', '.' and '-', at most 64")


def stem_of(command: tuple[str, ...]) -> str:
    """Return what a job is named after unless somebody names it: its script, or its module."""
    at = next(i for i, word in enumerate(command) if not word.startswith("-"))
    is_module = at > 0 and command[at - 1] == "-m"
    word = command[at].rpartition(".")[2] if is_module else Path(command[at]).stem
    return re.sub(r"[^A-Za-z0-9_.-]", "_", word)[:64] or "job"


@asynccontextmanager
async def held_job(scheduler: str, security: Security, name: str, stem: str) -> AsyncIterator[str]:
    """Hold a job while this context lasts; gives its identity.

    Args:
        scheduler: ``host:port``, or several, joined by commas: the first that answers counts.
        security: of who asks.
        name: what its names are to begin with; "" for plain names, or, if another job has these, for ``stem`` and a
            number.

    Raises:
        UsageError: the name is that of another job.
        UnavailableError: no scheduler answers.
    """
    identity: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    request = fabric_pb2.HoldJobRequest(name=name, stem=stem)
    keeping = asyncio.create_task(_keep(scheduler.split(","), security, request, identity))
    try:
        yield await identity
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def _keep(
    addresses: list[str], security: Security, request: fabric_pb2.HoldJobRequest, identity: asyncio.Future[str]
) -> None:
    """Hold a job; hold it again under its identity when a scheduler is gone."""
    while True:
        for address in addresses:
            async with open_channel(address, SCHEDULER, security, CHANNEL_OPTIONS) as channel:
                call = fabric_pb2_grpc.FabricServiceStub(channel).HoldJob(request)
                try:
                    async for response in call:
                        request = fabric_pb2.HoldJobRequest(job=response.job)
                        if not identity.done():
                            identity.set_result(response.job)
                except grpc.aio.AioRpcError as error:
                    if not identity.done() and (error.code() in _FOR_GOOD or address == addresses[-1]):
                        identity.set_exception(_fault(address, error))
                        return
        await asyncio.sleep(AGAIN_S)


def _fault(address: str, error: grpc.aio.AioRpcError) -> Exception:
    if error.code() in _FOR_GOOD:
        return UsageError(f"the scheduler at {address} refuses this job: {error.details()}")
    return UnavailableError(f"the scheduler at {address} cannot be told of this job: {error.details()}")
