"""Who is served a model, and which versions that pins. Pure.

A get pins the current version until it has been sent. Weight buffers are few (2, and one more for each image of
optimizer state, so that the server never holds more than twice model and optimizer state): a get starts only if the
next commit still has a buffer, a commit only if the current version is unpinned or another buffer is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from mlfabric.precedence import conflict, take_out
from mlfabric.protocol import GetId, ModelVersion, Serve, TransferEnd, TransferEnded, UpdateId
from mlfabric.server.actions import Action, RefuseWant, Report, ServeModel, Wanted
from mlfabric.server.transfers import UNCLAIMED_NS, GetState, OutgoingModel
from mlfabric.specs import ModelSpec

__all__ = ["Servings", "weight_buffers"]


def weight_buffers(spec: ModelSpec) -> int:
    """Return how many copies of the weights a server may hold of this model."""
    return 2 + spec.rule.state_images


class Servings:
    """The gets of one model."""

    def __init__(self, server: str, spec: ModelSpec) -> None:
        self.gets: dict[GetId, OutgoingModel] = {}
        self._pinned_by: dict[GetId, ModelVersion] = {}
        self._server = server
        self._model = spec.name
        self._buffers = weight_buffers(spec)
        self._orders = 0

    def serve(self, plan: Serve, now_ns: int) -> Iterator[Action]:
        """Take a get; told again before it runs, it changes its plan, and a new ticket makes the old one void."""
        known = self.gets.get(plan.get)
        if known is None:
            self._orders += 1
            self.gets[plan.get] = OutgoingModel(
                plan=plan, order=self._orders, after=frozenset(plan.after), since_ns=now_ns
            )
        elif known.state is not GetState.SERVING:
            if known.connection is not None and known.plan.ticket != plan.ticket:
                yield RefuseWant(get=plan.get, connection=known.connection, reason="it was planned anew")
                known.state, known.connection = GetState.PLANNED, None
            known.plan, known.after, known.since_ns = plan, frozenset(plan.after), now_ns

    def want(self, wanted: Wanted) -> Iterator[Action]:
        """Take a want whose ticket fits; a second one takes the place of the first."""
        get = self.gets[wanted.get]
        if get.state is GetState.SERVING:
            yield RefuseWant(get=wanted.get, connection=wanted.connection, reason="it is being served already")
            return
        if get.connection is not None and get.connection != wanted.connection:
            yield RefuseWant(get=wanted.get, connection=get.connection, reason="wanted anew on another connection")
        get.state, get.connection = GetState.WANTED, wanted.connection

    def ended(self, get: GetId, end: TransferEnd, connection: int, detail: str = "") -> Iterator[Action]:
        """Note that a get ended, well or not, and unpin its version."""
        known = self.gets.get(get)
        if known is None or known.connection != connection:
            return
        take_out(get, self.gets)
        self._pinned_by.pop(get, None)
        yield self._report(get, end, detail)

    def _report(self, get: GetId, end: TransferEnd, detail: str) -> Report:
        return Report(event=TransferEnded(member=self._server, model=self._model, transfer=get, end=end, detail=detail))

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        unclaimed = [g.since_ns for g in self.gets.values() if g.state is GetState.PLANNED]
        return min(unclaimed) + UNCLAIMED_NS if unclaimed else None

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Forget gets that nobody came for."""
        for get in [g for g in self.gets.values() if g.state is GetState.PLANNED]:
            if get.since_ns + UNCLAIMED_NS <= now_ns:
                take_out(get.get, self.gets)
                yield self._report(get.get, TransferEnd.BROKEN, "it was never wanted")

    def cancel(self, get: GetId, reason: str) -> Iterator[Action]:
        """Forget a get that is not being served."""
        known = self.gets.get(get)
        if known is not None and known.state is not GetState.SERVING:
            take_out(get, self.gets)
            if known.connection is not None:
                yield RefuseWant(get=get, connection=known.connection, reason=reason)

    def cancel_waiting(self, reason: str) -> Iterator[Action]:
        """Forget every get that is not being served."""
        for get in list(self.gets):
            yield from self.cancel(get, reason)

    def advance(self, version: ModelVersion, unsettled: Container[UpdateId]) -> Iterator[Action]:
        """Serve what is due: its updates are settled, the version is new enough, nothing in conflict runs."""
        running = [g for g in self.gets.values() if g.state is GetState.SERVING]
        waiting: list[OutgoingModel] = []
        for get in sorted(self.gets.values(), key=lambda g: g.order):
            settled = not any(update in unsettled for update in get.plan.after_updates)
            due = settled and version >= get.plan.min_version
            if get.state is not GetState.WANTED or not due:
                continue
            blocked = any(conflict(get.get, other.get, self.gets) for other in (*running, *waiting))
            if blocked or not self._may_pin(version):
                waiting.append(get)
                continue
            assert get.connection is not None
            get.state = GetState.SERVING
            running.append(get)
            self._pinned_by[get.get] = version
            yield ServeModel(
                get=get.get,
                model=self._model,
                connection=get.connection,
                version=version,
                rate_bps=get.plan.rate_bps,
                reason=f"version {version.number} is due",
            )

    def leaves_buffer_for_commit(self, version: ModelVersion) -> bool:
        """Tell whether the step from ``version`` has a buffer to go to."""
        pinned = set(self._pinned_by.values())
        return version not in pinned or len(pinned) < self._buffers

    def _may_pin(self, version: ModelVersion) -> bool:
        pinned = set(self._pinned_by.values())
        return version in pinned or len(pinned) + 1 < self._buffers

    def validate(self, version: ModelVersion) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        pinned = Counter(self._pinned_by.values())
        assert len(pinned) < self._buffers, f"{self._model}: too many pinned versions {pinned}"
        assert all(v <= version for v in pinned), f"{self._model}: a future version is pinned"
        serving = {g.get for g in self.gets.values() if g.state is GetState.SERVING}
        assert serving == set(self._pinned_by), f"{self._model}: pins {self._pinned_by} for gets {serving}"
