"""What a worker keeps for its model's replica: committed updates, one window of them, what is on its way there. Pure.

While the model has a replica, an update that is committed is copied before its handle resolves, and kept until the
scheduler says what becomes of it: it is folded into the window, or the replica was seeded with it in it. The window is
frozen when it is to be sent; the next update begins another. What is sent is kept until the replica has answered, and
sent again if it broke. Only the present *term* counts: a new one begins with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlfabric.protocol import (
    Committed,
    Dropped,
    Fold,
    Keep,
    NotKept,
    Outcome,
    Release,
    Replicate,
    SumId,
    TransferId,
    UpdateId,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.retry_pause import pause_ns

__all__ = ["Keeping"]


@dataclass(slots=True)
class _Sending:
    """What goes to the replica; ``again_ns`` is when it is tried again, None while an attempt runs."""

    plan: Replicate
    members: frozenset[UpdateId]
    breaks: int = 0
    again_ns: int | None = None


class Keeping:
    """What one worker keeps.

    Args:
        worker: its name.
        is_open: tells whether an update has no outcome yet.
    """

    def __init__(self, worker: str, is_open: Callable[[UpdateId], bool]) -> None:
        self.worker = worker
        self.order: Keep | None = None
        self.copies: set[UpdateId] = set()
        self.sending: dict[TransferId, _Sending] = {}
        self._is_open = is_open
        self._folded: set[UpdateId] = set()
        self._last: UpdateId | None = None
        self._last_ticket = b""
        self._window: set[UpdateId] = set()

    def next_wakeup_ns(self) -> int | None:
        """Return when something is to be tried again, or None."""
        if not self.sending:
            return None
        return min([s.again_ns for s in self.sending.values() if s.again_ns is not None], default=None)

    def keep(self, order: Keep) -> Iterator[act.Action]:
        """Begin a term, or end keeping."""
        yield from self.end()
        self.order = order if order.receiver else None

    def end(self) -> Iterator[act.Action]:
        """Keep nothing any more."""
        if self.order is None:
            return
        self.order = None
        for transfer in list(self.sending):
            yield from self._end_sending(transfer)
        if self.copies:
            yield act.DropCopies(updates=tuple(sorted(self.copies)))
        yield act.DropWindow()
        self.copies.clear()
        self._folded.clear()
        self._window.clear()
        self._last = None

    def settled(self, update: UpdateId, outcome: Outcome) -> Iterator[act.Action]:
        """Copy an update that is committed, before its handle resolves; forget one that never will be."""
        if self.order is None:
            return
        if update in self._folded:
            self._folded.discard(update)
        elif isinstance(outcome, Committed):
            yield from self._copy(update)
        elif isinstance(outcome, Dropped) and update in self.sending:
            yield from self._end_sending(update)

    def _copy(self, update: UpdateId) -> Iterator[act.Action]:
        if update not in self.copies:
            self.copies.add(update)
            yield act.KeepCopy(update=update)

    def fold(self, order: Fold) -> Iterator[act.Action]:
        """Put an update into the window; it is not put there twice if the scheduler's word comes twice."""
        if self.order is None or order.term != self.order.term:
            return
        update = order.update
        if update == self._last:
            return
        if not self._is_here(update):
            yield from self._not_kept(update)
            return
        yield from self._copy(update)
        if self._is_open(update):
            self._folded.add(update)
        self.copies.discard(update)
        self._window.add(update)
        self._last = update
        yield act.FoldCopy(update=update, lrs=order.lrs, share=order.share, begins=order.begins)

    def _is_here(self, update: UpdateId) -> bool:
        return update in self.copies or self._is_open(update)

    def _not_kept(self, update: UpdateId) -> Iterator[act.Action]:
        """Report a hole, and end the term: a window without this update must not be sent as if it had it."""
        assert self.order is not None, "it keeps"
        detail = f"{update} is not here any more"
        event = NotKept(member=self.worker, model=self.order.model, term=self.order.term, detail=detail)
        yield act.Request(event=event)
        yield from self.end()

    def release(self, order: Release) -> Iterator[act.Action]:
        """Keep some updates no longer, and send them no more."""
        if self.order is None or order.term != self.order.term:
            return
        for transfer in [t for t, sending in self.sending.items() if sending.members.issubset(order.updates)]:
            yield from self._end_sending(transfer)
        self._folded.update(u for u in order.updates if self._is_open(u))
        here = tuple(u for u in order.updates if u in self.copies)
        self.copies.difference_update(here)
        if here:
            yield act.DropCopies(updates=here)

    def replicate(self, order: Replicate) -> Iterator[act.Action]:
        """Send the window, or an update by itself; once if the scheduler's word comes twice."""
        if self.order is None or order.term != self.order.term:
            return
        if order.ticket == self._last_ticket:
            return
        self._last_ticket = order.ticket
        sending = self.sending.get(order.transfer)
        if sending is not None:
            sending.plan, sending.again_ns = order, None
            yield self._start(order)
            return
        if isinstance(order.transfer, SumId):
            yield act.FreezeWindow(transfer=order.transfer)
            members, self._window = frozenset(self._window), set()
        elif self._is_here(order.transfer):
            yield from self._copy(order.transfer)
            members = frozenset((order.transfer,))
        else:
            yield from self._not_kept(order.transfer)
            return
        self.sending[order.transfer] = _Sending(order, members)
        yield self._start(order)

    def _start(self, order: Replicate) -> act.StartReplicate:
        assert self.order is not None, "it keeps"
        return act.StartReplicate(plan=order, receiver=self.order.receiver, address=self.order.address)

    def answered(self, event: act.ReplicaAnswered) -> Iterator[act.Action]:
        """Note that the replica has something."""
        sending = self.sending.get(event.transfer)
        if sending is not None and sending.plan.ticket == event.ticket:
            yield from self._end_sending(event.transfer)

    def _end_sending(self, transfer: TransferId) -> Iterator[act.Action]:
        del self.sending[transfer]
        if isinstance(transfer, UpdateId):
            self.copies.discard(transfer)
            if self._is_open(transfer):
                self._folded.add(transfer)
        yield act.EndReplicate(transfer=transfer)

    def broken(self, event: act.ReplicaBroken, now_ns: int) -> None:
        """Try again after a pause that doubles."""
        sending = self.sending.get(event.transfer)
        if sending is not None and sending.plan.ticket == event.ticket:
            sending.again_ns = now_ns + pause_ns(sending.breaks)
            sending.breaks += 1

    def tick(self, now_ns: int) -> Iterator[act.Action]:
        """Try again what is due."""
        for sending in self.sending.values():
            if sending.again_ns is not None and sending.again_ns <= now_ns:
                sending.again_ns = None
                yield self._start(sending.plan)
