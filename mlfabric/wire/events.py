"""Events on the wire: what a member tells the scheduler.

An event speaks for the member whose session carries it, and for nobody else. ``MemberJoined`` is a registration call,
``TermShown`` a call of its own; ``MemberLost``, ``MemberSilent`` and ``Tick`` do not travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfabric.protocol import (
    AppliedIds,
    CommitsReported,
    GetId,
    GetRequested,
    InitialReceived,
    LinkRate,
    LinksReported,
    MemberEvent,
    MemberLeft,
    MemoryReported,
    ModelFreed,
    PushRequested,
    ServerHolds,
    SumId,
    TransferEnded,
    TransferId,
    WorkerHolds,
)
from mlfabric.samples import MOST_RUNS
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire import reduces, replicas, sampling, shards
from mlfabric.wire.commits import fill_commits, from_commits
from mlfabric.wire.sampling import fill_counts, from_counts, from_samples, to_samples
from mlfabric.wire.specs import fill_spec, from_spec
from mlfabric.wire.values import (
    END_OF,
    END_TO,
    KIND_OF,
    KIND_TO,
    REASON_OF,
    REASON_TO,
    enum_of,
    fill_request,
    fill_version,
    from_get_id,
    from_sum_id,
    from_update_id,
    from_version,
    malformed,
    need,
)

__all__ = ["from_event", "from_get", "from_push", "from_server_holds", "to_event", "to_server_holds"]


def to_event(event: MemberEvent) -> session.Event:
    """Make the message of an event.

    Raises:
        UsageError: events of this kind do not travel on a session.
    """
    fill = _FILL.get(type(event))
    if fill is None:
        raise malformed("event", type(event).__name__, ", ".join(kind.__name__ for kind in _FILL))
    message = session.Event()
    fill(message, event)
    return message


def from_event(message: session.Event, member: str, incarnation: int = 0) -> MemberEvent:
    """Return the event that a message holds.

    Args:
        message: what came on the session.
        member: whose session it is.
        incarnation: of that member; ``MemberLeft`` alone needs it.

    Raises:
        UsageError: it holds no event, an incomplete one, or one that speaks for another member.
    """
    which = message.WhichOneof("event")
    if which is None:
        raise malformed("Event.event", None, ", ".join([*_READ, "member_left"]))
    if which == "member_left":
        return MemberLeft(name=member, incarnation=incarnation, detail=message.member_left.detail)
    event: MemberEvent = _READ[which](getattr(message, which), member)
    return event


def _own(name: str, member: str, field: str) -> None:
    if name != member:
        raise malformed(field, name, f"{member!r}, whose session this is")


def _fill_push(message: session.PushRequested, event: PushRequested) -> None:
    fill_request(message.update, event.update)
    message.model = event.model
    message.size_bytes = event.size_bytes
    fill_version(message.computed_from, event.computed_from)
    message.norm = event.norm
    message.kind = KIND_TO[event.kind]
    message.resolved_below = event.resolved_below
    message.samples.extend(to_samples(event.samples))


def from_push(message: session.PushRequested, member: str) -> PushRequested:
    """Return the push that ``member`` requests.

    Raises:
        UsageError: it is incomplete, or another member's.
    """
    need(message, "update")
    need(message, "computed_from")
    update = from_update_id(message.update)
    _own(update.worker, member, "PushRequested.update.worker")
    return PushRequested(
        update=update,
        model=message.model,
        size_bytes=message.size_bytes,
        computed_from=from_version(message.computed_from),
        norm=message.norm,
        kind=enum_of(KIND_OF, message.kind, "PushRequested.kind"),
        resolved_below=message.resolved_below,
        samples=from_samples(message.samples, "PushRequested.samples"),
    )


def _fill_get(message: session.GetRequested, event: GetRequested) -> None:
    fill_request(message.get, event.get)
    message.model = event.model
    fill_version(message.min_version, event.min_version)
    if event.after_update is not None:
        fill_request(message.after_update, event.after_update)


def from_get(message: session.GetRequested, member: str) -> GetRequested:
    """Return the get that ``member`` requests.

    Raises:
        UsageError: it is incomplete, or another member's.
    """
    need(message, "get")
    need(message, "min_version")
    _own(message.get.worker, member, "GetRequested.get.worker")
    return GetRequested(
        get=from_get_id(message.get),
        model=message.model,
        min_version=from_version(message.min_version),
        after_update=from_update_id(message.after_update) if message.HasField("after_update") else None,
    )


def _fill_worker_holds(message: session.WorkerHolds, event: WorkerHolds) -> None:
    message.worker = event.worker
    for push in event.pushes:
        _fill_push(message.pushes.add(), push)
    for get in event.gets:
        _fill_get(message.gets.add(), get)
    for reduce in event.reduces:
        reduces.fill_reduce_requested(message.reduces.add(), reduce)
    if event.clock is not None:
        message.clock = event.clock
    message.dropped_samples.extend(to_samples(event.dropped))
    message.drawn_samples.extend(to_samples(event.drawn))


def _from_worker_holds(message: session.WorkerHolds, member: str) -> WorkerHolds:
    _own(message.worker, member, "WorkerHolds.worker")
    return WorkerHolds(
        worker=message.worker,
        pushes=tuple(from_push(push, member) for push in message.pushes),
        gets=tuple(from_get(get, member) for get in message.gets),
        reduces=tuple(reduces.from_reduce_requested(reduce, member) for reduce in message.reduces),
        clock=message.clock if message.HasField("clock") else None,
        dropped=from_samples(message.dropped_samples, "WorkerHolds.dropped_samples", MOST_RUNS),
        drawn=from_samples(message.drawn_samples, "WorkerHolds.drawn_samples", MOST_RUNS),
    )


def to_server_holds(event: ServerHolds) -> session.ServerHolds:
    """Make the message of what a server holds of one model."""
    message = session.ServerHolds()
    _fill_server_holds(message, event)
    return message


def _fill_server_holds(message: session.ServerHolds, event: ServerHolds) -> None:
    message.server = event.server
    fill_spec(message.spec, event.spec)
    fill_version(message.version, event.version)
    message.initialised = event.initialised
    for ids in event.applied:
        applied = message.applied.add(worker=ids.worker, incarnation=ids.incarnation, low=ids.low)
        for counter, version, tau in ids.recent:
            fill_version(applied.recent.add(counter=counter, tau=tau).version, version)
    for update in event.received:
        fill_request(message.received.add(), update)
    message.epoch_base = event.epoch_base
    message.replica = event.replica
    for began in event.earlier:
        fill_version(message.earlier.add(), began)
    fill_counts(message.samples, event.samples)


def from_server_holds(message: session.ServerHolds, member: str) -> ServerHolds:
    """Return what the server ``member`` holds of one model.

    Raises:
        UsageError: it is incomplete, its model is malformed, or it is another server's.
    """
    _own(message.server, member, "ServerHolds.server")
    need(message, "spec")
    need(message, "version")
    return ServerHolds(
        server=message.server,
        spec=from_spec(message.spec),
        version=from_version(message.version),
        initialised=message.initialised,
        applied=tuple(_from_applied(ids) for ids in message.applied),
        received=tuple(from_update_id(update) for update in message.received),
        epoch_base=message.epoch_base,
        replica=message.replica,
        earlier=tuple(from_version(began) for began in message.earlier),
        samples=from_counts(message.samples),
    )


def _from_applied(message: session.AppliedIds) -> AppliedIds:
    for entry in message.recent:
        need(entry, "version")
    recent = tuple((entry.counter, from_version(entry.version), entry.tau) for entry in message.recent)
    return AppliedIds(worker=message.worker, incarnation=message.incarnation, low=message.low, recent=recent)


def _fill_commits(message: session.CommitsReported, event: CommitsReported) -> None:
    message.server = event.server
    message.model = event.model
    fill_commits(message.commits, event.commits)


def _from_commits(message: session.CommitsReported, member: str) -> CommitsReported:
    _own(message.server, member, "CommitsReported.server")
    return CommitsReported(server=message.server, model=message.model, commits=from_commits(message.commits))


def _fill_initial(message: session.InitialReceived, event: InitialReceived) -> None:
    message.server = event.server
    message.model = event.model
    fill_version(message.version, event.version)


def _from_initial(message: session.InitialReceived, member: str) -> InitialReceived:
    _own(message.server, member, "InitialReceived.server")
    need(message, "version")
    return InitialReceived(server=message.server, model=message.model, version=from_version(message.version))


def _fill_ended(message: session.TransferEnded, event: TransferEnded) -> None:
    message.member = event.member
    message.model = event.model
    if isinstance(event.transfer, SumId):
        message.sum.epoch, message.sum.counter = event.transfer
    else:
        fill_request(message.get if isinstance(event.transfer, GetId) else message.update, event.transfer)
    message.end = END_TO[event.end]
    if event.cause is not None:
        message.cause = REASON_TO[event.cause]
    message.detail = event.detail


def _from_ended(message: session.TransferEnded, member: str) -> TransferEnded:
    _own(message.member, member, "TransferEnded.member")
    return TransferEnded(
        member=message.member,
        model=message.model,
        transfer=_transfer(message),
        end=enum_of(END_OF, message.end, "TransferEnded.end"),
        cause=enum_of(REASON_OF, message.cause, "TransferEnded.cause") if message.cause else None,
        detail=message.detail,
    )


def _transfer(message: session.TransferEnded) -> TransferId | GetId:
    match message.WhichOneof("transfer"):
        case "update":
            return from_update_id(message.update)
        case "get":
            return from_get_id(message.get)
        case "sum":
            return from_sum_id(message.sum)
        case _:
            raise malformed("TransferEnded.transfer", None, "update, get or sum")


def _fill_left(message: session.MemberLeft, event: MemberLeft) -> None:
    message.detail = event.detail


def _fill_freed(message: session.ModelFreed, event: ModelFreed) -> None:
    message.model, message.epoch = event.model, event.epoch


def _from_freed(message: session.ModelFreed, member: str) -> ModelFreed:
    return ModelFreed(member=member, model=message.model, epoch=message.epoch)


def _fill_memory(message: session.MemoryReported, event: MemoryReported) -> None:
    message.SetInParent()  # an empty map alone would leave no trace of the event
    message.kinds.update(event.kinds)


def _from_memory(message: session.MemoryReported, member: str) -> MemoryReported:
    return MemoryReported(name=member, kinds=tuple(sorted(message.kinds.items())))


def _fill_links(message: session.LinksReported, event: LinksReported) -> None:
    message.monitor = event.monitor
    for rate in event.rates:
        message.rates.add(host=rate.host, up=rate.up, bps=rate.bps, age_ns=rate.age_ns)


def _from_links(message: session.LinksReported, member: str) -> LinksReported:
    _own(message.monitor, member, "LinksReported.monitor")
    if not all(rate.host for rate in message.rates):
        raise malformed("LinkRate.host", "", "a name that is not empty")
    rates = tuple(LinkRate(host=r.host, up=r.up, bps=r.bps, age_ns=r.age_ns) for r in message.rates)
    return LinksReported(monitor=message.monitor, rates=rates)


_FILL: Mapping[type, Callable[[session.Event, Any], None]] = {
    PushRequested: lambda message, event: _fill_push(message.push_requested, event),
    GetRequested: lambda message, event: _fill_get(message.get_requested, event),
    WorkerHolds: lambda message, event: _fill_worker_holds(message.worker_holds, event),
    ServerHolds: lambda message, event: _fill_server_holds(message.server_holds, event),
    CommitsReported: lambda message, event: _fill_commits(message.commits_reported, event),
    InitialReceived: lambda message, event: _fill_initial(message.initial_received, event),
    TransferEnded: lambda message, event: _fill_ended(message.transfer_ended, event),
    MemberLeft: lambda message, event: _fill_left(message.member_left, event),
    MemoryReported: lambda message, event: _fill_memory(message.memory_reported, event),
    ModelFreed: lambda message, event: _fill_freed(message.model_freed, event),
    LinksReported: lambda message, event: _fill_links(message.links_reported, event),
    **replicas.FILL_EVENT,
    **reduces.FILL_EVENT,
    **shards.FILL_EVENT,
    **sampling.FILL_EVENT,
}
_READ: Mapping[str, Callable[[Any, str], MemberEvent]] = {
    "push_requested": from_push,
    "get_requested": from_get,
    "worker_holds": _from_worker_holds,
    "server_holds": from_server_holds,
    "commits_reported": _from_commits,
    "initial_received": _from_initial,
    "transfer_ended": _from_ended,
    "memory_reported": _from_memory,
    "model_freed": _from_freed,
    "links_reported": _from_links,
    **replicas.READ_EVENT,
    **reduces.READ_EVENT,
    **shards.READ_EVENT,
    **sampling.READ_EVENT,
}
