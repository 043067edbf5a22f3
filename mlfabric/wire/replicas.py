"""What replication adds on the wire: events of replicas and workers, instructions to them and to primaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlfabric.protocol import (
    Fold,
    Followed,
    Following,
    GroupOf,
    HeldBack,
    Instruction,
    Keep,
    Logged,
    MemberEvent,
    NewServer,
    NotKept,
    Promote,
    Release,
    ReplicaReported,
    Replicate,
    Seed,
    Unfollowed,
)
from mlfabric.v1 import fabric_pb2 as fabric
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire.commits import fill_commits, from_commits
from mlfabric.wire.values import (
    fill_request,
    fill_transfer,
    fill_version,
    from_sum_id,
    from_transfer_id,
    from_update_id,
    from_version,
    malformed,
    need,
)

__all__ = ["FILL", "FILL_EVENT", "READ", "READ_EVENT", "from_following"]


def from_following(message: fabric.RegisterAsReplicaRequest) -> Following:
    """Return what a replica wants to follow.

    Raises:
        UsageError: no server is named, or a bound is out of range.
    """
    if not message.server:
        raise malformed("RegisterAsReplicaRequest.server", "", "the name of a server")
    return Following(
        server=message.server,
        norm=_norm(message.div_max, "RegisterAsReplicaRequest.div_max"),
        updates=message.div_max_updates if message.HasField("div_max_updates") else None,
        is_seeded=message.seeded,
    )


def _norm(norm: float, field: str) -> float:
    if not norm >= 0:
        raise malformed(field, norm, "0 or more, or infinite")
    return norm


def _own(name: str, member: str, field: str) -> None:
    if name != member:
        raise malformed(field, name, f"{member!r}, whose session this is")


def _fill_reported(message: session.ReplicaReported, event: ReplicaReported) -> None:
    message.replica = event.replica
    message.model = event.model
    message.term = event.term
    fill_version(message.version, event.version)
    for update in event.held:
        fill_request(message.held.add(), update)


def _from_reported(message: session.ReplicaReported, member: str) -> ReplicaReported:
    _own(message.replica, member, "ReplicaReported.replica")
    need(message, "version")
    return ReplicaReported(
        replica=message.replica,
        model=message.model,
        term=message.term,
        version=from_version(message.version),
        held=tuple(from_update_id(update) for update in message.held),
    )


def _fill_held_back(message: session.HeldBack, event: HeldBack) -> None:
    message.server = event.server
    message.model = event.model
    for transfer in event.transfers:
        fill_transfer(message.transfers.add(), transfer)
    message.alone = event.alone
    message.detail = event.detail


def _from_held_back(message: session.HeldBack, member: str) -> HeldBack:
    _own(message.server, member, "HeldBack.server")
    return HeldBack(
        server=message.server,
        model=message.model,
        transfers=tuple(from_transfer_id(transfer) for transfer in message.transfers),
        alone=message.alone,
        detail=message.detail,
    )


def _fill_not_kept(message: session.NotKept, event: NotKept) -> None:
    message.member = event.member
    message.model = event.model
    message.term = event.term
    message.detail = event.detail


def _from_not_kept(message: session.NotKept, member: str) -> NotKept:
    _own(message.member, member, "NotKept.member")
    return NotKept(member=message.member, model=message.model, term=message.term, detail=message.detail)


def _fill_keep(message: session.Keep, value: Keep) -> None:
    message.model, message.term = value.model, value.term
    message.receiver, message.address = value.receiver, value.address


def _from_keep(message: session.Keep, to: str, reason: str) -> Keep:
    return Keep(
        to=to,
        model=message.model,
        term=message.term,
        receiver=message.receiver,
        address=message.address,
        reason=reason,
    )


def _fill_fold(message: session.Fold, value: Fold) -> None:
    message.model, message.term = value.model, value.term
    fill_request(message.update, value.update)
    message.lrs.extend(value.lrs)
    message.share = value.share
    message.begins = value.begins


def _from_fold(message: session.Fold, to: str, reason: str) -> Fold:
    need(message, "update")
    lrs = tuple(message.lrs)
    if not lrs or not all(math.isfinite(lr) and lr >= 0 for lr in lrs) or not 0 < message.share <= 1:
        given = f"{lrs}, {message.share}"
        raise malformed("Fold.lrs, Fold.share", given, "at least one, each finite and >= 0; above 0, at most 1")
    return Fold(
        to=to,
        model=message.model,
        term=message.term,
        update=from_update_id(message.update),
        lrs=lrs,
        share=message.share,
        begins=message.begins,
        reason=reason,
    )


def _fill_release(message: session.Release, value: Release) -> None:
    message.model, message.term = value.model, value.term
    for update in value.updates:
        fill_request(message.updates.add(), update)


def _from_release(message: session.Release, to: str, reason: str) -> Release:
    updates = tuple(from_update_id(update) for update in message.updates)
    return Release(to=to, model=message.model, term=message.term, updates=updates, reason=reason)


def _fill_replicate(message: session.Replicate, value: Replicate) -> None:
    message.model, message.term = value.model, value.term
    fill_transfer(message.transfer, value.transfer)
    message.ticket = value.ticket
    message.rate_bps = value.rate_bps


def _from_replicate(message: session.Replicate, to: str, reason: str) -> Replicate:
    need(message, "transfer")
    return Replicate(
        to=to,
        model=message.model,
        term=message.term,
        transfer=from_transfer_id(message.transfer),
        ticket=message.ticket,
        rate_bps=message.rate_bps,
        reason=reason,
    )


def _fill_logged(message: session.Logged, value: Logged) -> None:
    message.model = value.model
    fill_commits(message.commits, value.commits)


def _from_logged(message: session.Logged, to: str, reason: str) -> Logged:
    return Logged(to=to, model=message.model, commits=from_commits(message.commits), reason=reason)


def _fill_seed(message: session.Seed, value: Seed) -> None:
    message.model, message.term = value.model, value.term
    message.transfer.epoch, message.transfer.counter = value.transfer
    message.receiver, message.address = value.receiver, value.address
    message.ticket = value.ticket


def _from_seed(message: session.Seed, to: str, reason: str) -> Seed:
    need(message, "transfer")
    return Seed(
        to=to,
        model=message.model,
        term=message.term,
        transfer=from_sum_id(message.transfer),
        receiver=message.receiver,
        address=message.address,
        ticket=message.ticket,
        reason=reason,
    )


def _fill_followed(message: session.Followed, value: Followed) -> None:
    message.model, message.replica = value.model, value.replica
    fill_version(message.version, value.version)
    for update in value.held:
        fill_request(message.held.add(), update)
    message.norm = value.norm
    if value.updates is not None:
        message.updates = value.updates


def _from_followed(message: session.Followed, to: str, reason: str) -> Followed:
    need(message, "version")
    return Followed(
        to=to,
        model=message.model,
        replica=message.replica,
        version=from_version(message.version),
        held=tuple(from_update_id(update) for update in message.held),
        norm=_norm(message.norm, "Followed.norm"),
        updates=message.updates if message.HasField("updates") else None,
        reason=reason,
    )


def _fill_unfollowed(message: session.Unfollowed, value: Unfollowed) -> None:
    message.model = value.model


def _from_unfollowed(message: session.Unfollowed, to: str, reason: str) -> Unfollowed:
    return Unfollowed(to=to, model=message.model, reason=reason)


def _fill_promote(message: session.Promote, value: Promote) -> None:
    message.server, message.server_epoch = value.server, value.server_epoch
    for groups, into in ((value.known, message.known), (value.foretold, message.foretold)):
        for group in groups:
            found = into.add()
            found.model = group.model
            fill_commits(found.commits, group.commits)


def _from_promote(message: session.Promote, to: str, reason: str) -> Promote:
    return Promote(
        to=to,
        server=message.server,
        server_epoch=message.server_epoch,
        known=_groups(message.known),
        foretold=_groups(message.foretold),
        reason=reason,
    )


def _groups(messages: Iterable[session.Logged]) -> tuple[GroupOf, ...]:
    return tuple(GroupOf(group.model, from_commits(group.commits)) for group in messages)


def _fill_new_server(message: session.NewServer, value: NewServer) -> None:
    message.model, message.server_epoch = value.model, value.server_epoch


def _from_new_server(message: session.NewServer, to: str, reason: str) -> NewServer:
    return NewServer(to=to, model=message.model, server_epoch=message.server_epoch, reason=reason)


FILL_EVENT: Mapping[type, Callable[[session.Event, Any], None]] = {
    ReplicaReported: lambda message, event: _fill_reported(message.replica_reported, event),
    HeldBack: lambda message, event: _fill_held_back(message.held_back, event),
    NotKept: lambda message, event: _fill_not_kept(message.not_kept, event),
}
READ_EVENT: Mapping[str, Callable[[Any, str], MemberEvent]] = {
    "replica_reported": _from_reported,
    "held_back": _from_held_back,
    "not_kept": _from_not_kept,
}
FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    Keep: lambda message, value: _fill_keep(message.keep, value),
    Fold: lambda message, value: _fill_fold(message.fold, value),
    Release: lambda message, value: _fill_release(message.release, value),
    Replicate: lambda message, value: _fill_replicate(message.replicate, value),
    Logged: lambda message, value: _fill_logged(message.logged, value),
    Seed: lambda message, value: _fill_seed(message.seed, value),
    Followed: lambda message, value: _fill_followed(message.followed, value),
    Unfollowed: lambda message, value: _fill_unfollowed(message.unfollowed, value),
    Promote: lambda message, value: _fill_promote(message.promote, value),
    NewServer: lambda message, value: _fill_new_server(message.new_server, value),
}
READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "keep": _from_keep,
    "fold": _from_fold,
    "release": _from_release,
    "replicate": _from_replicate,
    "logged": _from_logged,
    "seed": _from_seed,
    "followed": _from_followed,
    "unfollowed": _from_unfollowed,
    "promote": _from_promote,
    "new_server": _from_new_server,
}
