"""The simulated data connections of a worker: one attempt to push an update or to fetch a model each.

Does what ``worker_daemon/data_attempts.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlfabric.model.specs import Layout
from mlfabric.protocol import Dropped, DropReason, Fetch, GetId, ModelVersion, Outcome, Send, UpdateId
from mlfabric.simulator.calls import Calls, Offer
from mlfabric.simulator.exact import Image, joined
from mlfabric.simulator.payloads import Payload
from mlfabric.simulator.receiving import Caller
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.transfer.offers import WITH_OFFER_BYTES
from mlfabric.worker_daemon import actions as act

__all__ = ["Attempts"]


class Attempts:
    """Every attempt under way, by its ticket.

    Args:
        calls: the worker's.
        layout_of: returns that of an update's model, or of its part.
        truths: what each update is.
        take_in: where events for the state machine go.
    """

    def __init__(
        self,
        calls: Calls[bytes],
        layout_of: Callable[[UpdateId], Layout],
        truths: dict[UpdateId, Truth],
        take_in: Callable[[act.DaemonEvent], None],
    ) -> None:
        self.values: dict[GetId, int] = {}
        self._layout_of = layout_of
        self._truths = truths
        self._take_in = take_in
        self._calls = calls

    def _over(self, ticket: bytes, event: act.DaemonEvent) -> None:
        self._calls.over(ticket)
        self._take_in(event)

    def send(self, plan: Send) -> None:
        """Try to push an update."""
        truth, layout = self._truths[plan.update], self._layout_of(plan.update)
        is_changed = truth.oddity is Oddity.CHANGED
        image = None if truth.oddity is Oddity.INFINITE else (truth.step,)

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            self._over(plan.ticket, act.OutcomeReceived(update=plan.update, outcome=outcomes[plan.update]))

        def left(seal: Callable[[], None], refuse: Callable[[], None]) -> None:
            if not is_changed:
                seal()
                return
            refuse()
            self._calls.mute(plan.ticket)
            self._take_in(act.OutcomeReceived(update=plan.update, outcome=Dropped(cause=DropReason.CHANGED)))

        def broke(detail: str) -> None:
            self._over(plan.ticket, act.SendBroken(update=plan.update, ticket=plan.ticket))

        offered = Offer(
            transfer=plan.update,
            ticket=plan.ticket,
            payload=partial(Payload.whole, image, layout.size_bytes),
            digest=layout.digest + (truth.oddity is Oddity.LAYOUT),
            travels_whole=layout.size_bytes <= WITH_OFFER_BYTES and not is_changed,
            rate_bps=plan.rate_bps,
        )
        self._calls.offer(plan.ticket, plan.address, offered, answered, broke, left)

    def fetch(self, plan: Fetch) -> None:
        """Try to fetch a model."""
        come: dict[int, Image | None] = {}
        comes: list[tuple[ModelVersion, int]] = []

        def payload(place: int, chunk: Image | None) -> None:
            come[place] = chunk
            (version, count), *_ = comes
            if len(come) == count:
                model = joined(come)
                assert model is not None, f"{plan.get} was answered with a model that is not finite"
                self.values[plan.get] = model[0]
                self._over(plan.ticket, act.ModelReceived(get=plan.get, version=version))

        def broke(detail: str) -> None:
            self._over(plan.ticket, act.FetchBroken(get=plan.get, ticket=plan.ticket))

        caller = Caller(
            process=self._calls.process,
            refused=broke,
            comes=lambda version, count: comes.append((version, count)),
            payload=payload,
        )
        self._calls.want(plan.ticket, plan.address, plan.get, plan.ticket, caller)
