"""The gets of one model: asked for, planned, served. Pure.

A get that follows an update of its worker's is planned together with it, ready when that is predicted to be committed:
push and get are one round trip. The server serves a get when its update is settled, whatever was predicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    CancelServe,
    Fetch,
    GetId,
    GetRequested,
    Instruction,
    Serve,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.planning import (
    Batch,
    FabricState,
    GetCandidate,
    PlannerConfig,
    Timetable,
    paced_rate,
    plan,
)
from mlfabric.scheduler.pushes import Pushes
from mlfabric.scheduler.records import PlannedGet

__all__ = ["Gets"]

BLOCKED_NS = 100_000_000


class Gets:
    """Every get of one model that is not served yet."""

    def __init__(self, context: Context, pushes: Pushes) -> None:
        self.waiting: dict[GetId, GetRequested] = {}
        self.planned: dict[GetId, PlannedGet] = {}
        self._context = context
        self._pushes = pushes
        self._model = pushes.spec.name
        self._blocked_until_ns = 0
        self._running = Timetable[GetId]()

    def request(self, event: GetRequested) -> Iterator[Instruction]:
        """Take a request, or repeat the instructions of one that is planned."""
        planned = self.planned.get(event.get)
        if planned is None:
            self.waiting[event.get] = event
        else:
            yield from self._instruct(planned, (), "asked for again")

    def due_ns(self, now_ns: int) -> int | None:
        """Return when waiting gets are to be planned (again), None if none can be."""
        pushes = self._pushes
        ready = pushes.initialised and not pushes.awaited and self._context.is_here(pushes.server)
        if not ready or not any(self._is_ready(w) for w in self.waiting.values()):
            return None
        return max(now_ns, self._blocked_until_ns)

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Plan every get whose update (if any) is planned or settled."""
        ready = [w for w in self.waiting.values() if self._is_ready(w)]
        pushes, network = self._pushes, self._context.network
        candidates = [self._candidate(request, now_ns) for request in ready]
        by_get = {request.get: request for request in ready}
        server = self._context.host(pushes.server)
        state = FabricState(now_ns=now_ns, servers=(server,))
        found = plan(Batch(gets=tuple(candidates)), network, state, PlannerConfig())
        if found.deferred:
            self._blocked_until_ns = now_ns + BLOCKED_NS
        for answer in found.gets:
            transfer = found.transfers[answer.transfer]
            del self.waiting[answer.get]
            network.reserve((self._model, "get", answer.get), transfer.path, transfer.profile)
            after = self._running.before(transfer.path, transfer.profile.start_ns)
            self._running.add(answer.get, transfer.path, transfer.profile)
            planned = PlannedGet(
                request=by_get[answer.get], ticket=self._context.tickets.next(), profile=transfer.profile
            )
            self.planned[answer.get] = planned
            yield from self._instruct(planned, after, answer.reason)

    def _is_ready(self, request: GetRequested) -> bool:
        return request.after_update is None or request.after_update not in self._pushes.waiting

    def _candidate(self, request: GetRequested, now_ns: int) -> GetCandidate:
        ready_ns = now_ns
        if request.after_update is not None:
            ready_ns = max(now_ns, self._pushes.commit_ns.get(request.after_update, now_ns))
        return GetCandidate(
            get=request.get,
            destination=self._context.host(request.get.worker),
            size_bytes=self._pushes.spec.layout.size_bytes,
            ready_ns=ready_ns,
        )

    def _instruct(self, planned: PlannedGet, after: tuple[GetId, ...], reason: str) -> Iterator[Instruction]:
        request, server = planned.request, self._pushes.server
        path = self._context.path(server, request.get.worker)
        yield Serve(
            to=server,
            get=request.get,
            model=self._model,
            ticket=planned.ticket,
            min_version=request.min_version,
            after_update=request.after_update,
            after=after,
            rate_bps=paced_rate(planned.profile, path, self._context.network),
            reason=reason,
        )
        yield Fetch(
            to=request.get.worker,
            get=request.get,
            server=server,
            address=self._context.members[server].member.address,
            ticket=planned.ticket,
            reason=reason,
        )

    def ended(self, get: GetId) -> None:
        """Note that a get was served, or broke; a worker that still wants it asks again."""
        self.planned.pop(get, None)
        self._free_links(get)

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of a worker's gets."""
        for get in [g for g in self.waiting if g.worker == worker]:
            del self.waiting[get]
        for get in [g for g in self.planned if g.worker == worker]:
            del self.planned[get]
            self._free_links(get)
            yield CancelServe(to=self._pushes.server, model=self._model, get=get, reason=reason)

    def repeat(self) -> Iterator[Instruction]:
        """Repeat every instruction, for a server that came back."""
        for planned in self.planned.values():
            yield from self._instruct(planned, (), "the server came back")

    def _free_links(self, get: GetId) -> None:
        self._context.network.release((self._model, "get", get))
        self._running.remove(get)
