"""The simulated data connections of a worker: one attempt to push an update or to fetch a model each.

Does what ``worker_daemon/sending.py`` does, with a connection of its own for every attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlfabric.offers import WITH_OFFER_BYTES
from mlfabric.protocol import Dropped, DropReason, Fetch, GetId, ModelVersion, Outcome, Send, UpdateId
from mlfabric.simulator.calls import Book, Caller, Receiver
from mlfabric.simulator.exact import Image, joined
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.payloads import Feed, Payload, Way
from mlfabric.simulator.processes import Process
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.simulator.world import World
from mlfabric.specs import Layout
from mlfabric.worker_daemon import actions as act

__all__ = ["Attempts"]


class Attempts:
    """Every attempt under way.

    Args:
        process: the worker's.
        layout: the model's.
        book: who answers where.
        truths: what each update is.
        take_in: where events for the state machine go.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        layout: Layout,
        book: Book,
        truths: dict[UpdateId, Truth],
        take_in: Callable[[act.DaemonEvent], None],
    ) -> None:
        self.values: dict[GetId, int] = {}
        self._world = world
        self._process = process
        self._layout = layout
        self._book = book
        self._truths = truths
        self._take_in = take_in
        self._open: dict[int, Connection] = {}
        self._count = 0
        self._stops = 0

    def stop(self) -> None:
        """Give up every attempt, and its connection with it; when the process is gone, this is all there is to it."""
        self._stops += 1
        for connection in self._open.values():
            connection.close(End.NEAR)
        self._open.clear()

    def send(self, plan: Send) -> None:
        """Try to push an update."""

        def broken(detail: str) -> None:
            self._take_in(act.SendBroken(update=plan.update, ticket=plan.ticket))

        receiver = self._book.find(plan.address)
        if receiver is None:
            self._nobody_there(plan.address, broken)
        else:
            self._send(plan, receiver, broken)

    def _send(self, plan: Send, receiver: Receiver, broken: Callable[[str], None]) -> None:
        truth, size_bytes = self._truths[plan.update], self._layout.size_bytes
        digest = self._layout.digest + (truth.oddity is Oddity.LAYOUT)
        image = None if truth.oddity is Oddity.INFINITE else (truth.step,)
        payload = Payload.whole(image, size_bytes, receiver.chunks)
        is_changed = truth.oddity is Oddity.CHANGED
        is_small = size_bytes <= WITH_OFFER_BYTES and not is_changed

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            self._close(number)
            self._take_in(act.OutcomeReceived(update=plan.update, outcome=outcomes[plan.update]))

        def refused(reason: str) -> None:
            self._close(number)
            broken(reason)

        def granted() -> None:
            assert not is_small, f"{plan.update} was granted though it came with its offer"
            way = Way(source=self._process.host, destination=receiver.host, towards=End.FAR, pace_bps=plan.rate_bps)
            Feed(connection, way, payload, partial(receiver.payload, connection.number), sent)

        def sent() -> None:
            if is_changed:
                connection.send(End.FAR, "REFUSE", partial(receiver.taken_back, connection.number))
                self._open.pop(number).mute(End.NEAR)
                outcome = Dropped(cause=DropReason.CHANGED)
                self._take_in(act.OutcomeReceived(update=plan.update, outcome=outcome))
            else:
                connection.send(End.FAR, "SEAL", partial(receiver.sealed, connection.number))

        caller = Caller(process=self._process, granted=granted, answered=answered, refused=refused)
        number, connection = self._connect(receiver, str(plan.update), caller, broken)
        offer = (connection.number, plan.update, plan.ticket, size_bytes, digest, payload.chunks if is_small else {})
        connection.send(End.FAR, "OFFER", partial(receiver.offered, *offer))

    def fetch(self, plan: Fetch) -> None:
        """Try to fetch a model."""

        def broken(detail: str) -> None:
            self._take_in(act.FetchBroken(get=plan.get, ticket=plan.ticket))

        receiver = self._book.find(plan.address)
        if receiver is None:
            self._nobody_there(plan.address, broken)
        else:
            self._fetch(plan, receiver, broken)

    def _fetch(self, plan: Fetch, receiver: Receiver, broken: Callable[[str], None]) -> None:
        come: dict[int, Image | None] = {}
        versions: list[ModelVersion] = []

        def refused(reason: str) -> None:
            self._close(number)
            broken(reason)

        def payload(place: int, chunk: Image | None) -> None:
            come[place] = chunk
            if len(come) == receiver.chunks:
                model = joined(come)
                assert model is not None, f"{plan.get} was answered with a model that is not finite"
                self._close(number)
                self.values[plan.get] = model[0]
                self._take_in(act.ModelReceived(get=plan.get, version=versions[0]))

        caller = Caller(process=self._process, refused=refused, comes=versions.append, payload=payload)
        number, connection = self._connect(receiver, str(plan.get), caller, broken)
        connection.send(End.FAR, "WANT", partial(receiver.wanted, connection.number, plan.get, plan.ticket))

    def _nobody_there(self, address: str, broken: Callable[[str], None]) -> None:
        stops = self._stops

        def refused() -> None:
            if self._stops == stops:
                broken(f"nobody answers at {address}")

        self._world.later(self._world.latency_ns(), f"{self._process.host} finds nobody at {address}", refused)

    def _connect(
        self, receiver: Receiver, name: str, caller: Caller, broken: Callable[[str], None]
    ) -> tuple[int, Connection]:
        self._count += 1
        number = self._count

        def broke() -> None:
            self._open.pop(number, None)
            broken("the connection broke")

        connection = receiver.connect(f"{name} at {receiver.name}", caller, broke)
        self._open[number] = connection
        return number, connection

    def _close(self, number: int) -> None:
        self._open.pop(number).end()
