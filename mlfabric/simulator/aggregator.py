"""The simulated shell of an aggregator: session, connections that others opened, accumulators.

Does what ``aggregator/service.py`` and ``aggregator/aggregator_connections.py`` do; what it sends itself is in
``errands.py``.
"""

from __future__ import annotations

from functools import partial

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.state import AggregatorState
from mlfabric.aggregator.sum_records import Stage
from mlfabric.model.specs import Role
from mlfabric.protocol import (
    DropReason,
    GetId,
    MemberEvent,
    MemberJoined,
    SumId,
    Welcome,
)
from mlfabric.simulator.calls import Calls
from mlfabric.simulator.errands import Errands
from mlfabric.simulator.exact import Image
from mlfabric.simulator.payloads import CHUNKS, Adding, Payload
from mlfabric.simulator.receiving import Receiver
from mlfabric.simulator.simulated_connections import End
from mlfabric.simulator.surroundings import Surroundings

__all__ = ["SimulatedAggregator"]


class SimulatedAggregator(Receiver[act.Grant]):
    """One process of an aggregator."""

    chunks = CHUNKS
    state: AggregatorState

    def __init__(self, around: Surroundings, name: str, incarnation: int, host: str) -> None:
        world = around.world
        super().__init__(around, name, incarnation, f"{name}, process {incarnation}", world.process(name, host))
        budget = world.config.sum_updates * world.config.model_bytes
        self.state = AggregatorState(name, budget)
        self.sums: dict[SumId, Adding] = {}
        self.models: dict[GetId, Payload] = {}
        self.handed_on = 0
        self._errands = Errands(Calls(world, self.process, around.book), self._take_in)
        self._doing |= {
            act.ReserveSum: self._reserve,
            act.Grant: self._grant,
            act.OfferSum: lambda action: self._errands.offer(action, self.sums[action.plan.sum].payload),
            act.SealSum: lambda action: self._errands.seal(action.sum),
            act.ForgetSum: lambda action: self.sums.pop(action.plan.sum),
            act.GiveUp: self._give_up,
            act.StartFetch: self._fetch,
            act.HandModelOn: self._hand_on,
            act.ForgetModel: lambda action: self.models.pop(action.get),
            act.StopFetch: self._stop_fetch,
        }
        around.flows.add_host(host)
        around.book.add(self.address, self)

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        self._end()
        self._errands.break_off()

    # The session

    def joining(self) -> MemberJoined:
        """Return how it registers."""
        config = self._world.config
        return MemberJoined(member=self._member(Role.AGGREGATOR, config.link_bps), most_updates=config.most_updates)

    def admitted(self, welcome: Welcome) -> list[MemberEvent]:
        """Begin under a scheduler; return what it announces."""
        self._take_in(act.TermBegan(term=welcome.term))
        return []

    # Connections

    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload; what comes after an answer is thrown away."""
        line = self._lines[number]
        if line.grant is not None:
            self._add(number, line.grant, place, chunk)

    def _add(self, number: int, grant: act.Grant, place: int, chunk: Image | None) -> bool:
        """Add a chunk to its sum; tell whether that was done."""
        adding = self.sums.get(grant.sum)
        if adding is None:
            self._fail(number, f"{grant.sum} was given up")
        elif chunk is None:
            self._unusable(number, grant, DropReason.NOT_FINITE)
        else:
            adding.add(grant.index, place, chunk)
        return adding is not None and chunk is not None

    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""
        grant = self._lines[number].grant
        if grant is not None:
            self._seal(number, grant)

    def _seal(self, number: int, grant: act.Grant) -> None:
        adding = self.sums.get(grant.sum)
        assert adding is None or adding.is_in(grant.index), f"{grant.transfer} was sealed before all of it was here"
        self._take_in(act.PayloadReceived(transfer=grant.transfer, connection=number))

    def taken_back(self, number: int) -> None:
        """Read a REFUSE frame: the sender takes its payload back."""
        line = self._lines[number]
        if line.grant is not None:
            self._unusable(number, line.grant, DropReason.CHANGED)
        else:
            super().taken_back(number)

    def _unusable(self, number: int, grant: act.Grant, cause: DropReason) -> None:
        self._lines[number].grant = None
        self._take_in(act.InputUnusable(transfer=grant.transfer, connection=number, cause=cause, detail=cause.value))

    # Events in, actions out

    def _rested(self) -> None:
        sums, handings = self.state.sums.sums, self.state.handings.handings
        counted: set[SumId | GetId] = {s for s, r in sums.items() if r.stage not in (Stage.WAITING, Stage.SENT)}
        counted |= {get for get, handing in handings.items() if handing.fetching}
        held = {*self.sums, *self.models}
        assert held == counted, f"{self.name} keeps {held}; it counts {counted}"

    def _reserve(self, action: act.ReserveSum) -> None:
        payload = Payload(action.plan.images * action.spec.layout.size_bytes, CHUNKS)
        self.sums[action.plan.sum] = Adding(action.plan, payload, CHUNKS)

    def _give_up(self, action: act.GiveUp) -> None:
        self._errands.give_up(action.sum)
        self.sums.pop(action.sum, None)

    def _fetch(self, action: act.StartFetch) -> None:
        payload = self.models[action.plan.get] = Payload(action.spec.layout.size_bytes, CHUNKS)
        self._errands.fetch(action.plan, payload)

    def _stop_fetch(self, action: act.StopFetch) -> None:
        self._errands.give_up(action.get)
        del self.models[action.get]
        self._tear(action.get)

    # Frames out

    def _grant(self, action: act.Grant) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            return
        line.grant = action
        if not line.whole:
            line.connection.send(End.NEAR, "GRANT", line.caller.granted)
        elif all(self._add(action.connection, action, place, chunk) for place, chunk in line.whole.items()):
            self._seal(action.connection, action)

    # Models

    def _hand_on(self, action: act.HandModelOn) -> None:
        payload = self.models.get(action.source)
        if action.connection not in self._lines or payload is None:
            self._cannot_send(action, "the connection is gone" if payload is not None else "the model was given up")
        else:
            self._send_model(action, payload, partial(self._handed_on, payload), action.source)

    def _handed_on(self, payload: Payload) -> None:
        self.handed_on += payload.is_complete

    def _tear(self, source: GetId) -> None:
        """Close every connection over which a model was being handed on."""
        for number, line in list(self._lines.items()):
            if line.serving is not None and line.serving.source == source:
                self._fail(number, "the model was given up")
