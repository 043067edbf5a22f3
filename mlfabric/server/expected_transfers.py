"""The transfers of one model that its server was told to expect, and the order in which they are committed. Pure.

Initial weights come first, then places of the sequence by ``seq``. A place is one transfer, an update or a sum; in
synchronous training it is an iteration, all transfers of one ``seq``, which make one version together. An update is in
one transfer at a time, so that it cannot be applied twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from mlfabric.model.specs import Method
from mlfabric.protocol import Expected, TransferId, UpdateId, UpdateKind
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.transfer.offers import TransferState
from mlfabric.transfer.precedence import take_out

__all__ = ["Incoming", "Place"]

Place = list[IncomingTransfer]


class Incoming:
    """Every transfer, by id and in sequence.

    Args:
        method: of the model.
        shards: into how many parts the whole model is cut, of which this may be one.
    """

    def __init__(self, method: Method, shards: int = 1) -> None:
        self.transfers: dict[TransferId, IncomingTransfer] = {}
        self.transfer_of: dict[UpdateId, TransferId] = {}
        self._has_iterations = method is Method.SYNCHRONOUS
        self._shards = shards

    def add(self, transfer: IncomingTransfer) -> None:
        """Take a transfer in; none of its members may be in another one."""
        self.transfers[transfer.transfer] = transfer
        self.transfer_of.update((member.update, transfer.transfer) for member in transfer.members)

    def remove(self, transfer: IncomingTransfer) -> None:
        """Take a transfer out; what was to follow it follows what it was to follow."""
        take_out(transfer.transfer, self.transfers)
        for member in transfer.members:
            del self.transfer_of[member.update]

    def recount(self, seq: int, parts: int) -> None:
        """Note how many parts a place has by the latest order; it holds for those that were expected earlier, too."""
        for transfer in self.transfers.values():
            if transfer.seq == seq:
                transfer.parts = parts

    def count_no_more(self) -> None:
        """Let what there is of each place be all of it: nobody says any more how many parts it has."""
        for transfer in self.transfers.values():
            transfer.parts = 1

    def holding(self, members: Iterable[Expected]) -> list[IncomingTransfer]:
        """Return the transfers that have one of these updates in them, each once."""
        found = dict.fromkeys(self.transfer_of[m.update] for m in members if m.update in self.transfer_of)
        return [self.transfers[transfer] for transfer in found]

    def applying(self) -> Place:
        """Return what is being applied, in the order in which it is added up."""
        found = [t for t in self.transfers.values() if t.state is TransferState.APPLYING]
        return _in_order(found) if len(found) > 1 else found

    def places(self) -> list[Place]:
        """Return the places of the sequence in the order of commits."""
        initial_kind = UpdateKind.INITIAL
        ordered = sorted(self.transfers.values(), key=lambda t: (t.kind is not initial_kind, t.seq))
        if not self._has_iterations:
            return [[transfer] for transfer in ordered]
        initial = [[t] for t in ordered if _is_initial(t)]
        iterations = groupby(ordered[len(initial) :], key=lambda t: t.seq)
        return [*initial, *(_in_order(iteration) for _, iteration in iterations)]

    def urgent(self) -> Place:
        """Return what must be able to come, so that commits can go on: the head of the sequence.

        Parts of a model commit together what is complete at all of them, in whatever order. There it is the oldest
        push, which is the same one at every part; and all of an iteration, some of which may have come under an earlier
        scheduler.
        """
        places = self.places()
        if self._shards > 1 and self._has_iterations:
            return list(self.transfers.values())
        if self._shards == 1 or not places or _is_initial(places[0][0]):
            return places[0] if places else []
        return [min(self.transfers.values(), key=lambda t: min(self._push(m.update) for m in t.members))]

    def _push(self, update: UpdateId) -> tuple[int, str, int]:
        """Return what all parts of a push have in common, the oldest first."""
        return update.counter // self._shards, update.worker, update.incarnation

    def is_whole(self, place: Place) -> bool:
        """Tell whether all is here that makes this place's version.

        Of an iteration that is as many parts as were announced last, and whatever else came to the place.
        """
        parts = place[0].parts if self._has_iterations and not _is_initial(place[0]) else 1
        return all(t.is_complete for t in place) and len(place) >= parts

    def keepable(self) -> set[TransferId]:
        """Return what needs no word of a newer scheduler, which knows neither sums nor iterations of an older one.

        Updates that run or are complete, complete sums, whole iterations; and whatever is being applied.
        """
        kept: Place = []
        for place in self.places():
            if self._has_iterations and not _is_initial(place[0]):
                whole = self.is_whole(place)
                kept += [t for t in place if whole or t.state is TransferState.APPLYING]
            else:
                kept += [t for t in place if t.is_complete or (t.holds_buffer and not t.is_sum)]
        return {t.transfer for t in kept}

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not self.transfers:
            assert not self.transfer_of, f"{self.transfer_of} are listed; there is no transfer"
            return
        pairs = [(m.update, t.transfer) for t in self.transfers.values() for m in t.members]
        members = dict(pairs)
        assert self.transfer_of == members, f"members are listed as {self.transfer_of}; they are {members}"
        assert len(members) == len(pairs), f"an update is in two transfers at once: {list(self.transfers.values())}"
        applying = self.applying()
        if len(applying) > 1:
            together = self._has_iterations and not any(map(_is_initial, applying))
            assert together, f"several transfers are applied at once: {applying}"
        for transfer in self.transfers.values():
            needs = transfer.state in (TransferState.OFFERED, TransferState.RECEIVING)
            assert not needs or transfer.connection is not None, (
                f"{transfer.transfer} {transfer.state} without connection"
            )


def _in_order(transfers: Iterable[IncomingTransfer]) -> Place:
    return sorted(transfers, key=lambda t: t.members[0].update)


def _is_initial(transfer: IncomingTransfer) -> bool:
    return transfer.kind is UpdateKind.INITIAL
