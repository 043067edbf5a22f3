"""Training with a server in virtual time: workers compute, push and get; what is due when; methods but AllReduce."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from mlfabric.model.specs import Method
from mlfabric.twin.groups import Update
from mlfabric.twin.pushing import Hearers, Pushing
from mlfabric.twin.run_world import Progress, RunWorld
from mlfabric.twin.serving import Serving

__all__ = ["Training"]


class _Worker:
    """Which step a worker is at, since when it computes or waits, and which model it has, that of which step's get."""

    __slots__ = ("computed_ns", "got", "is_idle", "step", "version")

    def __init__(self) -> None:
        self.step, self.got, self.version = 0, -1, 0
        self.computed_ns, self.is_idle = 0.0, False


class Training:
    """One run."""

    def __init__(self, world: RunWorld) -> None:
        self._world, self._cluster = world, world.cluster
        self._progress: Progress | None = None
        self._workers = [_Worker() for _ in world.cluster.workers]
        self._in_flight = 1 if self._cluster.method is Method.SYNCHRONOUS else self._cluster.in_flight
        self._slack = self._cluster.slack if self._cluster.method is Method.STALE_SYNCHRONOUS else math.inf
        self._pushing = Pushing(
            world,
            Hearers(
                settled=self._settled,
                planned=self._ready,
                alarm=lambda at_ns, group: self._at(at_ns, self._pushing.overdue, group),
                again=lambda at_ns, update: self._at(at_ns, self._pushing.ask, update),
            ),
        )
        self._serving = Serving(world, self._pushing, self._answered)
        self._agenda: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._requests: list[tuple[float, int, Update]] = []
        self._numbers = count()
        self._held: dict[Update, None] = {}
        self._clocks = [0] * len(self._workers)
        self._slowest = self._open = 0
        self._left = self._total = len(self._workers) * self._cluster.iterations

    def run(self, progress: Progress | None) -> None:
        """Go on until every worker has made all its steps, and all updates are settled."""
        world, self._progress = self._world, progress
        for number in range(len(self._workers)):
            self._begin(number, 0.0)
        while self._left or self._open:
            self._take_requests(world.now_ns)
            request_ns = push_ns = get_ns = math.inf
            free_ns = world.free_ns if world.free_ns > world.now_ns else math.inf
            if free_ns == math.inf:  # while the scheduler is busy nothing that is due is done, nor looked for
                push_ns, get_ns = self._pushing.due_ns(), self._serving.due_ns()
                request_ns = self._requests[0][0] if self._requests else math.inf
            agenda_ns = self._agenda[0][0] if self._agenda else math.inf
            until_ns = min(agenda_ns, world.next_news_ns, push_ns, get_ns, free_ns, request_ns)
            if until_ns > world.now_ns:
                world.run(until_ns)
                if self._arrived() or until_ns > world.now_ns:
                    continue
            if agenda_ns <= world.now_ns:
                _, _, call, what = heappop(self._agenda)
                call(what)
            elif world.next_news_ns <= world.now_ns:
                self._learn()
            elif push_ns <= world.now_ns:
                self._pushing.plan()
            elif get_ns <= world.now_ns:
                self._serving.plan()

    def _at(self, at_ns: float, call: Callable[[Any], None], what: object) -> None:
        heappush(self._agenda, (at_ns, next(self._numbers), call, what))

    def _take_requests(self, until_ns: float) -> None:
        """Take in what workers have asked for until an instant: it may lie back, nothing came of it before."""
        requests = self._requests
        while requests and requests[0][0] <= until_ns:
            at_ns, _, update = heappop(requests)
            self._push(update, at_ns)

    def _learn(self) -> None:
        changed = self._world.learn()
        if changed.any():
            self._pushing.links_changed()
            self._serving.links_changed()

    def _arrived(self) -> bool:
        """Tell whoever is concerned of all that has arrived; return whether anything has."""
        numbers = self._world.flows.arrived()
        if not numbers:
            return False
        for number, began_ns, ended_ns in zip(numbers, *self._world.flows.spans_ns(numbers), strict=True):
            if self._requests and self._requests[0][0] <= ended_ns:
                self._take_requests(ended_ns)
            if not self._pushing.arrived(number, began_ns, ended_ns):
                self._serving.arrived(number, began_ns, ended_ns)
        self._world.passed(numbers)
        self._world.flows.free(numbers)
        return True

    # Workers

    def _begin(self, number: int, at_ns: float) -> None:
        """Let a worker compute its next step with the newest model that it has."""
        worker, world = self._workers[number], self._world
        worker.is_idle = False
        worker.computed_ns = at_ns + world.times.of(number, worker.step)
        world.record.span(number, "compute", at_ns, worker.computed_ns)
        update = Update(number, worker.step, worker.version)
        heappush(self._requests, (worker.computed_ns + world.control_ns, next(self._numbers), update))

    def _push(self, update: Update, at_ns: float) -> None:
        """Take in an update that came at an instant; its worker has gone on meanwhile, unless it waits for a model."""
        worker = self._workers[update.worker]
        self._world.record.pushed[update.worker] += 1
        self._open += 1
        self._pushing.ask_first(update, at_ns)
        worker.is_idle = True
        self._go_on(update.worker, worker.computed_ns)

    def _go_on(self, number: int, at_ns: float) -> None:
        """Begin the next step if the last one is computed and few enough models are on their way."""
        worker = self._workers[number]
        if not worker.is_idle or worker.got < worker.step - self._in_flight + 1:
            return
        record = self._world.record
        if record.wants_spans(worker.computed_ns):
            record.span(number, "wait", worker.computed_ns, at_ns)
        record.ended_ns[number, worker.step] = at_ns
        worker.step += 1
        self._left -= 1
        if self._progress is not None:
            self._progress(self._total - self._left, self._total)
        if worker.step < self._cluster.iterations:
            self._begin(number, at_ns)
        else:
            worker.is_idle = False
            self._leave(number)

    def _answered(self, get: Update, version: int, at_ns: float) -> None:
        worker = self._workers[get.worker]
        worker.got, worker.version = max(worker.got, get.step), max(worker.version, version)
        if worker.step + 1 < self._cluster.iterations:
            self._pushing.served(get.worker, at_ns)
        self._go_on(get.worker, at_ns)

    # Who is ahead

    def _ready(self, get: Update) -> None:
        """Have a get answered, unless its worker is too far ahead of the slowest."""
        if get.step + 1 - self._slowest > self._slack:
            self._held[get] = None
        else:
            self._serving.ask(get)

    def _settled(self, update: Update) -> None:
        self._open -= 1
        self._serving.settled(update)
        if self._slack < math.inf:
            self._clocks[update.worker] += 1
            self._see_slowest()

    def _leave(self, number: int) -> None:
        if self._slack < math.inf:
            self._clocks[number] = self._cluster.iterations + 1
            self._see_slowest()

    def _see_slowest(self) -> None:
        slowest = min(self._clocks)
        if slowest > self._slowest:
            self._slowest = slowest
            held, self._held = self._held, {}
            for get in held:
                self._ready(get)
