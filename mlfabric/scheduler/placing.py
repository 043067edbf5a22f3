"""Which servers hold a new model, or the parts of one that is cut. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.protocol import RefuseReason
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model import ModelState
from mlfabric.scheduler.pushes import Pushes
from mlfabric.scheduler.sharded import ShardedModel
from mlfabric.specs import ModelSpec, Role

__all__ = ["Placing"]


class Placing:
    """Chooses servers: those asked for, else those with the fewest models."""

    def __init__(self, context: Context, models: Mapping[str, ModelState]) -> None:
        self._context = context
        self._models = models

    def server_for(self, spec: ModelSpec) -> str | None:
        """Return the server that is to hold a model that is not cut, None if there is none yet."""
        found = self._by_load()
        if spec.server:
            return spec.server if spec.server in found else None
        return found[0] if found else None

    def servers_for(self, spec: ModelSpec, whole: ShardedModel | None) -> dict[int, str] | tuple[RefuseReason, str]:
        """Return the server for every part of a model that has none; or say what is to be waited for.

        Args:
            spec: of the whole model.
            whole: what is known of it; None if nothing is.
        """
        known = {} if whole is None else {i: part.pushes for i, part in whole.parts.items()}
        missing = [i for i in range(spec.shards) if i not in known]
        here = self._by_load()
        if spec.servers:
            away = sorted({spec.servers[i] for i in missing} - set(here))
            if away:
                return RefuseReason.NOT_YET, f"waiting for server {', '.join(map(repr, away))} to join the scheduler"
            return {i: spec.servers[i] for i in missing}
        if missing and any(_has_begun(pushes) for pushes in known.values()):
            parts = ", ".join(map(str, missing))
            return RefuseReason.NOT_YET, f"waiting for the servers that hold part {parts} of model {spec.name!r}"
        free = [name for name in here if name not in {pushes.server for pushes in known.values()}]
        if len(free) < len(missing):
            return RefuseReason.NOT_YET, f"waiting for {spec.shards} servers; {len(here)} have joined"
        return dict(zip(missing, free, strict=False))

    def _by_load(self) -> list[str]:
        servers = [m.member.name for m in self._context.here(Role.SERVER)]
        held = [model.pushes.server for model in self._models.values()]
        return sorted(servers, key=lambda name: (held.count(name), name))


def _has_begun(pushes: Pushes) -> bool:
    """Tell whether there may be more of a model than initial weights; what a part without any has come too late."""
    return pushes.awaited or bool(pushes.version.number or (pushes.initialised and pushes.planned))
