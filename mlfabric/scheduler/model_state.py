"""One model as the scheduler sees it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import DropReason, Instruction
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.followers.replication_state import Replication
from mlfabric.scheduler.gets.get_requests import Gets
from mlfabric.scheduler.samples.dispenser import Dispenser
from mlfabric.scheduler.samples.sample_table import ModelSamples
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["ModelState"]


@dataclass(slots=True)
class ModelState:
    """Its pushes, gets and replica, delays of what was committed, what was dropped why.

    And what became of the samples that updates were computed from.
    """

    pushes: Pushes
    gets: Gets
    replication: Replication
    samples: ModelSamples
    dispenser: Dispenser
    delays: Counter[int] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)

    @property
    def wants_weights(self) -> bool:
        """Whether initial weights are needed."""
        return not (self.pushes.awaited or self.pushes.initialised)

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of everything of a worker's that is not with the server."""
        yield from self.pushes.worker_gone(worker, reason)
        yield from self.gets.worker_gone(worker, reason)

    def forget_worker(self, worker: str) -> None:
        """Forget the outcomes of a worker that will not ask any more."""
        self.pushes.settled.forget_worker(worker)

    @classmethod
    def of(cls, context: Context, spec: ModelSpec, server: str) -> ModelState:
        """Make the state of a model that nothing has happened to yet."""
        pushes = Pushes(context, spec, server)
        pushes.follower = replication = Replication(context, pushes)
        samples = ModelSamples(pushes)
        return cls(pushes, Gets(context, pushes), replication, samples, Dispenser(context, samples))
