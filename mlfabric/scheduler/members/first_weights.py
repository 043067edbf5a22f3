"""Which worker brings the initial weights of a model. Pure.

One is asked at a time, another one if it is gone. What it brings may be lost with a server while it takes that for
installed already; so workers are asked again as long as weights are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlfabric.model.specs import Role
from mlfabric.protocol import Initialise, UpdateKind
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.records import MemberRecord

__all__ = ["InitialWeights"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which worker was asked last, and when it is time to ask again."""

    worker: str
    again_ns: int


class InitialWeights:
    """Who was asked for initial weights."""

    def __init__(self, context: Context, models: KnownModels) -> None:
        self._context = context
        self._models = models
        self._asked: dict[str, _Asked] = {}

    def claim(self, model: str, record: MemberRecord, now_ns: int) -> bool:
        """Tell whether this worker is to bring initial weights, and note it."""
        asked = self._asked.get(model)
        current = None if asked is None else self._context.members.get(asked.worker)
        is_taken = current is not None and current is not record and self._context.is_here(current.member.name)
        if is_taken or not record.holds_initial or not self._are_wanted(model):
            return False
        self._ask(model, record.member.name, now_ns)
        return True

    def seek(self, model: str, reason: str, now_ns: int) -> Iterator[Initialise]:
        """Ask a worker for initial weights, if they are needed and one has them."""
        self.have_come(model)
        for record in self._context.here(Role.WORKER):
            if record.model == model and self.claim(model, record, now_ns):
                yield Initialise(to=record.member.name, model=model, reason=reason)
                return

    def have_come(self, model: str) -> None:
        """Ask for weights of a model no more, if no part lacks any."""
        if not self._are_wanted(model):
            self._asked.pop(model, None)

    def worker_gone(self, worker: str, model: str, reason: str, now_ns: int) -> Iterator[Initialise]:
        """Ask another worker, if this one was to bring them."""
        asked = self._asked.get(model)
        if asked is not None and asked.worker == worker:
            del self._asked[model]
            yield from self.seek(model, reason, now_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return when to ask again, or None."""
        return min([asked.again_ns for asked in self._asked.values()], default=None)

    def tick(self, now_ns: int) -> Iterator[Initialise]:
        """Ask again for weights that are still wanted: the same worker if some are on their way, else the next."""
        for model, asked in list(self._asked.items()):
            if asked.again_ns > now_ns:
                continue
            if not self._are_wanted(model):
                del self._asked[model]
                continue
            holders = [r.member.name for r in self._context.here(Role.WORKER) if r.model == model and r.holds_initial]
            later = [name for name in holders if name > asked.worker]
            worker = asked.worker if self._are_on_way(model) else min(later or holders, default=asked.worker)
            self._ask(model, worker, now_ns)
            if self._context.is_here(worker):
                yield Initialise(to=worker, model=model, reason="weights are still wanted")

    def _ask(self, model: str, worker: str, now_ns: int) -> None:
        self._asked[model] = _Asked(worker, now_ns + self._context.config.silence_ns)

    def _are_wanted(self, model: str) -> bool:
        whole = self._models.whole(model)
        return whole is not None and whole.wants_weights

    def _are_on_way(self, model: str) -> bool:
        tables = [part.pushes for part in self._models.parts_of(model)]
        waiting = [waiting.request for pushes in tables for waiting in pushes.waiting.values()]
        planned = [planned.request for pushes in tables for planned in pushes.planned.values()]
        return any(request.kind is UpdateKind.INITIAL for request in (*waiting, *planned))
