"""Who is not let in, and why: names, options and models that do not fit what is known. Changes nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlfabric.protocol import Following, MemberJoined, RefuseReason
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.differing import difference, malformed
from mlfabric.scheduler.model import ModelState
from mlfabric.scheduler.modes import has_server
from mlfabric.scheduler.placing import Placing
from mlfabric.scheduler.records import MemberState
from mlfabric.scheduler.rounds import Rounds
from mlfabric.scheduler.sharded import ShardedModel
from mlfabric.specs import Member, ModelSpec, Role

__all__ = ["Admission"]


class Admission:
    """Decides whether who wants to join can.

    Args:
        models, reductions, wholes: all that there are, by name.
        placing: tells whether there are servers for a new model.
    """

    def __init__(
        self,
        context: Context,
        models: Mapping[str, ModelState],
        reductions: Mapping[str, Rounds],
        wholes: Mapping[str, ShardedModel],
        placing: Placing,
    ) -> None:
        self._context = context
        self._models = models
        self._reductions = reductions
        self._wholes = wholes
        self._placing = placing

    def refusal(self, event: MemberJoined) -> tuple[RefuseReason, str] | None:
        """Say why a member cannot join now; None if it can."""
        member, spec = event.member, event.spec
        if (flaw := malformed(member, spec)) is not None:
            return flaw
        known = self._context.members.get(member.name)
        if known is not None and known.state is MemberState.HERE and known.member.incarnation != member.incarnation:
            where = f"a live {known.member.role.value} on host {known.member.host}"
            return RefuseReason.NAME_TAKEN, f"{member.name!r} is taken by {where}; choose another name or stop that one"
        for held in event.held:
            if (refusal := self._held_elsewhere(member.name, held)) is not None:
                return refusal
        if event.follows is not None:
            return self._replica_refusal(event.follows, member)
        if spec is None:
            return None
        model = self._models.get(spec.name)
        rounds = self._reductions.get(spec.name)
        if rounds is not None:
            return difference(spec, rounds.spec)
        if model is None:
            if not has_server(spec.mode):
                return None
            if spec.shards > 1 or spec.name in self._wholes:
                return self._refusal_of_cut(spec)
            if self._placing.server_for(spec) is None:
                wanted = f"server {spec.server!r}" if spec.server else "any server"
                return RefuseReason.NOT_YET, f"waiting for {wanted} to join the scheduler"
            return None
        return difference(spec, model.pushes.spec)

    def _refusal_of_cut(self, spec: ModelSpec) -> tuple[RefuseReason, str] | None:
        """Say how a worker's idea of a model that is cut differs from what is known, or what is to be waited for."""
        whole = self._wholes.get(spec.name)
        if whole is not None and whole.count != spec.shards:
            detail = f"model {spec.name!r}: shards={spec.shards} given, {whole.count} registered"
            return RefuseReason.OPTIONS_DIFFER, f"{detail}; give the same"
        for shard, part in sorted(whole.parts.items()) if whole is not None else ():
            given = replace(spec.of_shard(shard), server="")
            if (found := difference(given, part.pushes.spec)) is not None:
                return found
        placed = self._placing.servers_for(spec, whole)
        return placed if isinstance(placed, tuple) else None

    def _replica_refusal(self, follows: Following, member: Member) -> tuple[RefuseReason, str] | None:
        """Say why a replica cannot follow a server now, or return None; one that is silent may come back."""
        record = self._context.members.get(follows.server)
        if record is None or record.state is not MemberState.HERE:
            return RefuseReason.NOT_YET, f"waiting for server {follows.server!r} to join the scheduler"
        if record.member.role is not Role.SERVER:
            detail = f"{follows.server!r} is a {record.member.role.value}"
            return RefuseReason.OUT_OF_RANGE, f"{detail}; a replica follows a server"
        for model in self._models.values():
            if model.pushes.server == follows.server and model.pushes.spec.shard is not None:
                detail = f"server {follows.server!r} holds {model.pushes.spec.name!r}, a part of a model"
                return RefuseReason.OUT_OF_RANGE, f"{detail}; replicas follow servers of whole models"
        for other in self._context.here(Role.REPLICA):
            same = other.follows is not None and other.follows.server == follows.server
            if same and other.member.name != member.name:
                detail = f"server {follows.server!r} has a replica: {other.member.name!r}"
                return RefuseReason.NAME_TAKEN, f"{detail}; stop that one, or follow another server"
        return None

    def _held_elsewhere(self, server: str, held: ModelSpec) -> tuple[RefuseReason, str] | None:
        if held.name in self._reductions:
            return RefuseReason.NAME_TAKEN, f"model {held.name!r} is reduced among workers; give it another name"
        model = self._models.get(held.name)
        if model is None:
            return None
        if model.pushes.server != server and self._context.is_here(model.pushes.server):
            detail = f"model {held.name!r} is held by server {model.pushes.server!r}"
            return RefuseReason.NAME_TAKEN, f"{detail}; give the model another name"
        return difference(held, model.pushes.spec)
