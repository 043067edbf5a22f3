"""How a model ends: whoever holds anything of it is told to free it, and says when it has. Pure.

Until then the model's name is not given to another one, so nothing that is said of it can be taken for another's. Who
counts as left is not waited for. If it comes back, and holds the model, its server epoch tells that it is not one of
the same name that began later: it is told then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mlfabric.model.specs import Role
from mlfabric.protocol import (
    FreeModel,
    Instruction,
    MemberEvent,
    MemberJoined,
    ModelFreed,
    RefuseReason,
    ReplicaReported,
    ServerHolds,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.followers.promotions import Promotions
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.members.lifetimes import Lifetimes
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberState
from mlfabric.scheduler.shards.parts import name_of_whole

__all__ = ["Endings", "Stay"]


class Stay(NamedTuple):
    """How long a model stays: whose it is, who trains it now, whether it outlives its job, what it waits for in words.

    The fields are called as in the status.
    """

    job: str
    workers: tuple[str, ...]
    kept: bool
    stay: str


class Endings:
    """Ends models, and knows who still holds something of those that end.

    Args:
        models: all that there are; what has ended is taken out.
    """

    def __init__(
        self,
        context: Context,
        models: KnownModels,
        lifetimes: Lifetimes,
        promotions: Promotions,
    ) -> None:
        self._context = context
        self._models = models
        self._lifetimes = lifetimes
        self._promotions = promotions
        self._holders: dict[str, set[str]] = {}
        self._ended: dict[str, int] = {}

    def is_ending(self, part: str) -> bool:
        """Tell whether a model, or a part of one, is being freed."""
        return part in self._holders

    def has_begun(self, name: str) -> bool:
        """Tell whether a model is being freed."""
        return any(self.is_ending(model.pushes.spec.name) for model in self._models.parts_of(name))

    def concerns(self, event: MemberEvent) -> bool:
        """Tell whether an event is about a model that is being freed, or has ended: it comes too late."""
        if not (self._holders or self._ended) or isinstance(event, (ModelFreed, MemberJoined)):
            return False
        spec = getattr(event, "spec", None)
        about = getattr(event, "model", "") if spec is None else spec.name
        return about in self._holders or self._is_of_ended(event)

    def _is_of_ended(self, event: MemberEvent) -> bool:
        """Tell whether a server or a replica says that it holds a model that has ended."""
        match event:
            case ServerHolds():
                return event.version.epoch <= self._last_epoch_of(name_of_whole(event.spec))
            case ReplicaReported() if event.term > 0:
                return event.version.epoch <= self._last_epoch_of(event.model)
        return False

    def late(self, event: MemberEvent) -> Iterator[Instruction]:
        """Take in an event that comes too late: a replica learns of it, unless it is to hold one of that name now."""
        if isinstance(event, ReplicaReported) and event.model not in self._models.held:
            yield self._order(event.replica, event.model, "it has ended meanwhile")

    def _last_epoch_of(self, name: str) -> int:
        """Return an epoch that no model of this name is above which has ended; 0 if none did that is remembered."""
        return self._ended.get(name, 0)

    def _note_end(self, name: str) -> None:
        """Note that whatever was named so far is of a model of this name that has ended."""
        former = self._ended.pop(name, 0)
        served = (model.pushes.server_epoch for model in self._models.parts_of(name))
        self._ended[name] = max(self._context.numbers.last_server_epoch, *served, former)
        for other in [other for other in self._ended if not self._models.parts_of(other)][
            : -self._context.config.limits.models
        ]:
            del self._ended[other]

    def stay_of(self, name: str) -> Stay:
        """Return how long a model stays, for people."""
        life, live = self._lifetimes.of(name), tuple(self._lifetimes.live(name))
        missing, lost = life.awaited - len(life.joined), len(life.present) - len(live)
        if life.ending:
            words = f"is being freed: {life.ending}"
        elif live:
            words = "is trained"
        elif life.is_over or life.job is None:
            words = "stays from a former job"
        elif lost:
            words = f"waits for {lost} workers that were lost"
        elif life.job in self._lifetimes.held:
            words = "waits for its job, which goes on"
        else:
            words = f"waits for {missing} workers of its job"
        return Stay(life.job or "", live, self.is_kept(name), words)

    # Why a model ends

    def removal_refusal(self, name: str) -> tuple[RefuseReason, str] | None:
        """Say why nobody may remove a model now; None if somebody may."""
        if not self._models.parts_of(name) and name not in self._models.reductions:
            held = {name_of_whole(model.pushes.spec) for model in self._models.held.values()}
            known = sorted(held | self._models.reductions.keys())
            allowed = ", ".join(known) or "none, as there is none"
            return RefuseReason.OUT_OF_RANGE, f"there is no model {name!r}; allowed: {allowed}"
        live, job = self._lifetimes.live(name), self._lifetimes.of(name).job
        if live or job in self._lifetimes.held:
            who = f"{', '.join(live)} train it" if live else f"job {job!r} goes on"
            return RefuseReason.NOT_YET, f"model {name!r} is in use: {who}; end the job first"
        return None

    def look(self, name: str, now_ns: int) -> Iterator[Instruction]:
        """End a model whose job is over, unless it is kept."""
        if not self._lifetimes.is_over(name, now_ns):
            return
        life = self._lifetimes.of(name)
        if self.is_kept(name):
            life.is_over = True
        else:
            yield from self.end(name, "its job is over")

    def is_kept(self, name: str) -> bool:
        """Tell whether a model stays when its job is over: as the job said, or as its server has checkpoints."""
        members = self._context.members
        servers = [members.get(model.pushes.server) for model in self._models.parts_of(name)]
        return self._lifetimes.of(name).is_kept or any(server is not None and server.keeps for server in servers)

    # How it ends

    def end(self, name: str, reason: str) -> Iterator[Instruction]:
        """End a model: at once if nobody holds anything of it, else once everybody has freed it."""
        self._models.reductions.pop(name, None)
        self._note_end(name)
        self._lifetimes.of(name).ending = reason
        for model in self._models.parts_of(name):
            part = model.pushes.spec.name
            if part not in self._holders:
                self._holders[part] = set(self._holders_of(model))
                self._promotions.forget(part)
                yield from self._stop(model, reason)
            for member in sorted(self._holders[part]):
                yield self._order(member, part, reason)
            for record in self._context.here(Role.AGGREGATOR):
                yield self._order(record.member.name, part, reason)
        self._drop_if_free(name)

    def _order(self, member: str, part: str, reason: str) -> FreeModel:
        model = self._models.held.get(part)
        epoch = self._last_epoch_of(part if model is None else name_of_whole(model.pushes.spec))
        return FreeModel(to=member, model=part, epoch=epoch, reason=reason)

    def _holders_of(self, model: ModelState) -> Iterator[str]:
        for name in (model.pushes.server, model.replication.name):
            record = self._context.members.get(name)
            if record is not None and record.state is not MemberState.LEFT:
                yield name

    def _stop(self, model: ModelState, reason: str) -> Iterator[Instruction]:
        """Let nothing go on of a model; nobody follows it any more."""
        yield from model.pushes.begin_anew(reason)
        yield from model.gets.begin_anew(reason)
        yield from model.replication.end(reason)

    def freed(self, event: ModelFreed) -> None:
        """Note that a server or a replica holds nothing of a model any more; of one before it that is known already."""
        if event.model in self._holders and event.epoch >= self._last_epoch_of(self._whole_of(event.model)):
            self._let_go(event.member, event.model)

    def _let_go(self, member: str, part: str) -> None:
        name = self._whole_of(part)
        self._holders[part].discard(member)
        self._drop_if_free(name)

    def gone(self, member: str) -> None:
        """Wait for a member no more that counts as left."""
        for part, holders in list(self._holders.items()):
            if part in self._holders and member in holders:
                self._let_go(member, part)

    def replica_back(self, replica: str) -> Iterator[Instruction]:
        """Tell a replica once more that came back."""
        for part, holders in self._holders.items():
            if replica in holders:
                yield self._order(replica, part, self._ending_of(part))

    def server_back(self, event: MemberJoined) -> Iterator[Instruction]:
        """Tell a server that brings models that are being freed, or have ended; it has freed what it does not bring."""
        server, held = event.member.name, {spec.name for spec in event.held}
        for part, holders in list(self._holders.items()):
            if part not in held and server in holders:
                self._let_go(server, part)
        for spec, epoch in zip(event.held, event.server_epochs, strict=True):
            if spec.name in self._holders:
                self._holders[spec.name].add(server)
                self._note_end(name_of_whole(spec))
                yield self._order(server, spec.name, self._ending_of(spec.name))
            elif epoch <= self._last_epoch_of(name_of_whole(spec)):
                yield FreeModel(to=server, model=spec.name, epoch=epoch, reason="it has ended meanwhile")

    def living(self, event: MemberJoined) -> MemberJoined:
        """Return what a server says that joins without the models that are being freed, or have ended."""
        both = [
            (spec, epoch)
            for spec, epoch in zip(event.held, event.server_epochs, strict=True)
            if spec.name not in self._holders and epoch > self._last_epoch_of(name_of_whole(spec))
        ]
        return replace(event, held=tuple(spec for spec, _ in both), server_epochs=tuple(epoch for _, epoch in both))

    def _whole_of(self, part: str) -> str:
        return name_of_whole(self._models.held[part].pushes.spec)

    def _ending_of(self, part: str) -> str:
        return self._lifetimes.of(self._whole_of(part)).ending

    def _drop_if_free(self, name: str) -> None:
        """Forget a model that nobody holds anything of."""
        parts = [model.pushes.spec.name for model in self._models.parts_of(name)]
        if any(self._holders.get(part) for part in parts):
            return
        self._note_end(name)
        for part in parts:
            self._holders.pop(part, None)
            self._promotions.forget(part)
            del self._models.held[part]
        self._models.wholes.pop(name, None)
        self._lifetimes.forget(name)
