"""The replica's state machine: the models that it follows, one mutating door. Pure.

Offers may overtake the scheduler's word about them, as at a server; they wait for it at most as long.

A replica that is told to take its primary's place applies what it holds, and then changes no more. Until it is admitted
as a server it is still a replica: one that joins again as such follows on, unless it is told once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    Expect,
    FreeModel,
    HostModel,
    Logged,
    Promote,
    ReplicaReported,
    Tick,
    TransferId,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.freed_models import Freeing
from mlfabric.server.replica import ReplicaModel
from mlfabric.server.replica_actions import (
    PrefixApplied,
    PrefixRefused,
    ReplicaAction,
    ReplicaEvent,
    SeedPlanted,
    SeedRefused,
    TakeOver,
)
from mlfabric.transfer.offers import Early

__all__ = ["ReplicaState"]


class ReplicaState:
    """Every model that a replica follows.

    Args:
        name: the member's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self.models: dict[str, ReplicaModel] = {}
        self.promotion: Promote | None = None
        self._freeing = Freeing(name)
        self._early = Early()
        self._is_handed_over = False

    @property
    def is_seeded(self) -> bool:
        """It has models, and could take its server's place."""
        return any(model.term for model in self.models.values())

    def handle(self, event: ReplicaEvent | Tick, now_ns: int) -> list[ReplicaAction]:
        """Take in one event and return what to do, in order."""
        out = list(self._react(event, now_ns))
        if not self._is_handed_over:
            for model in self.models.values():
                out.extend(model.advance())
            out.extend(self._hand_over())
        return out

    def _hand_over(self) -> Iterator[ReplicaAction]:
        """Hand the models over to a server once all that can be applied is."""
        order = self.promotion
        if order is not None and all(model.is_idle for model in self.models.values()):
            self._is_handed_over = True
            seeded = [model for model in self.models.values() if model.term]
            holds = tuple(model.holds(order.server, order.server_epoch) for model in seeded)
            made = tuple(group for model in seeded for group in model.bequest.made(order.server_epoch))
            yield TakeOver(server=order.server, holds=holds, made=made, reason=order.reason)

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        return self._early.next_wakeup_ns()

    def holds(self) -> list[ReplicaReported]:
        """Announce every model, for a scheduler that may know nothing."""
        return [model.announce() for model in self.models.values()]

    def validate(self) -> None:
        """Check the invariants of every model."""
        for model in self.models.values():
            model.validate()

    def _react(self, event: ReplicaEvent | Tick, now_ns: int) -> Iterator[ReplicaAction]:
        match event:
            case HostModel() if self._freeing.delays(event):
                pass
            case HostModel() if event.spec.name in self.models:
                # Who says so may not have known of the model when it was told what is here.
                yield act.Report(event=self.models[event.spec.name].announce())
            case HostModel():
                self.models[event.spec.name] = ReplicaModel(self.name, event.spec)
            case FreeModel():
                yield from self._free(event)
            case act.StoreFreed():
                freed, order = self._freeing.end(event.model)
                yield act.Report(event=freed)
                if order is not None:
                    self.models[event.model] = ReplicaModel(self.name, order.spec)
            case Expect() if event.model in self.models:
                yield from self.models[event.model].expect(event)
                for early in self._early.take(event.transfer, event.ticket):
                    yield from self._react(early, now_ns)
            case Void() if event.model in self.models:
                yield from self.models[event.model].void(event.transfer)
            case Logged() if event.model in self.models:
                self.models[event.model].logged(event.commits)
            case Promote():
                if self.promotion is None or self.promotion.server_epoch != event.server_epoch:
                    self.promotion, self._is_handed_over = event, False
                    for name, model in self.models.items():
                        known = [commit for group in event.known if group.model == name for commit in group.commits]
                        model.take_foretold(known, [g.commits for g in event.foretold if g.model == name])
            case act.TermBegan():
                self.promotion, self._is_handed_over = None, False
                for model in self.models.values():
                    model.forget_foretold()
                if event.term > self.term:
                    self.term = event.term
                    for model in self.models.values():
                        yield from model.begin_term()
            case act.Offered():
                yield from self._offer(event, now_ns)
            case act.Wanted():
                reason = f"{self.name} is a replica, which hands no models out; ask its server"
                yield act.Refuse(connection=event.connection, reason=reason)
            case Tick():
                yield from self._early.expire(now_ns)
            case _:
                yield from self._progress(event)

    def _progress(self, event: ReplicaEvent) -> Iterator[ReplicaAction]:
        match event:
            case act.PayloadReceived():
                if model := self._model_of(event.transfer):
                    yield from model.received(event.transfer, event.connection)
            case act.TransferBroken():
                self._early.forget(event.connection)
                if model := self._model_of(event.transfer):
                    yield from model.broken(event.transfer, event.connection)
            case SeedPlanted() | SeedRefused() | PrefixApplied() | PrefixRefused():
                if model := self.models.get(event.model):  # else it has ended meanwhile
                    yield from model.stored(event)

    def _free(self, order: FreeModel) -> Iterator[ReplicaAction]:
        """Let go of a model that has ended; what is repeated is answered again."""
        model = self.models.get(order.model)
        if model is None:
            if not self._freeing.told_again(order):
                yield act.Report(event=self._freeing.freed(order.model, order.epoch))
        elif model.version.epoch <= order.epoch:
            del self.models[order.model]
            self._freeing.begin(order)
            transfers = yield from model.end()
            if not self.is_seeded:  # it has nothing any more to take a server's place with
                self.promotion, self._is_handed_over = None, False
            yield act.FreeStore(model=order.model, transfers=transfers, reason=order.reason)

    def _offer(self, event: act.Offered, now_ns: int) -> Iterator[ReplicaAction]:
        model = self._model_of(event.transfer)
        if model is not None and model.transfers[event.transfer].order.ticket == event.ticket:
            yield from model.offer(event)
        elif any(model.seeded_by == event.transfer for model in self.models.values()):
            # The primary has not heard our answer.
            yield act.Answer(connection=event.connection, outcomes=())
        else:
            self._early.wait(event, now_ns)

    def _model_of(self, transfer: TransferId) -> ReplicaModel | None:
        return next((model for model in self.models.values() if transfer in model.transfers), None)
