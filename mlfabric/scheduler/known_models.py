"""All models that there are, by name, for whoever asks for one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlfabric.model.specs import ModelSpec
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.rounds.round_table import Rounds
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.shards.parts import name_of_whole
from mlfabric.scheduler.shards.sharded import ShardedModel

__all__ = ["KnownModels"]

AnyRounds = Rounds | StepRounds


@dataclass(frozen=True, slots=True)
class KnownModels:
    """What servers hold, each part of a model that is cut by itself; the models that are cut; AllReduce jobs."""

    held: dict[str, ModelState] = field(default_factory=dict)
    wholes: dict[str, ShardedModel] = field(default_factory=dict)
    reductions: dict[str, AnyRounds] = field(default_factory=dict)

    def parts_of(self, name: str) -> list[ModelState]:
        """Return the parts of a model of this name, or the model itself if it is not cut; none if it is unknown."""
        if (whole := self.wholes.get(name)) is not None:
            return [part for _, part in sorted(whole.parts.items())]
        return [self.held[name]] if name in self.held else []

    def whole(self, name: str) -> ModelState | ShardedModel | None:
        """Return the model that workers know by this name; None if it is unknown, or reduced among them."""
        return self.wholes.get(name) or self.held.get(name)

    def make(self, context: Context, spec: ModelSpec, server: str) -> ModelState:
        """Enter a model, or a part of one, that nothing has happened to yet."""
        model = self.held[spec.name] = ModelState.of(context, spec, server)
        if spec.shard is not None:
            name = name_of_whole(spec)
            if name not in self.wholes:
                self.wholes[name] = ShardedModel(context, name, spec.shards)
            self.wholes[name].add_part(spec.shard, model)
        return model
