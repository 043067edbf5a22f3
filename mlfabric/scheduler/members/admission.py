"""Who is not let in, and why: names, options and models that do not fit what is known. Changes nothing. Pure."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.model.specs import Member, ModelSpec, Role
from mlfabric.protocol import Following, MemberJoined, RefuseReason
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.followers.promotions import Promotions
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.members.join_errors import difference, malformed
from mlfabric.scheduler.members.lifetimes import Lifetimes, apart
from mlfabric.scheduler.members.model_placement import Placing
from mlfabric.scheduler.records import MemberRecord, MemberState

__all__ = ["Admission"]


class Admission:
    """Decides whether who wants to join can.

    Args:
        models: all that there are.
        placing: tells whether there are servers for a new model.
        promotions: tells who takes whose place.
        lifetimes: knows which job trains which model.
    """

    def __init__(
        self,
        context: Context,
        models: KnownModels,
        placing: Placing,
        promotions: Promotions,
        lifetimes: Lifetimes,
    ) -> None:
        self._context = context
        self._models = models
        self._placing = placing
        self._promotions = promotions
        self._lifetimes = lifetimes

    def refusal(self, event: MemberJoined, now_ns: int) -> tuple[RefuseReason, str] | None:
        """Say why a member cannot join now; None if it can."""
        member, spec = event.member, event.spec
        if (flaw := malformed(member, spec)) is not None:
            return flaw
        known = self._context.members.get(member.name)
        is_other = known is not None and known.member.incarnation != member.incarnation
        if known is not None and is_other and known.state is MemberState.HERE and not self._promotions.is_newer(event):
            where = f"a live {known.member.role.value} on host {known.member.host}"
            advice = "choose another name or stop that one"
            if member.role is Role.WORKER and spec is not None and known.job != event.job.job:
                advice = f"{advice}; {apart(event.job)}"
            return RefuseReason.NAME_TAKEN, f"{member.name!r} is taken by {where}; {advice}"
        if (excess := self._excess(event)) is not None:
            return excess
        if known is not None and (changed := _changed(known, member, spec)) is not None:
            return changed
        if member.role is Role.SERVER and (superseded := self._promotions.refusal(event)) is not None:
            return superseded
        if member.role is Role.SERVER and (too_big := self._placing.refusal_of(event)) is not None:
            return too_big
        for held in event.held:
            if (refusal := self.held_refusal(member.name, held)) is not None:
                return refusal
        if event.follows is not None:
            return self._replica_refusal(event.follows, member)
        return self._model_refusal(event, spec, now_ns) if spec is not None else None

    def is_in_the_way(self, event: MemberJoined, name: str) -> bool:
        """Tell whether what a former job has left must end before a worker that is not refused can join."""
        return self._is_deserted(event, name) or self._lifetimes.begins_anew(event, name)

    def _is_deserted(self, event: MemberJoined, name: str) -> bool:
        """Tell whether what a worker wants to train is reduced by nobody any more: nothing of it is left."""
        lives = self._lifetimes
        return name in self._models.reductions and not (lives.is_same_job(event, name) or lives.live(name))

    def _model_refusal(self, event: MemberJoined, spec: ModelSpec, now_ns: int) -> tuple[RefuseReason, str] | None:
        """Say why a worker cannot train this model now; None if it can."""
        if self._is_deserted(event, spec.name):
            return None
        version = max((model.pushes.version.number for model in self._models.parts_of(spec.name)), default=0)
        if (foreign := self._lifetimes.refusal(event, spec.name, version, now_ns)) is not None:
            return foreign
        if self._lifetimes.begins_anew(event, spec.name):
            return None
        model = self._models.held.get(spec.name)
        if (rounds := self._models.reductions.get(spec.name)) is not None:
            return difference(spec, rounds.spec)
        if model is None:
            if not spec.has_server:
                return None
            if spec.shards > 1 or spec.name in self._models.wholes:
                return self._refusal_of_cut(spec)
            placed = self._placing.server_for(spec)
            return placed if isinstance(placed, tuple) else None
        return difference(spec, model.pushes.spec)

    def _refusal_of_cut(self, spec: ModelSpec) -> tuple[RefuseReason, str] | None:
        """Say how a worker's idea of a model that is cut differs from what is known, or what is to be waited for."""
        whole = self._models.wholes.get(spec.name)
        if whole is not None and whole.count != spec.shards:
            detail = f"model {spec.name!r}: servers: {spec.shards} here, {whole.count} at the job's first worker"
            return RefuseReason.OPTIONS_DIFFER, f"{detail}; give the same at all workers"
        for shard, part in sorted(whole.parts.items()) if whole is not None else ():
            given = replace(spec.of_shard(shard), server="")
            if (found := difference(given, part.pushes.spec)) is not None:
                return found
        placed = self._placing.servers_for(spec, whole)
        return placed if isinstance(placed, tuple) else None

    def _replica_refusal(self, follows: Following, member: Member) -> tuple[RefuseReason, str] | None:
        """Say why a replica cannot follow a server now, or return None; one that is silent may come back.

        One that has a model may follow a server that is not here: it may have to take its place.
        """
        record = self._context.members.get(follows.server)
        if not follows.is_seeded and (record is None or record.state is not MemberState.HERE):
            return RefuseReason.NOT_YET, f"waiting for server {follows.server!r} to join the scheduler"
        if record is not None and record.member.role is not Role.SERVER:
            detail = f"{follows.server!r} is a {record.member.role.value}"
            return RefuseReason.OUT_OF_RANGE, f"{detail}; a replica follows a server"
        for model in self._models.held.values():
            if model.pushes.server == follows.server and model.pushes.spec.shard is not None:
                detail = f"server {follows.server!r} holds {model.pushes.spec.name!r}, a part of a model"
                return RefuseReason.OUT_OF_RANGE, f"{detail}; replicas follow servers of whole models"
        for other in self._context.here(Role.REPLICA):
            same = other.follows is not None and other.follows.server == follows.server
            if same and other.member.name != member.name:
                detail = f"server {follows.server!r} has a replica: {other.member.name!r}"
                return RefuseReason.NAME_TAKEN, f"{detail}; stop that one, or follow another server"
        return None

    def _excess(self, event: MemberJoined) -> tuple[RefuseReason, str] | None:
        """Say what there would be too much of; None if nothing."""
        limits, member, spec = self._context.config.limits, event.member, event.spec
        known = self._context.members.get(member.name)
        if known is None or known.state is MemberState.LEFT:
            count = sum(record.state is not MemberState.LEFT for record in self._context.members.values())
            if count >= limits.members:
                return RefuseReason.TOO_MANY, f"{count} members are here or silent; allowed: {limits.members}"
            most = limits.members + limits.departed
            if known is None and len(self._context.members) > most:
                given = f"{len(self._context.members)} members are remembered"
                return RefuseReason.TOO_MANY, f"{given}; allowed: {most}, so come under a name of before"
        hosts = self._context.network.hosts
        if member.host not in hosts and len(hosts) >= 2 * limits.members:
            given = f"{len(hosts)} hosts are known and {member.host!r} is not"
            advice = "a scheduler that begins anew forgets those that are gone"
            return RefuseReason.TOO_MANY, f"{given}; allowed: {2 * limits.members}; {advice}"
        specs = [*event.held, *(() if spec is None else (spec,))]
        for one in specs:
            if one.layout.size_bytes > limits.model_bytes:
                given = f"model {one.name!r} of {one.layout.size_bytes} bytes"
                return RefuseReason.OUT_OF_RANGE, f"{given}; allowed: up to {limits.model_bytes}"
        known_names = self._models.held.keys() | self._models.reductions.keys() | self._models.wholes.keys()
        new = sum(1 if one.shard is not None else one.shards for one in specs if one.name not in known_names)
        count = len(self._models.held) + len(self._models.reductions)
        if new and count + new > limits.models:
            return RefuseReason.TOO_MANY, f"{count} models are known and {new} new; allowed: {limits.models}"
        return None

    def held_refusal(self, server: str, held: ModelSpec) -> tuple[RefuseReason, str] | None:
        """Say why a server cannot hold a model that it says it holds; None if it can."""
        if not held.has_server:
            detail = f"model {held.name!r} held by a server with method {held.method.value}"
            return RefuseReason.OUT_OF_RANGE, f"{detail}, which has none; allowed: any other method"
        if held.name in self._models.reductions:
            return RefuseReason.NAME_TAKEN, f"model {held.name!r} is reduced among workers; give it another name"
        model = self._models.held.get(held.name)
        if model is None:
            return None
        if model.pushes.server != server and self._context.is_here(model.pushes.server):
            detail = f"model {held.name!r} is held by server {model.pushes.server!r}"
            return RefuseReason.NAME_TAKEN, f"{detail}; give the model another name"
        return difference(held, model.pushes.spec)


def _changed(known: MemberRecord, member: Member, spec: ModelSpec | None) -> tuple[RefuseReason, str] | None:
    """Say how a process that comes back is not who it was; None if it is, or if it is another process."""
    if known.member.incarnation != member.incarnation:
        return None
    if known.member.role is not member.role:
        detail = f"{member.name!r} joined as {known.member.role.value} and comes back as {member.role.value}"
        return RefuseReason.NAME_TAKEN, f"{detail}; a process keeps its role"
    if spec is not None and known.model and known.model != spec.name:
        detail = f"{member.name!r} joined with model {known.model!r} and comes back with {spec.name!r}"
        return RefuseReason.OPTIONS_DIFFER, f"{detail}; a worker keeps its model"
    return None
