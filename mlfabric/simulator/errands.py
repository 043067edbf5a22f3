"""The simulated data connections that an aggregator opens: sums to their receivers, models from their sources.

Does what ``aggregator/outgoing_sums.py`` does. An errand ends with an event for the state machine, unless that gave it
up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.aggregator import actions as act
from mlfabric.protocol import GetId, HandOn, ModelVersion, Outcome, SumId, UpdateId
from mlfabric.simulator.calls import Calls, Offer
from mlfabric.simulator.exact import Image
from mlfabric.simulator.payloads import CHUNKS, Payload
from mlfabric.simulator.receiving import Caller

__all__ = ["Errands"]


@dataclass(slots=True, eq=False)
class _Sealing:
    """A sum that is offered.

    Args:
        seal: sends the seal; None until all of the payload has been sent.
        may_seal: all inputs are here.
        is_sealed: the seal has been sent.
    """

    seal: Callable[[], None] | None = None
    may_seal: bool = False
    is_sealed: bool = False


class Errands:
    """Everything that one aggregator sends or fetches by itself.

    Args:
        calls: the aggregator's.
        take_in: where events for the state machine go.
    """

    def __init__(self, calls: Calls[SumId | GetId], take_in: Callable[[act.AggregatorEvent], None]) -> None:
        self._calls = calls
        self._take_in = take_in
        self._sums: dict[SumId, _Sealing] = {}
        self.give_up, self.break_off = self._calls.give_up, self._calls.break_off

    def _over(self, which: SumId | GetId, ended: act.AggregatorEvent) -> None:
        self._calls.over(which)
        self._take_in(ended)

    # Sums

    def offer(self, order: act.OfferSum, payload: Payload) -> None:
        """Begin to offer a sum and to send it."""
        plan, sealing = order.plan, _Sealing(is_sealed=order.whole)
        self._sums[plan.sum] = sealing

        def broke(detail: str) -> None:
            self._over(plan.sum, act.SumFailed(sum=plan.sum, detail=detail))

        def left(seal: Callable[[], None], refuse: Callable[[], None]) -> None:
            sealing.seal = seal
            self._seal_if_complete(plan.sum)

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            if sealing.is_sealed:
                self._over(plan.sum, act.OutcomesReceived(sum=plan.sum, outcomes=tuple(outcomes.items())))
            else:
                broke("an outcome came before the sum was sealed")

        offered = Offer(
            transfer=plan.sum,
            ticket=plan.ticket,
            payload=lambda chunks: payload,
            digest=order.spec.layout.digest,
            travels_whole=order.whole,
            rate_bps=plan.rate_bps,
        )
        has_gone = self._calls.offer(plan.sum, plan.address, offered, answered, broke, left)
        if order.whole and has_gone:
            self._take_in(act.SumSealed(sum=plan.sum))

    def seal(self, which: SumId) -> None:
        """Let a sum be sealed as soon as it is sent."""
        if which in self._calls:
            self._sums[which].may_seal = True
            self._seal_if_complete(which)

    def _seal_if_complete(self, which: SumId) -> None:
        sealing = self._sums[which]
        if sealing.seal is not None and sealing.may_seal and not sealing.is_sealed:
            sealing.is_sealed = True
            sealing.seal()
            self._take_in(act.SumSealed(sum=which))

    # Models

    def fetch(self, plan: HandOn, payload: Payload) -> None:
        """Begin to fetch a model."""

        def broke(detail: str) -> None:
            self._over(plan.get, act.FetchFailed(get=plan.get, detail=detail))

        def comes(version: ModelVersion, count: int) -> None:
            self._take_in(act.ModelComes(get=plan.get, version=version))

        def arrived(place: int, chunk: Image | None) -> None:
            payload.put(place, chunk)
            if payload.is_complete:
                self._over(plan.get, act.ModelArrived(get=plan.get))

        process = self._calls.process
        caller = Caller(process=process, refused=broke, chunks=CHUNKS, comes=comes, payload=arrived)
        self._calls.want(plan.get, plan.address, plan.get, plan.ticket, caller)
