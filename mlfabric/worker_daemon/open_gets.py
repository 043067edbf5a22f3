"""A worker's open gets: what is asked for, on its way, here, asked for again. Pure.

A get of a model that is cut into n shards is n gets with consecutive counters, part i of get g with counter g * n + i,
which fill n ranges of one image. It is delivered when all are here with one version. Parts of different versions never
are: whatever breaks or differs, all parts are asked for again once none of them is on its way.

A model that was asked for after a push is delivered once that push has its outcome and only if it holds it: a server
that lost the update's connection may have served without it. Else it is fetched again, as is a model of an earlier
server epoch than one that came while it waited, or was on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from mlfabric.protocol import Committed, Fetch, GetId, GetRequested, ModelVersion, Outcome, UpdateId
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.retry_pause import pause_ns

__all__ = ["Getting"]


@dataclass(slots=True)
class _Part:
    """One part of a get.

    Args:
        running: the attempt under way, or the one that brought what is here.
        newer: a plan that came meanwhile.
        arrived: the version that is here, and waits for the other parts or for an outcome.
        broke: it is neither here nor on its way, and is to be asked for again.
        is_outdated: what is on its way does not count.
    """

    request: GetRequested
    running: Fetch | None = None
    newer: Fetch | None = None
    arrived: ModelVersion | None = None
    broke: bool = False
    is_outdated: bool = False

    @property
    def is_on_its_way(self) -> bool:
        """Tell whether an attempt is under way."""
        return self.running is not None and self.arrived is None

    def take(self, plan: Fetch) -> Fetch | None:
        """Take a plan; return it if it is to be started now."""
        if self.running is None:
            self.running, self.broke = plan, False
            return plan
        if plan.ticket != self.running.ticket:
            self.newer = plan
        return None

    def next_plan(self) -> Fetch | None:
        """End what runs; return a newer plan to start now, if there is one."""
        self.arrived, self.running, self.newer = None, self.newer, None
        self.is_outdated, self.broke = False, self.running is None
        return self.running


@dataclass(slots=True)
class _Get:
    """All parts of a get."""

    parts: dict[GetId, _Part] = field(default_factory=dict)
    breaks: int = 0
    ask_again_ns: int | None = None

    @property
    def first(self) -> GetRequested:
        """Return the request of the first part."""
        return next(iter(self.parts.values())).request

    def is_any_on_its_way(self) -> bool:
        """Tell whether an attempt at some part is under way."""
        return any(part.is_on_its_way for part in self.parts.values())

    def versions(self) -> set[ModelVersion | None]:
        """Return which versions are here; None for parts that are not."""
        return {part.arrived for part in self.parts.values()}

    def pause(self, now_ns: int) -> None:
        """Ask again after a pause if something broke, unless something else is still on its way."""
        if self.is_any_on_its_way():
            self.ask_again_ns = None
        elif self.ask_again_ns is None and any(part.broke for part in self.parts.values()):
            self.ask_again_ns = now_ns + pause_ns(max(0, self.breaks - 1))

    def ask(self) -> Iterator[act.Action]:
        """Ask for all parts, from the beginning."""
        self.ask_again_ns = None
        for get, part in self.parts.items():
            self.parts[get] = _Part(part.request)
            yield act.Request(event=part.request)

    def raise_min(self, version: ModelVersion) -> None:
        """Want at least this version."""
        for part in self.parts.values():
            if part.request.min_version < version:
                part.request = replace(part.request, min_version=version)


class Getting:
    """Every get of one worker that is not delivered.

    No model is delivered of a lesser server epoch than one that the worker knows of. Only the scheduler can say that it
    is served under a lesser one: what was made under the greater one is lost then.

    Args:
        shards: how many parts its model has, >= 1.
        is_push_open: tells whether the push that an update is part of has no outcome.

    Attributes:
        server_epoch: under which the model is served, as the worker was told last; 0 before.
        known: the newest version of which it was told, or which it has seen.
    """

    def __init__(self, shards: int, is_push_open: Callable[[UpdateId], bool]) -> None:
        self._shards = shards
        self._is_push_open = is_push_open
        self.gets: dict[GetId, _Get] = {}
        self.server_epoch = 0
        self.known = ModelVersion(0, 0)

    def next_wakeup_ns(self) -> int | None:
        """Return when something is to be asked for again, or None."""
        return min([g.ask_again_ns for g in self.gets.values() if g.ask_again_ns is not None], default=None)

    def requests(self) -> tuple[GetRequested, ...]:
        """Return what is asked for, as a scheduler needs it that knows nothing."""
        return tuple(part.request for get in self.gets.values() if self._is_wanted(get) for part in get.parts.values())

    def _is_wanted(self, get: _Get) -> bool:
        """Tell whether a get is to be announced; of one that is cut, no part may still be on its way."""
        return None in get.versions() and (self._shards == 1 or not get.is_any_on_its_way())

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for get in self.gets.values():
            assert get.ask_again_ns is None or not get.is_any_on_its_way(), f"{get} is asked for while it runs"
            for part in get.parts.values():
                assert part.newer is None or part.running is not None, f"{part} has a newer plan but none running"
                assert not (part.broke and part.running), f"{part} broke and runs"

    def call(self, request: GetRequested) -> Iterator[act.Action]:
        """Take a request from the worker."""
        self.gets.setdefault(self._first(request.get), _Get()).parts[request.get] = _Part(request)
        yield act.Request(event=request)

    def plan(self, plan: Fetch) -> Iterator[act.Action]:
        """Carry out a plan, once what runs has ended."""
        get, part = self._find(plan.get)
        if get is None or part is None:
            return
        if start := part.take(plan):
            get.ask_again_ns = None
            yield act.StartFetch(plan=start)

    def received(self, event: act.ModelReceived, now_ns: int) -> Iterator[act.Action]:
        """Note that a part is here."""
        get, part = self._find(event.get)
        if get is None or part is None:
            return
        if self._is_past(event.version):
            get.raise_min(self._least)
        if part.is_outdated or self._is_past(event.version):
            yield from self._end(get, part, now_ns)
            return
        self.know(event.version)
        part.arrived = event.version
        yield from self._deliver(get)
        get.pause(now_ns)

    @property
    def _least(self) -> ModelVersion:
        """The least version that may be delivered."""
        return ModelVersion(self.known.epoch, 0)

    def _is_past(self, version: ModelVersion) -> bool:
        """Tell whether a version is of before what the worker was told of, or has."""
        return version < self._least

    def know(self, version: ModelVersion) -> None:
        """Note a version of which the worker is told, or which it has seen."""
        self.known = max(self.known, version)

    def broken(self, event: act.FetchBroken, now_ns: int) -> Iterator[act.Action]:
        """Carry out a newer plan, or ask again later."""
        get, part = self._find(event.get)
        if get is None or part is None or not part.is_on_its_way:
            return
        assert part.running is not None, "it is on its way"
        if part.running.ticket == event.ticket:
            get.breaks += 1
            yield from self._end(get, part, now_ns)

    def _end(self, get: _Get, part: _Part, now_ns: int) -> Iterator[act.Action]:
        if start := part.next_plan():
            yield act.StartFetch(plan=start)
        get.pause(now_ns)

    def begin_term(self) -> None:
        """Let nothing of a get count that is cut and not all here: all of it is asked for again."""
        for get in self.gets.values():
            get.ask_again_ns = None
            if self._shards == 1 or None not in get.versions():
                continue
            runs = get.is_any_on_its_way()
            for name, part in get.parts.items():
                if part.is_on_its_way:
                    part.is_outdated, part.newer = True, None
                else:
                    get.parts[name] = _Part(part.request, broke=runs)

    def serves(self, server_epoch: int) -> bool:
        """Note under which epoch the model is served; tell whether the worker was told of another one before."""
        former, self.server_epoch = self.server_epoch, server_epoch
        if server_epoch != self.known.epoch:
            self.known = ModelVersion(server_epoch, 0)
        return former not in (0, server_epoch)

    def begin_anew(self) -> None:
        """Let nothing that is here or on its way count any more: another process is the server now."""
        for get in self.gets.values():
            get.ask_again_ns = None
            for name, part in get.parts.items():
                request = part.request
                if request.min_version > self.known:
                    request = replace(request, min_version=self.known)
                get.parts[name] = _Part(request)

    def tick(self, now_ns: int) -> Iterator[act.Action]:
        """Ask again for what is due."""
        for get in self.gets.values():
            if get.ask_again_ns is not None and get.ask_again_ns <= now_ns:
                yield from get.ask()

    def settled(self, update: UpdateId, outcome: Outcome) -> Iterator[act.Action]:
        """Deliver what waited for a push; ``update`` is its first part."""
        if isinstance(outcome, Committed):
            self.know(outcome.version)
        for get in [g for g in self.gets.values() if g.first.after_update == update]:
            if isinstance(outcome, Committed):
                get.raise_min(outcome.version)
            yield from self._deliver(get)

    def _deliver(self, get: _Get) -> Iterator[act.Action]:
        """Hand over a model that is here if it is one version and what was asked for; else fetch it again."""
        request, versions = get.first, get.versions()
        if len(get.parts) < self._shards or (request.after_update and self._is_push_open(request.after_update)):
            return
        version = max((v for v in versions if v is not None), default=ModelVersion(0, 0))
        if versions == {version} and version.reaches(request.min_version) and not self._is_past(version):
            del self.gets[request.get]
            yield act.Deliver(get=request.get, version=version)
            return
        for part in get.parts.values():
            if part.arrived is not None and part.newer is not None and (start := part.next_plan()):
                get.ask_again_ns = None
                yield act.StartFetch(plan=start)
        if None not in get.versions():
            get.raise_min(max(version, self._least))
            yield from get.ask()

    def _first(self, get: GetId) -> GetId:
        place = get.counter % self._shards
        return GetId(get.worker, get.incarnation, get.counter - place) if place else get

    def _find(self, name: GetId) -> tuple[_Get | None, _Part | None]:
        get = self.gets.get(self._first(name))
        return get, get.parts.get(name) if get else None
