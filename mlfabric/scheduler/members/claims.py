"""What members may not say though it is well formed: figures out of range, other members' models, too much. Pure.

Changes nothing. The shell asks before it hands an event on, and ends the call or the session of who said it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.model.specs import Role
from mlfabric.network import MAX_RATE_BPS
from mlfabric.protocol import (
    CommitsReported,
    GetRequested,
    LinkProbed,
    LinksReported,
    MemberEvent,
    MemoryReported,
    NotKept,
    PushRequested,
    ReduceRequested,
    RefuseReason,
    RoundArrived,
    ServerHolds,
    TransferEnded,
    WorkerHolds,
)
from mlfabric.protocol.told import SaidByWorker
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.members.admission import Admission
from mlfabric.scheduler.shards.parts import name_of_whole

__all__ = ["Claims", "Refusal"]

Refusal = tuple[RefuseReason, str]
MOST_KINDS = 64
LONGEST_KIND = 64


class Claims:
    """Judges what members say.

    Args:
        models: all that there are.
        admission: knows what a server may hold.
    """

    def __init__(
        self,
        context: Context,
        models: KnownModels,
        admission: Admission,
    ) -> None:
        self._context = context
        self._limits = context.config.limits
        self._models = models
        self._admission = admission

    def refusal(self, event: MemberEvent) -> Refusal | None:
        """Say why an event cannot be taken in; None if it can."""
        match event:
            case PushRequested():
                return self._own_model(event.update.worker, event.model) or self._push((event,))
            case GetRequested():
                return self._own_model(event.get.worker, event.model) or self._get((event,))
            case ReduceRequested():
                return self._own_model(event.reduce.worker, event.model) or self._reduce((event,))
            case WorkerHolds():
                models = {one.model for one in event.pushes} | {one.model for one in event.gets}
                models |= {one.model for one in event.reduces}
                foreign = (self._own_model(event.worker, model) for model in sorted(models))
                first = next((refusal for refusal in foreign if refusal is not None), None)
                return first or self._push(event.pushes) or self._get(event.gets) or self._reduce(event.reduces)
            case LinksReported():
                return next((r for rate in event.rates if (r := _rate(f"rate of {rate.host}", rate.bps))), None)
            case RoundArrived():
                excess = _rate("up_bps", event.up_bps) or _rate("down_bps", event.down_bps)
                return excess or self._own_model(event.worker, event.model)
            case LinkProbed():
                return _rate("bps", event.bps) or self._own_model(event.worker, event.model)
            case SaidByWorker():
                return self._own_model(event.worker, event.model)
            case TransferEnded() | NotKept() if self._is_worker(event.member):
                return self._own_model(event.member, event.model)
            case CommitsReported():
                return self._commits(event)
            case ServerHolds() if event.spec.name not in self._models.held:
                return self._admission.held_refusal(event.server, event.spec)
            case MemoryReported():
                return _kinds(event)
            case _:
                return None

    def _is_worker(self, name: str) -> bool:
        record = self._context.members.get(name)
        return record is not None and record.member.role is Role.WORKER

    def _own_model(self, worker: str, model: str) -> Refusal | None:
        record, known = self._context.members.get(worker), self._models.held.get(model)
        whole = model if known is None else name_of_whole(known.pushes.spec)
        if record is not None and record.member.role is Role.WORKER and record.model == whole:
            return None
        trains = f"trains {record.model!r}" if record is not None and record.model else "trains nothing"
        return RefuseReason.NOT_ITS_OWN, f"{worker!r} speaks of model {model!r}; allowed: its own, and it {trains}"

    def _push(self, pushes: Sequence[PushRequested]) -> Refusal | None:
        new = [push for push in pushes if self._is_new(push)]
        if not new:
            return None
        limits, worker = self._limits, new[0].update.worker
        for push in new:
            outcomes = self._models.held[push.model].pushes.settled.count(push.update)
            if outcomes >= limits.outcomes_per_worker:
                given = f"{worker} does not say that it knows the outcomes of {outcomes} updates"
                return RefuseReason.TOO_MANY, f"{given}; allowed: {limits.outcomes_per_worker}"
        tables = [model.pushes for model in self._models.held.values()]
        in_all = len(new) + sum(len(table.waiting) + len(table.planned) for table in tables)
        if in_all <= min(limits.updates, limits.updates_per_worker):
            return None  # whatever this worker has of them; to count that takes as long as there are updates
        own = len(new) + sum(u.worker == worker for table in tables for u in (*table.waiting, *table.planned))
        most, among = limits.updates_per_worker, ""
        if in_all > limits.updates:
            most = min(most, max(1, limits.updates // len(self._context.here(Role.WORKER))))
            among = f", as there are {in_all} in all"
        if own > most:
            return RefuseReason.TOO_MANY, f"{worker} has {own} updates without an outcome; allowed: {most}{among}"
        return None

    def _is_new(self, push: PushRequested) -> bool:
        model = self._models.held.get(push.model)
        return model is not None and not (push.update in model.pushes.waiting or push.update in model.pushes.planned)

    def _get(self, gets: Sequence[GetRequested]) -> Refusal | None:
        if not gets:
            return None
        worker, most = gets[0].get.worker, self._limits.gets_per_worker
        tables = [model.gets for model in self._models.held.values()]
        asked = {get.get for get in gets}
        if len(asked) + sum(len(table.waiting) + len(table.planned) for table in tables) <= most:
            return None
        asked |= {g for table in tables for g in (*table.waiting, *table.planned) if g.worker == worker}
        if len(asked) > most:
            return RefuseReason.TOO_MANY, f"{worker} has {len(asked)} gets without an answer; allowed: {most}"
        return None

    def _reduce(self, reduces: Sequence[ReduceRequested]) -> Refusal | None:
        limits = self._limits
        for reduce in reduces:
            if reduce.size_bytes > limits.model_bytes:
                given = f"ReduceRequested.size_bytes={reduce.size_bytes}"
                return RefuseReason.TOO_MANY, f"{given}; allowed: up to {limits.model_bytes}"
            rounds, worker = self._models.reductions.get(reduce.model), reduce.reduce.worker
            if rounds is not None and rounds.asked_by(worker) + len(reduces) > limits.reduces_per_worker:
                given = f"{worker} has {rounds.asked_by(worker)} open reductions and asks for {len(reduces)} more"
                return RefuseReason.TOO_MANY, f"{given}; allowed: {limits.reduces_per_worker}"
        return None

    def _commits(self, event: CommitsReported) -> Refusal | None:
        model = self._models.held.get(event.model)
        if model is None:
            return None
        # A bound that goes by the number of workers may have been higher under a scheduler that knew more of them.
        bound = model.pushes.policy.delay_bound(max(self._limits.members, model.pushes.most_workers))
        for commit in event.commits:
            if not 0 <= commit.tau <= bound:
                given = f"CommitsReported: delay {commit.tau} of {tuple(commit.update)}"
                return RefuseReason.OUT_OF_RANGE, f"{given}; allowed: 0 to {bound}, the bound of {event.model}"
        return None


def _rate(what: str, bps: int) -> Refusal | None:
    if bps > MAX_RATE_BPS:
        return RefuseReason.OUT_OF_RANGE, f"{what}={bps} bit/s; allowed: up to {MAX_RATE_BPS}"
    return None


def _kinds(event: MemoryReported) -> Refusal | None:
    longest = max((len(kind) for kind, _ in event.kinds), default=0)
    if len(event.kinds) > MOST_KINDS or longest > LONGEST_KIND:
        given = f"MemoryReported: {len(event.kinds)} kinds, the longest of {longest} characters"
        return RefuseReason.TOO_MANY, f"{given}; allowed: up to {MOST_KINDS} of {LONGEST_KIND} characters"
    return None
