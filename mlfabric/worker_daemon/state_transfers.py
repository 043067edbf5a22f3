"""Model and optimizer state on their way from one worker to another. Decides nothing.

Who lacks the state dials the peer that it was told, with a WANT frame and a ticket; the state comes behind a MODEL
frame with its version. The peer waits until its training thread has applied that version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError

from mlfabric.channels import Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import FetchState, GiveState
from mlfabric.transfer.relay import Relay
from mlfabric.v1 import data_pb2, types_pb2
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.round_inbox import RoundInbox, StateImage
from mlfabric.worker_daemon.round_lines import RoundLines

__all__ = ["StateTransfers"]

log = logging.getLogger("mlfabric.worker")
MOST_BYTES = 1 << 40
ASKED_WITHIN_S = 60.0
"""So long a peer is waited for that was told to fetch the state; it may have died, or been told of another giver."""


class StateTransfers:
    """The states that one worker gives and takes.

    Args:
        lines: connections to and from the other workers.
        inbox: what it takes goes there; what it gives is copied by it.
        host: this worker's host.
        take_in: is told how each fetch ended.
        recorded: told of every finished transfer and its other end.
    """

    def __init__(
        self,
        lines: RoundLines,
        inbox: RoundInbox,
        host: str,
        take_in: Callable[[act.StateEnded | Failed], None],
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._lines, self._inbox, self._host = lines, inbox, host
        self._take_in, self._recorded = take_in, recorded
        self._tasks = Tasks(take_in)
        self._fetching: asyncio.Task[None] | None = None
        self._applied = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def applied(self, version: int) -> None:
        """Note that the training thread has applied this version: who waits for it may have the state."""
        self._applied = version
        for least, waiting in self._waiting:
            if version >= least and not waiting.done():
                waiting.set_result(None)
        self._waiting = [(least, waiting) for least, waiting in self._waiting if not waiting.done()]

    def keep(self, version: int) -> None:
        """Let the state that is here be the model's; what is fetched is void."""
        self._stop()
        self._inbox.state_came(StateImage(version=version, image=None))

    def _stop(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        self._inbox.state_begins()

    def fetch(self, plan: FetchState) -> None:
        """Fetch the state from a peer; an earlier fetch is void."""
        self._stop()
        self._fetching = self._tasks.spawn(self._fetch(plan))

    def give(self, plan: GiveState) -> None:
        """Let a peer fetch the state."""
        self._tasks.spawn(self._give(plan))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.close()

    async def _fetch(self, plan: FetchState) -> None:
        try:
            async with self._lines.line(plan.peer.address) as connection:
                meta = data_pb2.WantMeta(host=self._host).SerializeToString()
                await connection.send(Frame(kind=FrameKind.WANT, ticket=plan.peer.ticket, meta=meta))
                frame = await connection.receive()
                if frame.kind is not FrameKind.MODEL or not 0 < frame.length <= MOST_BYTES:
                    raise TransferError(f"{frame.kind.name} of {frame.length} bytes came; wanted a state")
                found = data_pb2.ModelMeta.FromString(frame.meta)
                if found.version.number < plan.version:
                    raise TransferError(f"the state of version {found.version.number} came; wanted {plan.version}")
                image = memoryview(np.empty(frame.length, dtype=np.uint8).data)
                self._recorded(await Relay(image, is_last=True).receive(connection, frame.length), found.host)
        except (FabricError, DecodeError) as error:
            log.info("state from %s: %s", plan.peer.worker, error)
            self._take_in(act.StateEnded(round=plan.round, detail=str(error)))
        else:
            came = StateImage(version=found.version.number, image=image)
            self._inbox.state_came(came)
            self._take_in(act.StateEnded(round=plan.round, version=came.version))

    async def _give(self, plan: GiveState) -> None:
        try:
            async with (
                asyncio.timeout(ASKED_WITHIN_S) as limit,
                self._lines.visit(plan.peer.ticket, FrameKind.WANT) as visit,
            ):
                limit.reschedule(None)
                await self._until(plan.version)
                state = await asyncio.to_thread(self._inbox.copy_state)
                assert state.image is not None, "a copy has bytes"
                version = types_pb2.ModelVersion(number=state.version)
                frame = Frame(
                    kind=FrameKind.MODEL,
                    ticket=plan.peer.ticket,
                    length=len(state.image),
                    meta=data_pb2.ModelMeta(version=version, host=self._host).SerializeToString(),
                )
                visit.connection.spread(0)  # a round may have limited what goes over it
                visit.connection.hold_back(0)
                record = await visit.connection.send(frame, (state.image,))
                if record is not None:
                    self._recorded(record, plan.peer.worker)
        except (FabricError, TimeoutError) as error:
            log.info("state for %s: %s", plan.peer.worker, error or "it did not come for it")

    async def _until(self, version: int) -> None:
        """Wait until the training thread has applied a version."""
        if self._applied < version:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((version, waiting))
            await waiting
