"""What a worker asks of the servers of its model and has no answer to yet: pushes, gets, draws of samples.

Here are their handles, their buffers and their transfers. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mlfabric import clock
from mlfabric.channels import Channel, TransferRecord
from mlfabric.errors import FabricError, UsageError
from mlfabric.fail_stop import Failed
from mlfabric.model.samples import Samples
from mlfabric.model.specs import Member, ModelSpec
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Fetch,
    GetId,
    GetRequested,
    Lost,
    ModelVersion,
    Outcome,
    PushRequested,
    SamplesGranted,
    SamplesWanted,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.telemetry import WorkerMetrics
from mlfabric.telemetry.log_lines import about
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.data_attempts import Growth, Parcel, Transfers
from mlfabric.worker_daemon.kept_bytes import Kept
from mlfabric.worker_daemon.model_cuts import Shards
from mlfabric.worker_daemon.observations import Settled, Transferred

__all__ = ["Listeners", "ServerCalls"]

log = logging.getLogger("mlfabric.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who hears of what.

    Args:
        take_in: gets the events for the state machine.
        recorded: is told of every finished transfer and its other end.
        observe: is told what a user's observer is to hear.
    """

    take_in: Callable[[act.DaemonEvent | Failed], None]
    recorded: Callable[[TransferRecord, str], None]
    observe: Callable[[Transferred | Settled], None]


@dataclass(slots=True)
class _OpenPush:
    """A push; ``parts`` are what travels of it, shard by shard."""

    parcel: Parcel
    parts: tuple[Parcel, ...]
    handle: asyncio.Future[Outcome]
    since_s: float


@dataclass(slots=True)
class _OpenGet:
    """A get; ``parts`` are the ranges of its buffer that the shards go into."""

    parts: tuple[tuple[memoryview, ...], ...]
    handle: asyncio.Future[ModelVersion]
    since_s: float


