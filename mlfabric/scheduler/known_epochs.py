"""Server epochs that workers know of from before this scheduler's time. Pure.

A scheduler that begins anew and gives a model to a server that has nothing of it cannot know which versions there were.
A version stands for one model for ever, and no worker takes one of an earlier server epoch than it knows of. So workers
say which is the newest version that they know of when they register, and a model begins above all of these. If one
comes that knows of more, the server goes on under a later epoch still, with the weights that it has: nothing is lost
for it, but what was computed from earlier versions is dropped, as nobody can tell those of two models apart.

A server that brought its model may be one whose place was taken (design, section 6, "Promotion"). If workers know of
more than it does, who took its place, or a replica of that one, may be back as long as a silent member.

What a worker says may be wrong: it is bounded, and so is how often a model goes on under a later epoch for it. Beyond
that workers are refused that know of more than there is. What this scheduler has named is believed whatever the bound;
the bound of the next one, to which it may have to be told, is above it, as bounds grow with the time of day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mlfabric.protocol import HostModel, MemberJoined, ModelVersion, RefuseReason, ServerHolds, last_cleared
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model import ModelState
from mlfabric.scheduler.parts import name_of_whole
from mlfabric.scheduler.sharded import ShardedModel

__all__ = ["MOST_RENEWALS", "KnownEpochs", "most_epoch"]

MOST_RENEWALS = 16
_NO_VERSION = ModelVersion(0, 0)


@dataclass(slots=True)
class _Known:
    """What is known of one model.

    Args:
        said: the newest version that workers know of from before this scheduler's time.
        asked: the greatest server epoch of which a worker has asked for a version.
        named: the last one that this scheduler named: the model is to be served at least under it; 0 if it named none.
        renewed: the last one that it named for a server that had the model; 0 if it named none so.
        renewals: how often workers had it name one so.
        brought: the greatest one that a server that had the model came with.
        cleared: the one from which on no version of before counts; 0 if there is none.
        ended: the last one of the model of this name that ended last; 0 if none did.
        due_ns: when a server that brought the model is to be named one.
    """

    said: ModelVersion = _NO_VERSION
    asked: int = 0
    named: int = 0
    renewed: int = 0
    renewals: int = 0
    brought: int = 0
    cleared: int = 0
    ended: int = 0
    due_ns: int | None = None

    @property
    def newest_epoch(self) -> int:
        """The greatest epoch that workers know of, that was named, or that a server came with."""
        return max(self.said.epoch, self.asked, self.named, self.brought)


class KnownEpochs:
    """What workers know of, and the epochs that follow from it.

    Args:
        models_of: gives the parts of a model by its name, or the model itself if it is not cut.
        wholes: the models that are cut, by name.
    """

    def __init__(
        self, context: Context, models_of: Callable[[str], list[ModelState]], wholes: Mapping[str, ShardedModel]
    ) -> None:
        self._context = context
        self._models_of = models_of
        self._wholes = wholes
        self._known: dict[str, _Known] = {}

    # What workers say

    def refusal(self, event: MemberJoined) -> tuple[RefuseReason, str] | None:
        """Say why a worker that knows of so great an epoch cannot join; None if it can."""
        given = f"{event.member.name!r} knows of server epoch {event.known.epoch}"
        name = "" if event.spec is None else event.spec.name
        known = self._known.get(name, _Known())
        present = self._present(name, known)
        if (excess := self._excess(event.known.epoch, present)) is not None:
            return RefuseReason.OUT_OF_RANGE, f"{given}; {excess}"
        if not self._is_from_before(event) or not self._is_more(event.known, present, known):
            return None
        return _worn_out(name, known, given)

    def refusal_of_get(self, model: str, server_epoch: int) -> tuple[RefuseReason, str] | None:
        """Say why a worker cannot wait for a version of so great an epoch; None if it can."""
        known = self._known.get(model, _Known())
        present = self._present(model, known)
        given = f"GetRequested: server epoch {server_epoch}"
        if (excess := self._excess(server_epoch, present)) is not None:
            return RefuseReason.OUT_OF_RANGE, f"{given}; {excess}"
        if server_epoch <= present.epoch or any(part.pushes.awaited for part in self._models_of(model)):
            return None
        return _worn_out(model, known, given)

    def _excess(self, server_epoch: int, present: ModelVersion) -> str | None:
        """Say up to which epoch workers are believed, unless this one is not above that; what was named is not."""
        most = max(most_epoch(self._context.config.epoch), present.epoch)
        return f"allowed: up to {most}" if server_epoch > most else None

    def _is_from_before(self, event: MemberJoined) -> bool:
        """Tell whether a worker was not admitted by this scheduler yet: what it knows of is from before its time."""
        return event.member.seen != self._context.config.term

    def joins(self, event: MemberJoined, model: str) -> None:
        """Note what a worker knows of that joins."""
        if self._is_from_before(event):
            known = self._known.setdefault(model, _Known())
            known.said = max(known.said, event.known)

    def waits(self, event: MemberJoined) -> None:
        """Note what a worker knows of that cannot join yet: the model may begin before it comes again.

        Of models that there are not, those count that were asked for last, and no more than are allowed.
        """
        if event.spec is None:
            return
        name = event.spec.name
        self._known[name] = self._known.pop(name, _Known())
        self.joins(event, name)
        self._forget_bare()

    def ends(self, model: str) -> None:
        """Note that a model has ended: one of its name begins under an epoch above all of it."""
        known = self._known.pop(model, _Known())
        newest = max(known.newest_epoch, known.ended, self._present(model, known).epoch)
        self._known[model] = _Known(said=ModelVersion(newest, 0), ended=newest)
        self._forget_bare()

    def ended(self, model: str) -> int:
        """Return the last epoch of the model of this name that ended last; 0 if none did that is remembered."""
        known = self._known.get(model)
        return 0 if known is None else known.ended

    def _forget_bare(self) -> None:
        """Forget the models that there are not, but those that were asked for, or ended, last."""
        bare = [other for other in self._known if not self._models_of(other)]
        for other in bare[: -self._context.config.limits.models]:
            del self._known[other]

    def asks(self, model: str, server_epoch: int, now_ns: int) -> Iterator[HostModel]:
        """Note that a worker waits for a version of an epoch, which it may have come to know of only lately."""
        known = self._known.setdefault(model, _Known())
        if server_epoch > known.asked:
            known.asked = server_epoch
            yield from self.look(model, now_ns)

    # What follows

    def named(self, model: str) -> int:
        """Return the last epoch that this scheduler named: a model is to be served under it at least; 0 if none."""
        known = self._known.get(model)
        return 0 if known is None else known.named

    def begin(self, model: str, least: int) -> int:
        """Name the epoch under which a server begins a model of which it has nothing.

        Args:
            model: its name, not that of a part.
            least: the epoch is not below this.
        """
        known = self._known.setdefault(model, _Known())
        known.named = max(least, known.said.epoch + 1, known.named)
        known.due_ns = None
        return known.named

    def later(self, model: str, epoch: int) -> int:
        """Return an epoch that follows one, and those under which a process of the server that is gone went on."""
        known = self._known.get(model)
        return 1 + (epoch if known is None else max(epoch, known.renewed, known.brought))

    def brings(self, model: str, epoch: int) -> None:
        """Note with which epoch a server came that has a model: it may make versions, and die before it tells of it."""
        known = self._known.setdefault(model, _Known())
        known.brought = max(known.brought, epoch)

    def brought(self, model: str) -> int:
        """Return the greatest epoch that a server came with that has a model; 0 if none did."""
        known = self._known.get(model)
        return 0 if known is None else known.brought

    def above(self, model: str) -> int:
        """Return an epoch that no worker of a model that is not cut knows of, nor was named."""
        return 1 + self._known.get(model, _Known()).newest_epoch

    def succeeds(self, model: str, held: int, epoch: int) -> None:
        """Note the epoch that a replica was named which takes its primary's place, and that of what it has.

        If more is known of, the primary went on under that one, or it was of another model, and the replica does not
        know: versions of before count for it no more.
        """
        known = self._known.get(model, _Known())
        if known.newest_epoch > held:
            known.cleared = epoch

    def _present(self, name: str, known: _Known) -> ModelVersion:
        """Return the version at which a model is, under the epoch under which it is served or will be."""
        versions = (model.pushes.version for model in self._models_of(name))
        return max(ModelVersion(known.named, 0), *versions, _NO_VERSION)

    def _is_more(self, said: ModelVersion, present: ModelVersion, known: _Known) -> bool:
        """Tell whether who knows of a version from before knows of more than there is.

        A model that this scheduler has named an epoch has no version from before of that one or a later one.
        """
        return said.epoch >= known.named if known.named else said > present

    def look(self, model: str, now_ns: int) -> Iterator[HostModel]:
        """Have the server of a model go on under a later epoch if workers know of more than there is."""
        known, parts = self._known.get(model), self._models_of(model)
        if known is None or not parts:
            return
        if any(part.pushes.awaited for part in parts):
            known.due_ns = None
            return
        present = self._present(model, known)
        if known.asked > present.epoch:
            known.said = max(known.said, ModelVersion(known.asked, 0))
        if not self._is_more(known.said, present, known):
            known.due_ns = None
        elif known.named:
            yield from self._renew(model, known, parts, present)
        elif known.due_ns is None:
            known.due_ns = now_ns + self._context.config.silence_ns
        elif known.due_ns <= now_ns:
            yield from self._renew(model, known, parts, present)

    def _renew(self, name: str, known: _Known, parts: list[ModelState], present: ModelVersion) -> Iterator[HostModel]:
        known.due_ns = None
        if known.renewals >= MOST_RENEWALS:
            return
        known.renewals += 1
        known.named = known.renewed = 1 + max(known.said.epoch, present.epoch)
        if (whole := self._wholes.get(name)) is not None:
            whole.begin_under(known.named)
            return
        for model in parts:
            yield self._order(model, known)

    def _order(self, model: ModelState, known: _Known) -> HostModel:
        return HostModel(
            to=model.pushes.server,
            spec=model.pushes.spec,
            reason=f"workers know of version {tuple(known.said)}",
            epoch=known.named,
        )

    def server_holds(self, holds: ServerHolds, model: ModelState, now_ns: int) -> Iterator[HostModel]:
        """Look again after the server of a model, or a part of one, has said what it holds; repeat what it missed.

        It may have come as far, or further, by itself: from a checkpoint of before, or in another one's place.
        """
        known = self._known.get(holds.spec.name)
        if known is not None and 0 < known.cleared <= holds.version.epoch:
            known.named = max(known.named, known.cleared)
        if holds.spec.shard is None and known is not None and _has_missed(holds, known.named):
            if holds.version.epoch >= known.named:
                known.named = known.renewed = holds.version.epoch + 1
            yield self._order(model, known)
        yield from self.look(name_of_whole(holds.spec), now_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return when to look again, or None."""
        return min([known.due_ns for known in self._known.values() if known.due_ns is not None], default=None)

    def tick(self, now_ns: int) -> Iterator[HostModel]:
        """Look at the models whose time has come."""
        for name, known in list(self._known.items()):
            if known.due_ns is not None and known.due_ns <= now_ns:
                yield from self.look(name, now_ns)


def most_epoch(scheduler_epoch: int) -> int:
    """Return the greatest server epoch that a scheduler believes a worker of which it knows nothing.

    Epochs of schedulers are times of day in ms. This one grows by one in two seconds: by more than servers begin.
    """
    return (1 << 20) + (scheduler_epoch >> 11)


def _worn_out(model: str, known: _Known, given: str) -> tuple[RefuseReason, str] | None:
    """Say that a model goes on under later epochs for workers no more; None if it still does."""
    if known.renewals < MOST_RENEWALS:
        return None
    detail = f"{model!r} began a later one {known.renewals} times for what workers said"
    return RefuseReason.OUT_OF_RANGE, f"{given}; {detail}; start this one anew"


def _has_missed(holds: ServerHolds, named: int) -> bool:
    """Tell whether versions below an epoch that was named count for a server; none is below the first one."""
    return named > 1 and last_cleared(holds.began) < named
