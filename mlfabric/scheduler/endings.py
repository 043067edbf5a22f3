"""How a model ends: whoever holds anything of it is told to free it, and says when it has. Pure.

Until then the model's name is not given to another one, so nothing that is said of it can be taken for another's. Who
counts as left has nothing that would have to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from mlfabric.protocol import FreeModel, Instruction, MemberEvent, MemberJoined, ModelFreed, RefuseReason
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.known_epochs import KnownEpochs
from mlfabric.scheduler.lifetimes import Lifetimes
from mlfabric.scheduler.model import ModelState
from mlfabric.scheduler.parts import name_of_whole
from mlfabric.scheduler.promotions import Promotions
from mlfabric.scheduler.records import MemberState
from mlfabric.scheduler.rounds import Rounds
from mlfabric.scheduler.sharded import ShardedModel
from mlfabric.specs import Role

__all__ = ["Endings", "Stay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """How long a model stays: whose it is, who trains it now, whether it outlives its job, what it waits for."""

    job: str
    workers: tuple[str, ...]
    is_kept: bool
    words: str


class Endings:
    """Ends models, and knows who still holds something of those that end.

    Args:
        models, reductions, wholes: all that there are, by name; what has ended is taken out.
        models_of: gives the parts of a model by its name, or the model itself if it is not cut.
    """

    def __init__(
        self,
        context: Context,
        models: dict[str, ModelState],
        reductions: dict[str, Rounds],
        wholes: dict[str, ShardedModel],
        models_of: Callable[[str], list[ModelState]],
        lifetimes: Lifetimes,
        epochs: KnownEpochs,
        promotions: Promotions,
    ) -> None:
        self._context = context
        self._models = models
        self._reductions = reductions
        self._wholes = wholes
        self._models_of = models_of
        self._lifetimes = lifetimes
        self._epochs = epochs
        self._promotions = promotions
        self._holders: dict[str, set[str]] = {}

    def is_ending(self, part: str) -> bool:
        """Tell whether a model, or a part of one, is being freed."""
        return part in self._holders

    def has_begun(self, name: str) -> bool:
        """Tell whether a model is being freed."""
        return any(self.is_ending(model.pushes.spec.name) for model in self._models_of(name))

    def concerns(self, event: MemberEvent) -> bool:
        """Tell whether an event is about a model that is being freed: it comes too late."""
        spec = getattr(event, "spec", None)
        about = getattr(event, "model", "") if spec is None else spec.name
        return about in self._holders and not isinstance(event, (ModelFreed, MemberJoined))

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
        return Stay(job=life.job or "", workers=live, is_kept=self.is_kept(name), words=words)

    # Why a model ends

    def removal_refusal(self, name: str) -> tuple[RefuseReason, str] | None:
        """Say why nobody may remove a model now; None if somebody may."""
        if not self._models_of(name) and name not in self._reductions:
            known = sorted({name_of_whole(model.pushes.spec) for model in self._models.values()} | {*self._reductions})
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
        servers = [members.get(model.pushes.server) for model in self._models_of(name)]
        return self._lifetimes.of(name).is_kept or any(server is not None and server.keeps for server in servers)

    # How it ends

    def end(self, name: str, reason: str) -> Iterator[Instruction]:
        """End a model: at once if nobody holds anything of it, else once everybody has freed it."""
        self._reductions.pop(name, None)
        self._epochs.ends(name)
        self._lifetimes.of(name).ending = reason
        for model in self._models_of(name):
            part = model.pushes.spec.name
            if part not in self._holders:
                self._holders[part] = set(self._holders_of(model))
                yield from self._stop(model, reason)
            for member in sorted(self._holders[part]):
                yield FreeModel(to=member, model=part, reason=reason)
            for record in self._context.here(Role.AGGREGATOR):
                yield FreeModel(to=record.member.name, model=part, reason=reason)
        self._drop_if_free(name)

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
        """Note that a server or a replica holds nothing of a model any more."""
        if event.model in self._holders:
            self._holders[event.model].discard(event.member)
            self._drop_if_free(name_of_whole(self._models[event.model].pushes.spec))

    def gone(self, member: str) -> None:
        """Wait for a member no more that counts as left."""
        for part, holders in list(self._holders.items()):
            if part in self._holders and member in holders:
                self.freed(ModelFreed(member=member, model=part))

    def back(self, member: str, held: Collection[str] | None = None) -> Iterator[Instruction]:
        """Tell a member once more that came back.

        Args:
            held: what it brings; None if it has not said so.
        """
        for part, holders in list(self._holders.items()):
            if held is not None and part not in held:
                self.freed(ModelFreed(member=member, model=part))
            elif member in holders or (held is not None and part in held):
                holders.add(member)
                yield FreeModel(to=member, model=part, reason=self._ending_of(part))

    def _ending_of(self, part: str) -> str:
        return self._lifetimes.of(name_of_whole(self._models[part].pushes.spec)).ending

    def _drop_if_free(self, name: str) -> None:
        """Forget a model that nobody holds anything of."""
        parts = [model.pushes.spec.name for model in self._models_of(name)]
        if any(self._holders.get(part) for part in parts):
            return
        self._epochs.ends(name)
        for part in parts:
            self._holders.pop(part, None)
            self._promotions.forget(part)
            del self._models[part]
        self._wholes.pop(name, None)
        self._lifetimes.forget(name)
