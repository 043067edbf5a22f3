"""The simulated data connections that an aggregator opens: sums to their receivers, models from their sources.

Does what ``aggregator/outgoing.py`` does, with a connection of its own for every errand. An errand ends with an event
for the state machine, unless that gave it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mlfabric.aggregator import actions as act
from mlfabric.protocol import GetId, HandOn, ModelVersion, Outcome, SumId, UpdateId
from mlfabric.simulator.calls import Book, Caller, Receiver
from mlfabric.simulator.exact import Image
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.payloads import CHUNKS, Feed, Payload, Way
from mlfabric.simulator.processes import Process
from mlfabric.simulator.world import World

__all__ = ["Errands"]


@dataclass(slots=True, eq=False)
class _Errand:
    """What is under way.

    Args:
        connection: None while nobody answers.
        seal: sends the seal; None until the payload is granted.
        has_left: all of the payload has been sent.
        may_seal: all inputs are here.
        is_sealed: the seal has been sent.
    """

    connection: Connection | None = None
    seal: Callable[[], None] | None = None
    has_left: bool = False
    may_seal: bool = False
    is_sealed: bool = False


class Errands:
    """Everything that one aggregator sends or fetches by itself.

    Args:
        process: the aggregator's.
        book: who answers where.
        take_in: where events for the state machine go.
    """

    def __init__(
        self, world: World, process: Process, book: Book, take_in: Callable[[act.AggregatorEvent], None]
    ) -> None:
        self._world = world
        self._process = process
        self._book = book
        self._take_in = take_in
        self._open: dict[SumId | GetId, _Errand] = {}

    def give_up(self, which: SumId | GetId) -> None:
        """End an errand at once, and its connection with it."""
        errand = self._open.pop(which, None)
        if errand is not None and errand.connection is not None:
            errand.connection.close(End.NEAR)

    def break_off(self) -> None:
        """Break every connection: the process is gone."""
        for which in list(self._open):
            self.give_up(which)

    def _begin(
        self, which: SumId | GetId, address: str, failed: Callable[[str], act.AggregatorEvent]
    ) -> tuple[_Errand, Receiver | None]:
        """Note an errand; it fails after a while if nobody answers."""
        errand, receiver = self._open.setdefault(which, _Errand()), self._book.find(address)
        if receiver is None:
            what = f"{self._process.host} finds nobody at {address}"
            self._world.later(self._world.latency_ns(), what, lambda: self._end(which, errand, failed(what)))
        return errand, receiver

    def _end(self, which: SumId | GetId, errand: _Errand, ended: act.AggregatorEvent) -> None:
        """Take in how an errand ended, unless it was given up."""
        if self._open.get(which) is errand:
            del self._open[which]
            if errand.connection is not None and errand.connection.is_open:
                errand.connection.end()
            self._take_in(ended)

    # Sums

    def offer(self, order: act.OfferSum, payload: Payload) -> None:
        """Begin to offer a sum and to send it."""
        plan = order.plan

        def failed(detail: str) -> act.AggregatorEvent:
            return act.SumFailed(sum=plan.sum, detail=detail)

        def broke(detail: str) -> None:
            self._end(plan.sum, errand, failed(detail))

        def granted() -> None:
            assert receiver is not None, "somebody granted it"
            assert errand.connection is not None, "it was granted over a connection"
            way = Way(source=self._process.host, destination=receiver.host, towards=End.FAR, pace_bps=plan.rate_bps)
            number = errand.connection.number
            arrived, sealed = partial(receiver.payload, number), partial(receiver.sealed, number)
            errand.seal = partial(errand.connection.send, End.FAR, "SEAL", sealed)
            Feed(errand.connection, way, payload, arrived, left)

        def left() -> None:
            errand.has_left = True
            self._seal_if_complete(plan.sum, errand)

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            if errand.is_sealed:
                event = act.OutcomesReceived(sum=plan.sum, outcomes=tuple(outcomes.items()))
                self._end(plan.sum, errand, event)
            else:
                broke("an outcome came before the sum was sealed")

        assert plan.sum not in self._open, f"{plan.sum} is offered twice"
        errand, receiver = self._begin(plan.sum, plan.address, failed)
        if receiver is None:
            return
        caller = Caller(process=self._process, granted=granted, answered=answered, refused=broke)
        errand.connection = receiver.connect(
            f"{plan.sum} at {receiver.name}", caller, lambda: broke("the connection broke")
        )
        whole = dict(payload.chunks) if order.whole else {}
        offer = (errand.connection.number, plan.sum, plan.ticket, payload.size_bytes, order.spec.layout.digest, whole)
        errand.connection.send(End.FAR, "OFFER", partial(receiver.offered, *offer))
        if order.whole:
            errand.is_sealed = True
            self._take_in(act.SumSealed(sum=plan.sum))

    def seal(self, which: SumId) -> None:
        """Let a sum be sealed as soon as it is sent."""
        errand = self._open.get(which)
        if errand is not None:
            errand.may_seal = True
            self._seal_if_complete(which, errand)

    def _seal_if_complete(self, which: SumId, errand: _Errand) -> None:
        if errand.has_left and errand.may_seal and not errand.is_sealed:
            assert errand.seal is not None, "it was granted"
            errand.is_sealed = True
            errand.seal()
            self._take_in(act.SumSealed(sum=which))

    # Models

    def fetch(self, plan: HandOn, payload: Payload) -> None:
        """Begin to fetch a model."""

        def failed(detail: str) -> act.AggregatorEvent:
            return act.FetchFailed(get=plan.get, detail=detail)

        def broke(detail: str) -> None:
            self._end(plan.get, errand, failed(detail))

        def comes(version: ModelVersion) -> None:
            self._take_in(act.ModelComes(get=plan.get, version=version))

        def arrived(place: int, chunk: Image | None) -> None:
            payload.put(place, chunk)
            if payload.is_complete:
                self._end(plan.get, errand, act.ModelArrived(get=plan.get))

        errand, receiver = self._begin(plan.get, plan.address, failed)
        if receiver is None:
            return
        caller = Caller(process=self._process, refused=broke, chunks=CHUNKS, comes=comes, payload=arrived)
        errand.connection = receiver.connect(
            f"{plan.get} at {receiver.name}", caller, lambda: broke("the connection broke")
        )
        number = errand.connection.number
        errand.connection.send(End.FAR, "WANT", partial(receiver.wanted, number, plan.get, plan.ticket))
