"""What a simulated worker keeps for a replica, and sends it. Does what ``worker_daemon/folding.py`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from mlfabric.offers import WITH_OFFER_BYTES
from mlfabric.protocol import Outcome, Replicate, SumId, TransferId, UpdateId
from mlfabric.simulator.calls import Book, Caller, Receiver
from mlfabric.simulator.exact import Image, added, carried, own_step
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.payloads import Feed, Payload, Way
from mlfabric.simulator.processes import Process
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.simulator.world import World
from mlfabric.specs import ModelSpec
from mlfabric.worker_daemon import actions as act

__all__ = ["SimulatedKept"]


class SimulatedKept:
    """Copies, the window, what is frozen, and every attempt to send one of them.

    Args:
        process: the worker's.
        spec: of the model.
        book: who answers where.
        truths: what each update is.
        is_here: tells whether the worker still has an update's tensors.
        take_in: where events for the state machine go.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        spec: ModelSpec,
        book: Book,
        truths: Mapping[UpdateId, Truth],
        is_here: Callable[[UpdateId], bool],
        take_in: Callable[[act.DaemonEvent], None],
    ) -> None:
        self._world = world
        self._process = process
        self._spec = spec
        self._book = book
        self._truths = truths
        self._is_here = is_here
        self._take_in = take_in
        self._copies: dict[UpdateId, int] = {}
        self._frozen: dict[TransferId, Image] = {}
        self._window: Image | None = None
        self._attempts: dict[TransferId, Connection | None] = {}
        self._is_alive = True

    @property
    def copies(self) -> set[UpdateId]:
        """The updates of which copies are kept."""
        return set(self._copies)

    def do(self, action: act.KeepAction) -> None:
        """Carry out an action."""
        match action:
            case act.KeepCopy():
                assert self._is_here(action.update), f"{action.update} is to be copied, but its tensors are gone"
                self._copies[action.update] = self._truths[action.update].step
            case act.FoldCopy():
                self._fold(action)
            case act.DropCopies():
                for update in action.updates:
                    del self._copies[update]
            case act.FreezeWindow():
                assert self._window is not None, f"{action.transfer} is to be sent, but nothing is folded"
                self._frozen[action.transfer], self._window = self._window, None
            case act.StartReplicate():
                self._send(action.plan, action.address)
            case act.EndReplicate():
                self._end(action.transfer)
            case act.DropWindow():
                self._window = None

    def break_off(self) -> None:
        """Break every connection: the process is gone."""
        self._is_alive = False
        for transfer in list(self._attempts):
            self._stop(transfer)

    def _fold(self, action: act.FoldCopy) -> None:
        rule, gradient = self._spec.rule, self._copies.pop(action.update)
        own = own_step(rule, gradient, action.lrs[-1], action.share)
        self._window = own if self._window is None else added(carried(rule, self._window, action.lrs), own)

    def _end(self, transfer: TransferId) -> None:
        self._stop(transfer)
        self._frozen.pop(transfer, None)
        if isinstance(transfer, UpdateId):
            self._copies.pop(transfer, None)

    def _stop(self, transfer: TransferId) -> None:
        connection = self._attempts.pop(transfer, None)
        if connection is not None:
            connection.close(End.NEAR)

    # Attempts

    def _send(self, plan: Replicate, address: str) -> None:
        self._stop(plan.transfer)
        receiver = self._book.find(address)
        if receiver is not None:
            self._offer(plan, receiver)
            return
        self._attempts[plan.transfer] = None
        what = f"{self._process.host} finds nobody at {address}"
        self._world.later(self._world.latency_ns(), what, lambda: self._found_nobody(plan, what))

    def _found_nobody(self, plan: Replicate, what: str) -> None:
        if self._is_alive and plan.transfer in self._attempts and self._attempts[plan.transfer] is None:
            del self._attempts[plan.transfer]
            self._take_in(act.ReplicaBroken(transfer=plan.transfer, ticket=plan.ticket))

    def _image(self, transfer: TransferId) -> tuple[Image | None, int]:
        """Return what is sent, None for what is not finite, and its size."""
        size_bytes = self._spec.layout.size_bytes
        if isinstance(transfer, SumId):
            return self._frozen[transfer], self._spec.rule.sum_images * size_bytes
        if self._truths[transfer].oddity is Oddity.INFINITE:
            return None, size_bytes
        return (self._copies[transfer],), size_bytes

    def _offer(self, plan: Replicate, receiver: Receiver) -> None:
        image, size_bytes = self._image(plan.transfer)
        payload = Payload.whole(image, size_bytes, receiver.chunks)
        whole = dict(payload.chunks) if size_bytes <= WITH_OFFER_BYTES else {}

        def ended(event: act.DaemonEvent) -> None:
            attempt = self._attempts.pop(plan.transfer)
            assert attempt is connection, f"{plan.transfer} was answered on a connection that was given up"
            if connection.is_open:
                connection.end()
            self._take_in(event)

        def broke(detail: str) -> None:
            ended(act.ReplicaBroken(transfer=plan.transfer, ticket=plan.ticket))

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            assert not outcomes, "a replica settles nothing"
            ended(act.ReplicaAnswered(transfer=plan.transfer, ticket=plan.ticket))

        def granted() -> None:
            way = Way(source=self._process.host, destination=receiver.host, towards=End.FAR, pace_bps=plan.rate_bps)
            Feed(connection, way, payload, partial(receiver.payload, connection.number), sent)

        def sent() -> None:
            connection.send(End.FAR, "SEAL", partial(receiver.sealed, connection.number))

        caller = Caller(process=self._process, granted=granted, answered=answered, refused=broke)
        name = f"{plan.transfer} at {receiver.name}"
        connection = receiver.connect(name, caller, lambda: broke("the connection broke"))
        self._attempts[plan.transfer] = connection
        is_odd = isinstance(plan.transfer, UpdateId) and self._truths[plan.transfer].oddity is Oddity.LAYOUT
        digest = self._spec.layout.digest + is_odd
        offer = (connection.number, plan.transfer, plan.ticket, size_bytes, digest, whole)
        connection.send(End.FAR, "OFFER", partial(receiver.offered, *offer))
