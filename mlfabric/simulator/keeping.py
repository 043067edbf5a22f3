"""What a simulated worker keeps for a replica, and sends it. Does what ``worker_daemon/kept_bytes.py`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import Outcome, Replicate, SumId, TransferId, UpdateId
from mlfabric.simulator.calls import Calls, Offer
from mlfabric.simulator.exact import Image, added, carried, own_step
from mlfabric.simulator.payloads import Payload
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.transfer.offers import WITH_OFFER_BYTES
from mlfabric.worker_daemon import actions as act

__all__ = ["SimulatedKept"]


class SimulatedKept:
    """Copies, the window, what is frozen, and every attempt to send one of them.

    Args:
        calls: the worker's.
        spec: of the model.
        truths: what each update is.
        is_here: tells whether the worker still has an update's tensors.
        take_in: where events for the state machine go.
    """

    def __init__(
        self,
        calls: Calls[TransferId],
        spec: ModelSpec,
        truths: Mapping[UpdateId, Truth],
        is_here: Callable[[UpdateId], bool],
        take_in: Callable[[act.DaemonEvent], None],
    ) -> None:
        self._spec = spec
        self._truths = truths
        self._is_here = is_here
        self._take_in = take_in
        self._copies: dict[UpdateId, int] = {}
        self._frozen: dict[TransferId, Image] = {}
        self._window: Image | None = None
        self._calls = calls
        self.doing: dict[type, Callable[[Any], object]] = {
            act.KeepCopy: self._keep,
            act.FoldCopy: self._fold,
            act.DropCopies: self._drop,
            act.FreezeWindow: self._freeze,
            act.StartReplicate: lambda action: self._send(action.plan, action.address),
            act.EndReplicate: self._end,
            act.DropWindow: self._drop_window,
        }

    @property
    def copies(self) -> set[UpdateId]:
        """The updates of which copies are kept."""
        return set(self._copies)

    def _keep(self, action: act.KeepCopy) -> None:
        assert self._is_here(action.update), f"{action.update} is to be copied, but its tensors are gone"
        self._copies[action.update] = self._truths[action.update].step

    def _drop(self, action: act.DropCopies) -> None:
        for update in action.updates:
            del self._copies[update]

    def _freeze(self, action: act.FreezeWindow) -> None:
        assert self._window is not None, f"{action.transfer} is to be sent, but nothing is folded"
        self._frozen[action.transfer], self._window = self._window, None

    def _drop_window(self, action: act.DropWindow) -> None:
        self._window = None

    def _fold(self, action: act.FoldCopy) -> None:
        rule, gradient = self._spec.rule, self._copies.pop(action.update)
        own = own_step(rule, gradient, action.lrs[-1], action.share)
        self._window = own if self._window is None else added(carried(rule, self._window, action.lrs), own)

    def _end(self, action: act.EndReplicate) -> None:
        self._calls.give_up(action.transfer)
        self._frozen.pop(action.transfer, None)
        if isinstance(action.transfer, UpdateId):
            self._copies.pop(action.transfer, None)

    def _image(self, transfer: TransferId) -> tuple[Image | None, int]:
        """Return what is sent, None for what is not finite, and its size."""
        size_bytes = self._spec.layout.size_bytes
        if isinstance(transfer, SumId):
            return self._frozen[transfer], self._spec.rule.sum_images * size_bytes
        if self._truths[transfer].oddity is Oddity.INFINITE:
            return None, size_bytes
        return (self._copies[transfer],), size_bytes

    def _send(self, plan: Replicate, address: str) -> None:
        self._calls.give_up(plan.transfer)

        def ended(event: act.DaemonEvent) -> None:
            self._calls.over(plan.transfer)
            self._take_in(event)

        def broke(detail: str) -> None:
            ended(act.ReplicaBroken(transfer=plan.transfer, ticket=plan.ticket))

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            assert not outcomes, "a replica settles nothing"
            ended(act.ReplicaAnswered(transfer=plan.transfer, ticket=plan.ticket))

        image, size_bytes = self._image(plan.transfer)
        is_odd = isinstance(plan.transfer, UpdateId) and self._truths[plan.transfer].oddity is Oddity.LAYOUT
        offered = Offer(
            transfer=plan.transfer,
            ticket=plan.ticket,
            payload=partial(Payload.whole, image, size_bytes),
            digest=self._spec.layout.digest + is_odd,
            travels_whole=size_bytes <= WITH_OFFER_BYTES,
            rate_bps=plan.rate_bps,
        )
        self._calls.offer(plan.transfer, address, offered, answered, broke)
