"""The server's state machine: several models side by side, one mutating door. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlfabric.protocol import (
    CancelServe,
    Conclude,
    Drop,
    Expect,
    Followed,
    FreeModel,
    GetId,
    HostModel,
    ModelVersion,
    NoteDropped,
    Outcome,
    Prepare,
    Serve,
    ServerHolds,
    Tick,
    TransferEnd,
    TransferId,
    Unfollowed,
    UpdateId,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.freed_models import Freeing
from mlfabric.server.hosted import HostedModel, ServerConfig
from mlfabric.server.shard import ShardModel
from mlfabric.transfer.offers import Early

__all__ = ["ServerState"]


class ServerState:
    """Every model that a server holds.

    Args:
        config: see there.
        held: models that it begins with (from checkpoints).
    """

    def __init__(self, config: ServerConfig, held: Iterable[ServerHolds] = ()) -> None:
        self.config = config
        self.term = 0
        self.models = {h.spec.name: self._model(h) for h in held}
        self._is_stopping = False
        self._freeing = Freeing(config.name)
        self._early = Early()

    def handle(self, event: act.ServerEvent | Tick, now_ns: int) -> list[act.Action]:
        """Take in one event and return what to do, in order."""
        out = list(self._react(event, now_ns))
        for model in self.models.values():
            out.extend(model.advance(now_ns))
        if self._is_stopping and all(shard.is_settled for shard in self._shards()):
            self._is_stopping = False
            out.append(act.Settled())
        return out

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        times = [self._early.next_wakeup_ns(), *(model.next_wakeup_ns() for model in self.models.values())]
        return min([t for t in times if t is not None], default=None)

    def holds(self) -> list[ServerHolds]:
        """Announce every model, for a scheduler that may know nothing, but those that begin a later epoch first."""
        return [model.holds() for model in self.models.values() if not model.is_to_renew]

    def brings(self) -> list[ServerHolds]:
        """Return what is here of every model."""
        return [model.holds() for model in self.models.values()]

    def lacking_bytes(self) -> int:
        """Return what copies of weights would take for which gets wait now; see ``ServerConfig.weight_copies``."""
        return sum(model.spec.layout.size_bytes for model in self.models.values() if model.lacks_copy)

    def validate(self) -> None:
        """Check the invariants of every model."""
        for model in self.models.values():
            model.validate()

    def _react(self, event: act.ServerEvent | Tick, now_ns: int) -> Iterator[act.Action]:
        match event:
            case HostModel():
                yield from self._host(event)
            case FreeModel():
                yield from self._free(event)
            case act.StoreFreed():
                yield from self._freed(event.model)
            case act.TermBegan():
                yield from self._begin_term(event.term, event.server_epoch)
            case act.Stopping():
                self._is_stopping = True
                for shard in self._shards():
                    shard.stop()
            case act.Offered():
                yield from self._offer(event, now_ns)
            case act.Wanted():
                yield from self._want(event, now_ns)
            case Tick():
                yield from self._early.expire(now_ns)
                for model in self.models.values():
                    yield from model.expire(now_ns)
            case _:
                if isinstance(event, act.TransferBroken | act.GetBroken):
                    self._early.forget(event.connection)
                yield from self._concern(event, now_ns)

    def _concern(self, event: act.ModelEvent, now_ns: int) -> Iterator[act.Action]:
        """React to what concerns one model, unless there is none: it has ended meanwhile."""
        match event:
            case act.PayloadReceived() | act.TransferBroken():
                found = self._model_of(event.transfer)
            case act.GetServed() | act.GetBroken():
                found = self._model_of(event.get)
            case _:
                found = self.models.get(event.model)
        if isinstance(found, ShardModel):
            yield from _order(found, event)
        if found is not None:
            yield from self._tell(found, event, now_ns)

    def _tell(self, model: HostedModel, event: act.ModelEvent, now_ns: int) -> Iterator[act.Action]:
        match event:
            case Expect():
                yield from model.expect(event, now_ns)
                for early in self._early.take(event.transfer, event.ticket):
                    yield from self._react(early, now_ns)
            case Void():
                yield from model.void(event.transfer, event.reason)
            case Serve():
                yield from model.serve(event, now_ns)
                for early in self._early.take(event.get, event.ticket):
                    yield from self._react(early, now_ns)
            case CancelServe():
                yield from model.gets.cancel(event.get, event.reason, gone=event.gone)
            case Followed():
                model.lead.follow(event)
            case Unfollowed():
                model.lead.lift()
            case NoteDropped():
                model.samples.drop(event.samples)
            case Drop():
                yield from model.drop(event)
            case act.SeedTaken():
                model.lead.seeded(event.history_norm, event.weights_norm, event.steps)
            case act.PayloadReceived():
                yield from model.received(event.transfer, event.connection)
            case act.TransferBroken():
                yield from model.broken(event.transfer, event.connection, event.detail)
            case act.GetServed():
                yield from model.gets.ended(event.get, TransferEnd.SERVED, event.connection)
            case act.GetBroken():
                yield from model.gets.ended(event.get, TransferEnd.BROKEN, event.connection, event.detail)
            case act.StepDone():
                yield from model.stepped(event)
            case act.StepRefused():
                yield from model.step_refused(event)
            case act.InstallRefused():
                yield from model.install_refused(event.update, event.detail)
            case act.Installed():
                yield from model.installed(event.update)

    def _begin_term(self, term: int, server_epoch: int) -> Iterator[act.Action]:
        """React to every admission; also under the same term, what was said before may have been lost."""
        for model in self.models.values() if server_epoch else ():
            model.renew(server_epoch)
        for shard in self._shards():
            yield from shard.admitted()
        if term > self.term:
            self.term = term
            for model in self.models.values():
                yield from model.begin_term(term)

    def _shards(self) -> list[ShardModel]:
        return [model for model in self.models.values() if isinstance(model, ShardModel)]

    def _host(self, order: HostModel) -> Iterator[act.Action]:
        if self._freeing.delays(order):
            return
        if order.spec.name not in self.models:
            yield act.CreateStore(spec=order.spec, reason=order.reason)
            start = ServerHolds(
                server=self.config.name,
                spec=order.spec,
                version=ModelVersion(order.epoch, 0),
                initialised=False,
            )
            self.models[order.spec.name] = self._model(start)

    def _free(self, order: FreeModel) -> Iterator[act.Action]:
        """Let go of a model that has ended; what is repeated is answered again."""
        model = self.models.get(order.model)
        if model is None:
            if not self._freeing.told_again(order):
                yield act.Report(event=self._freeing.freed(order.model, order.epoch))
        elif model.version.epoch <= order.epoch:
            del self.models[order.model]
            self._freeing.begin(order)
            transfers = yield from model.end(order.reason)
            yield act.FreeStore(model=order.model, transfers=transfers, reason=order.reason)

    def _freed(self, model: str) -> Iterator[act.Action]:
        """Say that a model is gone; one of its name that was ordered meanwhile begins now."""
        freed, order = self._freeing.end(model)
        yield act.Report(event=freed)
        if order is not None:
            yield from self._host(order)

    def _model(self, start: ServerHolds) -> HostedModel:
        kind = HostedModel if start.spec.shard is None else ShardModel
        return kind(self.config, start)

    def _offer(self, event: act.Offered, now_ns: int) -> Iterator[act.Action]:
        model = self._model_of(event.transfer)
        if model is not None and model.incoming.transfers[event.transfer].ticket == event.ticket:
            yield from model.offer(event)
        elif (outcome := self._outcome(event.transfer)) is not None:
            yield act.Answer(connection=event.connection, outcomes=(outcome,))
        else:
            self._early.wait(event, now_ns)

    def _outcome(self, transfer: TransferId) -> tuple[UpdateId, Outcome] | None:
        """Return what became of an update; a sum has no outcome of its own."""
        if isinstance(transfer, UpdateId):
            for model in self.models.values():
                outcome = model.applied.outcome(transfer)
                if outcome is not None:
                    return transfer, outcome
        return None

    def _want(self, event: act.Wanted, now_ns: int) -> Iterator[act.Action]:
        model = self._model_of(event.get)
        if model is not None and model.gets.gets[event.get].plan.ticket == event.ticket:
            yield from model.gets.want(event)
        else:
            self._early.wait(event, now_ns)

    def _model_of(self, request: TransferId | GetId) -> HostedModel | None:
        for model in self.models.values():
            if request in model.gets.gets if isinstance(request, GetId) else request in model.incoming.transfers:
                return model
        return None


def _order(model: ShardModel, event: act.ModelEvent) -> Iterator[act.Action]:
    """Tell a part of a model of the orders that it gets, and how they went."""
    match event:
        case Prepare():
            yield from model.prepare(event)
        case Conclude():
            model.conclude(event)
        case act.StepPrepared():
            yield from model.prepared()
        case act.PrepareRefused():
            yield from model.prepare_refused(event)
        case act.StepDiscarded():
            model.discarded()
