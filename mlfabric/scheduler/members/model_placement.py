"""Which servers hold a new model, or the parts of one that is cut. Pure.

A server is asked to hold what its machine has memory for, beside what it holds already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfabric.model.specs import ModelSpec, Role
from mlfabric.protocol import MemberJoined, RefuseReason
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.shards.sharded import ShardedModel
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["Placing"]

Refusal = tuple[RefuseReason, str]


class Placing:
    """Chooses servers: those asked for, else those with the fewest models."""

    def __init__(self, context: Context, models: Mapping[str, ModelState]) -> None:
        self._context = context
        self._models = models

    def server_for(self, spec: ModelSpec) -> str | Refusal:
        """Return the server that is to hold a model that is not cut; or say what is to be waited for, or too big."""
        here = [name for name in self._by_load() if spec.server in ("", name)]
        if not here:
            wanted = f"server {spec.server!r}" if spec.server else "any server"
            return RefuseReason.NOT_YET, f"waiting for {wanted} to join the scheduler"
        found = [name for name in here if self._has_room(name, spec)]
        return found[0] if found else self._too_big(spec, here)

    def servers_for(self, spec: ModelSpec, whole: ShardedModel | None) -> dict[int, str] | Refusal:
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
            placed = {i: spec.servers[i] for i in missing}
            full = [i for i, name in placed.items() if not self._has_room(name, spec.of_shard(i))]
            return self._too_big(spec.of_shard(full[0]), [placed[full[0]]]) if full else placed
        if missing and any(_has_begun(pushes) for pushes in known.values()):
            parts = ", ".join(map(str, missing))
            advice = f"if these are lost: mlfabric models remove {spec.name}"
            detail = f"waiting for the servers that hold part {parts} of model {spec.name!r}"
            return RefuseReason.NOT_YET, f"{detail}; {advice}"
        free = [name for name in here if name not in {pushes.server for pushes in known.values()}]
        if len(free) < len(missing):
            return RefuseReason.NOT_YET, f"waiting for {spec.shards} servers; {len(here)} have joined"
        if missing:
            largest = max((spec.of_shard(i) for i in missing), key=lambda part: part.layout.size_bytes)
            roomy = [name for name in free if self._has_room(name, largest)]
            if len(roomy) < len(missing):
                return self._too_big(largest, free)
            free = roomy
        return dict(zip(missing, free, strict=False))

    def refusal_of(self, server: MemberJoined) -> Refusal | None:
        """Say why a server that joins cannot hold what it is to be given, since another process of its name held it."""
        brought = {spec.name for spec in server.held}
        due = [m.pushes.spec for m in self._models.values() if m.pushes.server == server.member.name]
        need_bytes = sum(spec.server_bytes for spec in due if spec.name not in brought)
        if need_bytes <= (server.machine_bytes or need_bytes):
            return None
        given = f"server {server.member.name!r} is to hold models that need {_gib(need_bytes)} of memory"
        return RefuseReason.OUT_OF_RANGE, f"{given}; its machine has {_gib(server.machine_bytes)}; take another one"

    def _has_room(self, server: str, spec: ModelSpec) -> bool:
        record = self._context.members[server]
        return not record.machine_bytes or spec.server_bytes <= record.machine_bytes - self._held_bytes(server)

    def _held_bytes(self, server: str) -> int:
        return sum(m.pushes.spec.server_bytes for m in self._models.values() if m.pushes.server == server)

    def _too_big(self, spec: ModelSpec, servers: Sequence[str]) -> Refusal:
        free = {name: self._context.members[name].machine_bytes - self._held_bytes(name) for name in servers}
        roomiest = max(servers, key=lambda name: free[name])
        needs = f"model {spec.name!r} of {_gib(spec.layout.size_bytes)} needs {_gib(spec.server_bytes)} at its server"
        has = f"{roomiest!r} has room for {_gib(max(0, free[roomiest]))}"
        advice = "cut it over more servers (servers=), or start a server on a machine with more memory"
        return RefuseReason.OUT_OF_RANGE, f"{needs}, weights twice, optimizer state and an update; {has}; {advice}"

    def _by_load(self) -> list[str]:
        servers = [m.member.name for m in self._context.here(Role.SERVER)]
        held = [model.pushes.server for model in self._models.values()]
        return sorted(servers, key=lambda name: (held.count(name), name))


def _has_begun(pushes: Pushes) -> bool:
    """Tell whether there may be more of a model than initial weights; what a part without any has come too late."""
    return pushes.awaited or bool(pushes.version.number or (pushes.initialised and pushes.planned))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
