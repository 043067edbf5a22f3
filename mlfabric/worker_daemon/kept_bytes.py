"""The bytes that a worker keeps for a replica: copies of updates, the window, what is frozen; and how they are sent.

Folds of large updates run in a thread, one after the other; what is sent waits for the folds before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch
from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Channel, TransferRecord
from mlfabric.errors import FabricError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.model.images import add_value, runs_of
from mlfabric.model.specs import Layout, ModelSpec, TensorKind
from mlfabric.model.stepping import Transition, member_coefficients, transition
from mlfabric.model.update_rules import RuleSpec
from mlfabric.protocol import TransferId, UpdateId
from mlfabric.transfer.exchange import deliver
from mlfabric.v1 import data_pb2
from mlfabric.worker_daemon import actions as act

__all__ = ["Kept", "fold_into"]

log = logging.getLogger("mlfabric.worker")
INLINE_BYTES = 256 * 1024


def fold_into(
    rule: RuleSpec,
    layout: Layout,
    window: memoryview,
    update: memoryview,
    lrs: Sequence[float],
    share: float,
    *,
    is_first: bool,
    begins: bool,
) -> None:
    """Put an update behind a window, in place (design, section 5, "Momentum and sums").

    Of buffers a window has the plain sum of the values that belong to its last group; of counters the greatest.

    Args:
        window: its images, one behind the other: ``rule.sum_images`` of them; zeros if ``is_first``.
        update: its image.
        lrs: learning rates of the steps that follow the window, the update's own last.
        share: of the update in its step.
        is_first: nothing is in the window yet.
        begins: it belongs to a later group than what is in the window.
    """
    size_bytes = layout.size_bytes
    places, own = transition(rule, lrs), member_coefficients(rule, lrs[-1:])[0]
    for run in runs_of(layout):
        images = [run.of(window[start : start + size_bytes]) for start in range(0, len(window), size_bytes)]
        if run.kind is not TensorKind.PARAMETER:
            if is_first or (begins and run.kind is TensorKind.BUFFER):
                images[0].copy_(run.of(update))
            else:
                add_value(run, images[0], run.of(update))
            continue
        if not is_first:
            _carry(images, places)
        for image, coefficient in zip(images, own, strict=False):
            image.add_(run.of(update), alpha=share * coefficient)


def _carry(images: Sequence[torch.Tensor], p: Transition) -> None:
    first = images[0]
    if len(images) == 1:
        first.mul_(p.ww)
        return
    from_first, second = first * p.hw, images[1]
    first.mul_(p.ww).add_(second, alpha=p.wh)
    second.mul_(p.hh).add_(from_first)


class Kept:
    """What one worker keeps.

    Args:
        spec: of the model.
        channel: the daemon's data channel.
        host: the worker's.
        pieces_of: returns the image of an update that is open.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer and the member it went to.
    """

    def __init__(
        self,
        spec: ModelSpec,
        channel: Channel,
        host: str,
        pieces_of: Callable[[UpdateId], Sequence[memoryview]],
        take_in: Callable[[act.DaemonEvent | Failed], None],
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._spec = spec
        self._channel = channel
        self._host = host
        self._pieces_of = pieces_of
        self._take_in = take_in
        self._recorded = recorded
        self._copies: dict[UpdateId, memoryview] = {}
        self._frozen: dict[TransferId, memoryview] = {}
        self._window: memoryview | None = None
        self._turn = asyncio.Lock()
        self._tasks = Tasks(take_in)
        self._folds: set[asyncio.Task[None]] = set()
        self._sends: dict[TransferId, asyncio.Task[None]] = {}

    def do(self, action: act.KeepAction) -> None:
        """Carry out an action."""
        match action:
            case act.KeepCopy():
                self._copies[action.update] = _writable(b"".join(self._pieces_of(action.update)))
            case act.FoldCopy():
                self._fold(action)
            case act.DropCopies():
                for update in action.updates:
                    self._copies.pop(update, None)
            case act.FreezeWindow():
                assert self._window is not None, f"{action.transfer} is to be sent, but nothing is folded"
                self._frozen[action.transfer], self._window = self._window, None
            case act.StartReplicate():
                self._start(action)
            case act.EndReplicate():
                self._end(action.transfer)
            case act.DropWindow():
                self._window = None

    def _fold(self, order: act.FoldCopy) -> None:
        """Put a copy into the window."""
        update, is_first = self._copies.pop(order.update), self._window is None
        if self._window is None:
            size_bytes = self._spec.rule.sum_images * self._spec.layout.size_bytes
            self._window = np.zeros(size_bytes, dtype=np.uint8).data
        window = self._window

        def work() -> None:
            layout, rule = self._spec.layout, self._spec.rule
            begins = order.begins
            fold_into(rule, layout, window, update, order.lrs, order.share, is_first=is_first, begins=begins)

        if window.nbytes <= INLINE_BYTES and not self._turn.locked():
            work()
        else:
            task = self._tasks.spawn(self._in_turn(work))
            self._folds.add(task)
            task.add_done_callback(self._folds.discard)

    async def _in_turn(self, work: Callable[[], None]) -> None:
        async with self._turn:
            await asyncio.to_thread(work)

    def _start(self, order: act.StartReplicate) -> None:
        """Begin an attempt to send something, instead of one that runs."""
        transfer = order.plan.transfer
        if (former := self._sends.pop(transfer, None)) is not None:
            former.cancel()
        image = self._copies[transfer] if isinstance(transfer, UpdateId) else self._frozen[transfer]
        self._sends[transfer] = self._tasks.spawn(self._send(order, image, tuple(self._folds)))

    def _end(self, transfer: TransferId) -> None:
        """Forget what was sent, and stop sending it."""
        task = self._sends.pop(transfer, None)
        if task is not None:
            task.cancel()
        self._frozen.pop(transfer, None)
        if isinstance(transfer, UpdateId):
            self._copies.pop(transfer, None)

    async def close(self) -> None:
        """Stop everything."""
        for task in self._sends.values():
            task.cancel()
        await self._tasks.wait()

    async def _send(self, order: act.StartReplicate, image: memoryview, folds: Sequence[asyncio.Task[None]]) -> None:
        """Make one attempt; the state machine hears how it ended."""
        plan = order.plan
        event: act.ReplicaAnswered | act.ReplicaBroken
        await asyncio.gather(*folds)
        meta = data_pb2.OfferMeta(transfer=wire.to_transfer_id(plan.transfer), size_bytes=image.nbytes, host=self._host)
        digest = self._spec.layout.digest
        try:
            with closing(await self._channel.connect(order.address)) as connection:
                record = await deliver(connection, meta, plan.ticket, digest, image, plan.rate_bps)
            if record is not None:
                self._recorded(record, order.receiver)
            event = act.ReplicaAnswered(transfer=plan.transfer, ticket=plan.ticket)
        except (FabricError, DecodeError) as error:
            log.debug("an attempt to send %s to %s broke: %s", plan.transfer, order.receiver, error)
            event = act.ReplicaBroken(transfer=plan.transfer, ticket=plan.ticket)
        self._sends.pop(plan.transfer, None)
        self._take_in(event)


def _writable(image: bytes) -> memoryview:
    return np.frombuffer(bytearray(image), dtype=np.uint8).data
