"""Chain replication: the primary itself hands on to its replica what it is about to commit. Pure.

The usual way, to compare with: no lead is allowed, and what came to the primary, an update or a sum, goes on to the
replica as it came, in the order of commits, over the primary's own link. The primary commits it once it hears that the
replica has it. Workers keep copies only for what is committed while a seed is on its way; each of those goes by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlfabric.protocol import (
    Committed,
    Followed,
    Instruction,
    Release,
    Replicate,
    ReplicationKind,
    SumId,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.scheduler.records import PlannedUpdate
from mlfabric.scheduler.replica_sending import ReplicaSending

__all__ = ["ReplicaChain"]


class ReplicaChain(ReplicaSending):
    """What a primary is told to hand on to one model's replica."""

    @property
    def is_chain(self) -> bool:
        """Whether the primary hands on what it commits."""
        return self.following is not None and self.following.kind is ReplicationKind.CHAIN

    @property
    def _folds(self) -> bool:
        return super()._folds and not self.is_chain

    def _hand_on(self, now_ns: int) -> Iterator[Instruction]:
        """Let the primary hand on what has come, up to the first update that has not, and whatever it waits for."""
        if not self._context.is_here(self._pushes.server):
            return
        is_next = True
        for update, planned in list(self._pushes.planned.items()):
            if planned.request.kind is not UpdateKind.GRADIENT:
                continue
            if planned.received and (is_next or update in self._wanted):
                yield from self._hand_on_one(update, planned, now_ns)
            is_next = is_next and (planned.received or planned.voided)

    def _hand_on_one(self, update: UpdateId, planned: PlannedUpdate, now_ns: int) -> Iterator[Instruction]:
        if planned.adopted:
            # It may be there within a sum that an earlier scheduler planned, whose name nobody knows now.
            yield from self._send_before_commit(update, planned, now_ns)
            return
        found = None if planned.sum is None else self._pushes.sums.whole(planned.sum)
        members = (update,) if found is None else found.members
        is_whole = found is None or found.open == set(members)
        yield from self._disown(members)
        if is_whole and self._alone.isdisjoint(members):
            self._alone.update(members)
            if found is not None:
                self._chained[found.root.sum] = members
            size_bytes = (1 if found is None else found.images) * self._pushes.spec.layout.size_bytes
            reason = "the primary has it and is about to commit it"
            yield from self._replicate(planned.transfer, self._pushes.server, members, size_bytes, now_ns, None, reason)

    def _disown(self, members: Iterable[UpdateId]) -> Iterator[Instruction]:
        """Count no longer on what the replica holds from before this scheduler's time: these came to the primary anew.

        There they may have been in a sum that will never be committed.
        """
        again = self._inherited.intersection(members)
        if not again:
            return
        self._inherited -= again
        self._alone -= again
        self._held -= again
        for update in sorted(again):
            yield Void(to=self.name, model=self._model, transfer=update, reason="it came to the primary anew")
        yield self._followed("some of what the replica has came to the primary anew")

    def _repeat_to_primary(self) -> Iterator[Instruction]:
        """Repeat to a primary that came back what it may not have been told."""
        for found in self._in_flight.values():
            if found.source == self._pushes.server:
                yield found.order

    def _retract(self, update: UpdateId) -> Iterator[Instruction]:
        """Give up handing on what was committed before the primary kept to the bound: it does not have it any more."""
        for transfer, found in list(self._in_flight.items()):
            if found.source == self._pushes.server and isinstance(found.order, Replicate) and update in found.members:
                self._end(transfer)
                self._alone.difference_update(found.members)
                reason = "it was committed before it was handed on"
                yield Void(to=self.name, model=self._model, transfer=transfer, reason=reason)

    def _forget_torn(self) -> Iterator[Instruction]:
        """Let the replica forget sums that the primary has not committed and never will; their members come again."""
        for name, members in list(self._chained.items()):
            if self._pushes.sums.of(name) is not None:
                continue
            del self._chained[name]
            if isinstance(self._pushes.settled.get(members[0]), Committed):
                continue
            self._end(name)
            self._alone.difference_update(members)
            self._held.difference_update(members)
            yield Void(to=self.name, model=self._model, transfer=name, reason="it will not be committed")
            yield self._followed("a sum that it had will not be committed")

    def _release_copies(self) -> Iterator[Instruction]:
        """Let workers keep no longer what the replica has: its own answer may have been lost."""
        updates, self._unreleased = self._unreleased, []
        yield from self._release(updates, "the replica has them")

    def _release(self, updates: Iterable[UpdateId], reason: str) -> Iterator[Instruction]:
        by_worker: dict[str, list[UpdateId]] = {}
        for update in updates:
            if update.worker in self._workers:
                by_worker.setdefault(update.worker, []).append(update)
        for worker, own in sorted(by_worker.items()):
            yield Release(to=worker, model=self._model, term=self.term, updates=tuple(own), reason=reason)

    def _followed(self, reason: str) -> Followed:
        """Tell the primary where the replica is.

        What it reported counts only as far as nobody let it forget that meanwhile.
        """
        assert self.following is not None, "there is a replica"
        return Followed(
            to=self._pushes.server,
            model=self._model,
            replica=self.name,
            version=self.version,
            held=tuple(u for u in self._reported if u in self._held),
            norm=self.following.norm,
            updates=self.following.updates,
            reason=reason,
        )

    def _keep_sums(self, held: Iterable[UpdateId]) -> dict[SumId, tuple[UpdateId, ...]]:
        """Return the sums of which the replica has all."""
        there = set(held)
        return {name: members for name, members in self._chained.items() if there.issuperset(members)}
