"""A worker daemon in a thread of the training process.

The training thread and the daemon share memory, so tensors are handed over as they are. All calls here are for training
threads; each crosses into the daemon's event loop once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from mlfabric.config import WorkerSettings
from mlfabric.errors import FabricClosedError
from mlfabric.model.samples import Samples
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    JobClaim,
    ModelVersion,
    Outcome,
    SamplesGranted,
    SamplesWanted,
    SetThreshold,
    Welcome,
)
from mlfabric.shell.forking import IN_A_COPY, tell_copies
from mlfabric.telemetry import WorkerMetrics
from mlfabric.telemetry.otlp import tracer_of
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.daemon import WorkerDaemon
from mlfabric.worker_daemon.data_attempts import GivenUpError, Growth, Parcel
from mlfabric.worker_daemon.metrics_page import SharedPage
from mlfabric.worker_daemon.observations import Observer
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult
from mlfabric.worker_daemon.spans import moments

__all__ = ["CountFuture", "DrawFuture", "OutcomeFuture", "ThreadDaemon", "VersionFuture"]

T = TypeVar("T")
OutcomeFuture = concurrent.futures.Future[Outcome]
VersionFuture = concurrent.futures.Future[ModelVersion]
CountFuture = concurrent.futures.Future[int]
DrawFuture = concurrent.futures.Future[SamplesGranted]


class ThreadDaemon:
    """A daemon in a thread of this process.

    Args:
        settings, spec, initial, job, observer, inbox: see ``WorkerDaemon``.

    Raises:
        UsageError: the metrics port is in use.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        spec: ModelSpec,
        initial: Parcel | None,
        job: JobClaim,
        observer: Observer,
        inbox: RoundInbox | None = None,
    ) -> None:
        port = settings.metrics_port
        self._page = None if port is None else SharedPage.at(settings.tcp, port)
        metrics = WorkerMetrics() if self._page is None else self._page.metrics
        self._tracer = tracer_of("worker", settings.name, moments)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"mlfabric {settings.name}", daemon=True)
        self._thread.start()

        async def make() -> WorkerDaemon:
            return WorkerDaemon(settings, spec, initial, metrics, job, observer, inbox, tracer=self._tracer)

        self._daemon = self._call(make()).result()
        self._left = False
        self._why_closed = "this worker has left the fabric; register again for more"
        tell_copies(self)
        self._image: memoryview = np.empty(spec.layout.size_bytes if spec.has_server else 0, dtype=np.uint8).data

    def buffer(self) -> memoryview:
        """Return the memory that models are received in: one image of the model, always the same."""
        return self._image

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def join(self) -> Welcome:
        """Join the fabric; waits for the scheduler and a server.

        Raises:
            RefusedError: the scheduler refuses this worker or its model.
        """
        joined = False
        try:
            welcome = self._call(self._daemon.start()).result()
            joined = True
            return welcome
        finally:
            if not joined:
                self.leave("it could not join", 0.0)

    def push(
        self, parcel: Parcel, norm: float, computed_from: ModelVersion, samples: Samples = ()
    ) -> tuple[OutcomeFuture, VersionFuture]:
        """Push an update and get the model that follows it into :meth:`buffer`, in one round trip.

        Args:
            samples: what the update was computed from, if that is known.
        """
        self._check_open()
        outcome, version = OutcomeFuture(), VersionFuture()

        def ask() -> None:
            _pass_on(self._daemon.calls.push(parcel, norm, computed_from, samples), outcome)
            _pass_on(self._daemon.calls.get(self._image, ModelVersion(0, 0), after_push=True), version)

        self._begin(ask, outcome, version)  # in one turn of the daemon's loop, so that one message carries both
        return outcome, version

    def drop_samples(self, samples: Samples) -> None:
        """Say that an update was computed from these samples and will not be pushed."""
        self._check_open()
        self._begin(lambda: self._daemon.calls.drop_samples(samples))

    def draw(self, wanted: SamplesWanted) -> DrawFuture:
        """Draw samples that nobody else has, one wish at a time; ``wanted`` needs no worker, model and serial."""
        return self._ask(lambda: self._daemon.calls.draw(wanted))

    def grown(self, growth: Growth | GradientGrowth, ready_bytes: int) -> None:
        """Say how much there is of an update or a gradient that was handed over before it was complete."""
        self._begin(lambda: growth.progress.advance(ready_bytes))

    def give_up(self, growth: Growth, reason: GivenUpError) -> None:
        """Say that such an update will never be complete, or must not be used."""
        self._begin(lambda: growth.progress.fail(reason))

    def get(self, min_version: ModelVersion) -> VersionFuture:
        """Get the model into :meth:`buffer`, at ``min_version`` or newer."""
        return self._ask(lambda: self._daemon.calls.get(self._image, min_version))

    def reduce(self, contribution: Contribution) -> CountFuture:
        """Take part in an AllReduce; gives how many took part once the result is in its buffer, with all of them."""
        return self._ask(lambda: self._daemon.offer(contribution))

    def offer(self, contribution: Contribution) -> concurrent.futures.Future[RoundResult | act.PassOver]:
        """Offer gradients for a round that this worker applies by itself."""
        return self._ask(lambda: self._daemon.offer(contribution))

    @property
    def threshold(self) -> SetThreshold | None:
        """The last threshold that the scheduler has set for steps; None before."""
        return self._daemon.threshold

    def steps_timed(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int]) -> None:
        """Say what steps have taken; see :class:`mlfabric.protocol.StepsTimed`."""
        self._begin(lambda: self._daemon.steps_timed(micro_batches, computed_ns, rest_ns))

    def withdraw(self, growth: GradientGrowth, reason: str) -> None:
        """Say that a gradient which is offered while it is made is to be in no round."""
        self._begin(lambda: self._daemon.withdraw(growth, reason))

    def applied(self, version: int) -> None:
        """Say that all rounds up to this version are applied."""
        self._begin(lambda: self._daemon.applied(version))

    def _ask(self, ask: Callable[[], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Ask for something in the daemon's thread; if that cannot be done, the daemon's end is the answer."""
        self._check_open()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._begin(lambda: _pass_on(ask(), answer), answer)
        return answer

    def _begin(self, call: Callable[[], None], *answers: concurrent.futures.Future[Any]) -> None:
        """Make a call in the daemon's thread; if it cannot be made, the daemon ends, and the reason is every answer."""
        failure = self._daemon.failure

        def guarded() -> None:
            made = False
            with failure.guard():
                call()
                made = True
            for answer in answers if not made else ():
                answer.set_exception(failure.error)

        self._loop.call_soon_threadsafe(guarded)

    def leave(self, detail: str, drain_s: float) -> None:
        """Wait for open pushes for at most ``drain_s`` and leave the fabric; a second call does nothing."""
        if self._left:
            return
        self._left = True
        self._call(self._daemon.close(detail, drain_s)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if self._tracer is not None:
            self._tracer.close()
        if self._page is not None:
            self._page.close()

    def in_a_copy(self) -> None:
        """Be closed: the thread is not in this process."""
        self._left, self._why_closed = True, IN_A_COPY

    def _check_open(self) -> None:
        if self._left:
            raise FabricClosedError(self._why_closed)


def _pass_on(asked: asyncio.Future[T], to: concurrent.futures.Future[T]) -> None:
    asked.add_done_callback(lambda done: _copy(done, to))


def _copy(done: asyncio.Future[T], to: concurrent.futures.Future[T]) -> None:
    if to.done():  # whoever asked has cancelled it
        return
    if (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())
