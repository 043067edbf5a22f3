"""Who is served a model, and which versions that pins. Pure.

A get pins the current version until it has been sent. There are weight buffers for twice model and optimizer state
(2, and one more for each image of state), and so many copies besides for versions that are sent while newer ones are
made. A get starts only if the next commit still has a buffer; so no commit ever waits for a get, and no get waits for a
slower one until all copies are in use.

What the plan starts after another waits for that, but not much longer than the plan says: a worker that is slower than
anybody knew keeps nobody waiting.

A get of a part of a model asks for one version exactly. It is pinned when the order's turn comes, before the worker
does, so that commits may go on.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, ModelVersion, Serve, TransferEnd, TransferEnded, UpdateId
from mlfabric.server.actions import Abandon, Action, PinModel, Refuse, Report, ServeModel, UnpinModel, Wanted
from mlfabric.server.transfers import OutgoingModel
from mlfabric.transfer.offers import UNCLAIMED_NS, GetState
from mlfabric.transfer.precedence import conflict, take_out

__all__ = ["Servings", "weight_buffers"]


def weight_buffers(spec: ModelSpec) -> int:
    """Return how many copies of the weights make twice model and optimizer state, beside one state."""
    return 2 + spec.rule.state_images


class Servings:
    """The gets of one model; ``lacks_copy`` if one that is due waits because all copies of the weights are being sent.

    Args:
        server: who serves them.
        spec: of the model.
        weight_copies: how many copies of the weights there may be beyond :func:`weight_buffers`, >= 0.
    """

    def __init__(self, server: str, spec: ModelSpec, weight_copies: int = 0) -> None:
        self.gets: dict[GetId, OutgoingModel] = {}
        self._pinned_by: dict[GetId, ModelVersion] = {}
        self._server = server
        self._model = spec.name
        self._buffers = weight_buffers(spec) + weight_copies
        self._orders = 0
        self.lacks_copy = False
        self._now_ns = 0

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
                yield Refuse(connection=known.connection, reason="it was planned anew")
                known.state, known.connection = GetState.PLANNED, None
            if self.pinned_for(plan.get) not in (None, plan.version):
                yield self._unpin(plan.get)
            known.plan, known.after, known.since_ns = plan, frozenset(plan.after), now_ns

    def want(self, wanted: Wanted) -> Iterator[Action]:
        """Take a want whose ticket fits; a second one takes the place of the first."""
        get = self.gets[wanted.get]
        if get.state is GetState.SERVING:
            yield Refuse(connection=wanted.connection, reason="it is being served already")
            return
        if get.connection is not None and get.connection != wanted.connection:
            yield Refuse(connection=get.connection, reason="wanted anew on another connection")
        get.state, get.connection = GetState.WANTED, wanted.connection

    def ended(self, get: GetId, end: TransferEnd, connection: int, detail: str = "") -> Iterator[Action]:
        """Note that a get ended, well or not, and unpin its version."""
        known = self.gets.get(get)
        if known is None or known.connection != connection:
            return
        yield from self._forget(known)
        yield self._report(get, end, detail)

    def _forget(self, get: OutgoingModel) -> Iterator[Action]:
        """Take a get out; what was pinned for it beforehand, and is not being sent, is unpinned."""
        take_out(get.get, self.gets)
        if get.state is GetState.SERVING:
            del self._pinned_by[get.get]
        elif get.get in self._pinned_by:
            yield self._unpin(get.get)

    def _unpin(self, get: GetId) -> UnpinModel:
        del self._pinned_by[get]
        return UnpinModel(get=get, model=self._model)

    def _report(self, get: GetId, end: TransferEnd, detail: str) -> Report:
        return Report(event=TransferEnded(member=self._server, model=self._model, transfer=get, end=end, detail=detail))

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        if not self.gets:
            return None
        unclaimed = [g.since_ns + UNCLAIMED_NS for g in self.gets.values() if g.state is GetState.PLANNED]
        return min([*unclaimed, *self._late_ns()], default=None)

    def _late_ns(self) -> Iterator[int]:
        """Yield when gets that are being sent stop to keep others waiting, if others wait."""
        if any(get.state is GetState.WANTED for get in self.gets.values()):
            for get in self.gets.values():
                if get.state is GetState.SERVING and get.late_ns is not None and not get.is_late(self._now_ns):
                    yield get.late_ns

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Forget gets that nobody came for."""
        for get in [g for g in self.gets.values() if g.state is GetState.PLANNED]:
            if get.since_ns + UNCLAIMED_NS <= now_ns:
                yield from self._forget(get)
                yield self._report(get.get, TransferEnd.BROKEN, "it was never wanted")

    def cancel(self, get: GetId, reason: str, *, gone: bool = False) -> Iterator[Action]:
        """Forget a get that is not being served; break it off if it is and its worker is gone."""
        known = self.gets.get(get)
        if known is not None and known.state is GetState.SERVING:
            if gone and known.connection is not None:
                yield Abandon(connection=known.connection)
        elif known is not None:
            yield from self._forget(known)
            if known.connection is not None:
                yield Refuse(connection=known.connection, reason=reason)

    def cancel_all(self, reason: str, *, gone: bool = False) -> Iterator[Action]:
        """Do as :meth:`cancel` for every get."""
        for get in list(self.gets):
            yield from self.cancel(get, reason, gone=gone)

    def pin(self, get: GetId, version: ModelVersion) -> Iterator[Action]:
        """Pin the current version for a get that asks for exactly this one; see ``may_pin``."""
        self._pinned_by[get] = version
        yield PinModel(get=get, model=self._model, version=version)

    def pinned_for(self, get: GetId) -> ModelVersion | None:
        """Return the version that is pinned for a get, or None."""
        return self._pinned_by.get(get)

    def give_up(self, get: GetId, detail: str) -> Iterator[Action]:
        """Say that a get cannot be served what it asks for."""
        known = self.gets[get]
        yield from self.cancel(get, detail)
        yield self._report(known.get, TransferEnd.BROKEN, detail)

    def advance(self, version: ModelVersion | None, unsettled: Container[UpdateId], now_ns: int) -> Iterator[Action]:
        """Serve what is due: its updates are settled, the version is new enough, nothing in conflict runs.

        Args:
            version: the current one; None while it cannot be pinned: then only what is pinned is served.
            unsettled: updates without an outcome.
            now_ns: it is now.
        """
        self._now_ns = now_ns
        self.lacks_copy = False
        if not self.gets:
            return
        wanted = [g for g in self.gets.values() if g.state is GetState.WANTED]
        if not wanted:
            return
        running = [g for g in self.gets.values() if g.state is GetState.SERVING and not g.is_late(now_ns)]
        waiting: list[OutgoingModel] = []
        for get in sorted(wanted, key=lambda g: g.order):
            due = self._due_version(get, version, unsettled)
            if due is None:
                continue
            blocked = any(conflict(get.get, other.get, self.gets) for other in (*running, *waiting))
            lacks_copy = get.get not in self._pinned_by and not self.may_pin(due)
            self.lacks_copy |= lacks_copy
            if blocked or lacks_copy:
                waiting.append(get)
                continue
            running.append(get)
            yield self._start(get, due, now_ns)

    def _due_version(
        self, get: OutgoingModel, version: ModelVersion | None, unsettled: Container[UpdateId]
    ) -> ModelVersion | None:
        """Return which version a get is to be served now, None if it is not due."""
        if get.plan.version is not None or version is None:
            return self._pinned_by.get(get.get)
        settled = not any(update in unsettled for update in get.plan.after_updates)
        return version if settled and version.reaches(get.plan.min_version) else None

    def _start(self, get: OutgoingModel, version: ModelVersion, now_ns: int) -> ServeModel:
        assert get.connection is not None
        get.state, get.since_ns = GetState.SERVING, now_ns
        self._pinned_by[get.get] = version
        return ServeModel(
            get=get.get, model=self._model, connection=get.connection, version=version, rate_bps=get.plan.rate_bps
        )

    def may_pin(self, version: ModelVersion) -> bool:
        """Tell whether the current version can be pinned, leaving a buffer for the next commit."""
        pinned = set(self._pinned_by.values())
        return version in pinned or len(pinned) + 1 < self._buffers

    def validate(self, version: ModelVersion) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not self.gets:
            assert not self._pinned_by, f"{self._model}: pins {self._pinned_by} for nobody"
            return
        pinned = set(self._pinned_by.values())
        assert len(pinned) < self._buffers, f"{self._model}: too many pinned versions {pinned}"
        assert all(v <= version for v in pinned), f"{self._model}: a future version is pinned"
        serving = {g.get for g in self.gets.values() if g.state is GetState.SERVING}
        exact = {g.get for g in self.gets.values() if g.plan.version is not None}
        assert serving <= self._pinned_by.keys() <= serving | exact, f"{self._model}: pins {self._pinned_by}, {serving}"