class ServerCalls:
    """The open calls of one worker, each of which is for all servers that hold a part of its model.

    Args:
        member: the worker.
        spec: of its model.
        initial: the image of the initial weights, kept until some worker's have arrived; None if it has none to give.
        channel: the daemon's data channel.
        metrics: counts what happens.
        listeners: of what happens.

    ``transfers`` are the attempts to send and to fetch that are under way.
    """

    def __init__(
        self,
        member: Member,
        spec: ModelSpec,
        initial: Parcel | None,
        channel: Channel,
        metrics: WorkerMetrics,
        listeners: Listeners,
    ) -> None:
        self._initial = initial
        self._member = member
        self._metrics = metrics
        self._take_in, recorded, self._observe = listeners.take_in, listeners.recorded, listeners.observe
        self._shards = Shards(spec)
        self.transfers = Transfers(channel, member.host, self._take_in, recorded, self._observe)
        self._kept = Kept(spec, channel, member.host, lambda u: self._part(u).pieces, self._take_in, recorded)
        self._pushes: dict[UpdateId, _OpenPush] = {}
        self._gets: dict[GetId, _OpenGet] = {}
        self._updates = self._get_count = self._draws = 0
        self._pushed: UpdateId | None = None
        self._draw: asyncio.Future[SamplesGranted] | None = None
        self._over: BaseException | None = None

    @property
    def in_flight(self) -> int:
        """How many pushes have no outcome yet."""
        return len(self._pushes)

    # What the worker asks for

    def push(
        self, parcel: Parcel, norm: float, computed_from: ModelVersion, samples: Samples = ()
    ) -> asyncio.Future[Outcome]:
        """Hand over an update; the future gives its outcome. ``samples`` are what it was computed from, if known."""
        self._pushed, handle = self._push(parcel, norm, computed_from, UpdateKind.GRADIENT, samples)
        return handle

    def drop_samples(self, samples: Samples) -> None:
        """Say that an update was computed from these samples and will not be pushed."""
        if self._over is None:
            self._take_in(act.SamplesGivenUp(model=self._shards.names[0], samples=samples))

    def draw(self, wanted: SamplesWanted) -> asyncio.Future[SamplesGranted]:
        """Draw samples, one wish at a time; the future gives the answer.

        Args:
            wanted: what is wanted; worker, model and serial are filled in here.

        Raises:
            UsageError: another wish has no answer yet.
        """
        if self._draw is not None and not self._draw.done():
            raise UsageError("draw while another draw has no answer; wait for that one's result")
        if (handle := self.handle()).done():
            return handle
        self._draws += 1
        self._draw = handle
        wanted = replace(wanted, worker=self._member.name, model=self._shards.names[0], serial=self._draws)
        self._take_in(wanted)
        return handle

    def _push(
        self, parcel: Parcel, norm: float, computed_from: ModelVersion, kind: UpdateKind, samples: Samples = ()
    ) -> tuple[UpdateId, asyncio.Future[Outcome]]:
        update = UpdateId(self._member.name, self._member.incarnation, self._updates)
        self._updates += len(self._shards.names)
        handle: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            handle.set_result(Lost(detail=str(self._over)))
            return update, handle
        parts = self._shards.parcels(parcel)
        self._pushes[update] = _OpenPush(parcel, parts, handle, clock.monotonic_s())
        log.debug("%s is pushed", update, extra={"update": str(update)})
        for i, (part, name) in enumerate(zip(parts, self._shards.names, strict=True)):
            request = PushRequested(
                update=update._replace(counter=update.counter + i),
                model=name,
                size_bytes=part.size_bytes,
                computed_from=computed_from,
                norm=norm,
                kind=kind,
                samples=samples if i == 0 else (),  # one part's account is that of the whole
            )
            self._take_in(request)
        return update, handle

    def get(
        self, buffer: memoryview, min_version: ModelVersion, *, after_push: bool = False
    ) -> asyncio.Future[ModelVersion]:
        """Fetch the model into ``buffer``; the future gives its version.

        Args:
            after_push: it is to hold what was pushed last, if that is committed.
        """
        if (handle := self.handle()).done():
            return handle
        get = GetId(self._member.name, self._member.incarnation, self._get_count)
        self._get_count += len(self._shards.names)
        after = self._pushed if after_push else None
        self._gets[get] = _OpenGet(self._shards.buffers(buffer), handle, clock.monotonic_s())
        for i, name in enumerate(self._shards.names):
            request = GetRequested(
                get=get._replace(counter=get.counter + i),
                model=name,
                min_version=min_version,
                after_update=after and after._replace(counter=after.counter + i),
            )
            self._take_in(request)
        return handle

    def handle(self) -> asyncio.Future[Any]:
        """Return a future for what is asked for; it has failed already if nothing is taken in any more."""
        handle: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            handle.set_exception(self._over)
        return handle

    def bring_initial(self) -> None:
        """Push the initial weights, unless there are none or they are on their way."""
        if self._initial is None or any(p.parcel is self._initial for p in self._pushes.values()):
            return
        _, handle = self._push(self._initial, 0.0, ModelVersion(0, 0), UpdateKind.INITIAL)
        handle.add_done_callback(_initial_settled)

    def growth(self, transfer: TransferId) -> Growth | None:
        """Return the growth of an update that is not complete yet."""
        push = self._pushes.get(transfer) if isinstance(transfer, UpdateId) else None
        growth = None if push is None else push.parcel.growth
        return None if growth is None or growth.progress.is_complete else growth

    # Actions

    def do(self, action: act.ServerAction) -> None:
        """Carry out an action."""
        match action:
            case act.StartSend():
                self.transfers.send(action.plan, self._part(action.plan.update))
            case act.StartFetch():
                self._fetch(action.plan)
            case act.StopTransfers():
                self.transfers.stop()
            case act.Settle():
                self._settle(action)
            case act.HandOver():
                if self._draw is not None and not self._draw.done():
                    self._draw.set_result(action.granted)
            case act.FailPush():
                self._pushes.pop(action.update).handle.set_exception(FabricError(action.reason))
            case act.Deliver():
                get = self._gets.pop(action.get)
                self._metrics.got(clock.monotonic_s() - get.since_s)
                if not get.handle.done():
                    get.handle.set_result(action.version)
            case _:
                self._kept.do(action)

    def _part(self, update: UpdateId) -> Parcel:
        whole, i = self._shards.whole(update)
        return self._pushes[whole].parts[i]

    def _fetch(self, plan: Fetch) -> None:
        whole, i = self._shards.whole(plan.get)
        self.transfers.fetch(plan, self._gets[whole].parts[i], self._shards.digests[i])

    def _settle(self, action: act.Settle) -> None:
        push = self._pushes.pop(action.update)
        self._metrics.settled(action.outcome, clock.monotonic_s() - push.since_s)
        log.debug("%s is %s (%s)", action.update, _words(action.outcome), action.reason, extra=about(action))
        if push.parcel is not self._initial:
            pushed_ns, settled_ns = round(push.since_s * 1e9), clock.monotonic_ns()
            self._observe(
                Settled(update=action.update, outcome=action.outcome, pushed_ns=pushed_ns, settled_ns=settled_ns)
            )
        if not push.handle.done():
            push.handle.set_result(action.outcome)

    # The end

    def end(self, error: BaseException) -> None:
        """Take in nothing more, and fail what is open."""
        self._over = error
        for push in self._pushes.values():
            if not push.handle.done():
                push.handle.set_result(Lost(detail=str(error)))
        for get in self._gets.values():
            if not get.handle.done():
                get.handle.set_exception(error)
        if self._draw is not None and not self._draw.done():
            self._draw.set_exception(error)
        self._pushes.clear()
        self._gets.clear()

    async def drain(self, drain_s: float) -> None:
        """Wait for open pushes, for at most ``drain_s``."""
        handles = [push.handle for push in self._pushes.values()]
        if handles:
            await asyncio.wait(handles, timeout=drain_s)

    async def close(self) -> None:
        """End all transfers."""
        await self.transfers.close()
        await self._kept.close()


def _initial_settled(handle: asyncio.Future[Outcome]) -> None:
    outcome = handle.result()
    if isinstance(outcome, Dropped) and outcome.cause is not DropReason.DUPLICATE:
        log.error("the initial weights were refused: %s: %s", outcome.cause.value, outcome.detail)


def _words(outcome: Outcome) -> str:
    match outcome:
        case Committed():
            return f"committed as version {outcome.version.number}, delay {outcome.tau}"
        case Dropped():
            return f"dropped: {outcome.cause.value}"
        case Lost():
            return f"lost: {outcome.detail}"
