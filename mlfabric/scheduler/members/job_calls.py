"""Calls about jobs and their models: whoever runs a job holds it, people remove models. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc

from mlfabric import wire
from mlfabric.errors import UsageError
from mlfabric.protocol import JobHeld, JobReleased, ModelRemoved
from mlfabric.scheduler.members.entry import check_may_hold, check_may_remove
from mlfabric.scheduler.state import SchedulerState
from mlfabric.v1 import fabric_pb2

__all__ = ["JobCalls"]

log = logging.getLogger("mlfabric.scheduler")
MOST_JOBS = 32
"""So many may be held: each takes one of the calls that are for people and tools."""
_Context = grpc.aio.ServicerContext[Any, Any]


class JobCalls:
    """Answers the calls.

    Args:
        state: gives the state machine that decides now.
        take_in: hands it an event; does nothing once it has failed.
    """

    def __init__(
        self, state: Callable[[], SchedulerState], take_in: Callable[[JobHeld | JobReleased | ModelRemoved], None]
    ) -> None:
        self._state = state
        self._take_in = take_in
        self._holding: set[asyncio.Task[Any]] = set()

    def recall(self) -> None:
        """End the calls of all who hold jobs; they hold them again."""
        for task in self._holding:
            task.cancel()

    async def hold(
        self, request: fabric_pb2.HoldJobRequest, context: _Context
    ) -> AsyncGenerator[fabric_pb2.HoldJobResponse, None]:
        """Name a job, and let it go on for as long as the stream stands."""
        await check_may_hold(context)
        if len(self._holding) >= MOST_JOBS:
            detail = f"{len(self._holding)} jobs go on; allowed: {MOST_JOBS}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)
        job = await self._named(request, context)
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        self._holding.add(task)
        self._take_in(JobHeld(job=job))
        try:
            log.info("job %s goes on", job)
            yield fabric_pb2.HoldJobResponse(job=job)
            await asyncio.Event().wait()
        finally:
            log.info("job %s is held by nobody now: it is over, or will be held again", job)
            self._holding.discard(task)
            self._take_in(JobReleased(job=job))

    async def _named(self, request: fabric_pb2.HoldJobRequest, context: _Context) -> str:
        """Return the identity of a job: a new one, or the one that it was given before."""
        lifetimes = self._state().lifetimes
        try:
            if request.job:
                return wire.from_job(request.job, "HoldJobRequest.job")
            name = wire.from_job(request.name, "HoldJobRequest.name")
            stem = wire.from_job(request.stem, "HoldJobRequest.stem")
        except UsageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if name and name in lifetimes.names():
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"a job {name!r} goes on; choose another name")
        return f"{name or lifetimes.free_name(stem)}#{secrets.token_hex(4)}"

    async def remove(self, request: fabric_pb2.RemoveModelRequest, context: _Context) -> fabric_pb2.RemoveModelResponse:
        """End a model that nobody trains."""
        await check_may_remove(context, request.model)
        if (refusal := self._state().endings.removal_refusal(request.model)) is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal[1])
        self._take_in(ModelRemoved(model=request.model))
        return fabric_pb2.RemoveModelResponse()
