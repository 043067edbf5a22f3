"""A scheduler process: term, gRPC server with health and reflection, metrics page, start and orderly stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mlfabric import clock
from mlfabric.errors import FabricError, UsageError
from mlfabric.model.specs import Term
from mlfabric.planning import is_planner_compiled
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.journal import Journal
from mlfabric.scheduler.limits import Limits
from mlfabric.scheduler.members.pulse_socket import Datagrams, listen_for_pulses
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.planner_warmup import warm_planner
from mlfabric.scheduler.service import FabricService
from mlfabric.scheduler.spans import moments
from mlfabric.scheduler.state import SchedulerState
from mlfabric.scheduler.status import describe
from mlfabric.security import LOOPBACK, Security, is_loopback
from mlfabric.security.secure_grpc import add_port
from mlfabric.shell.control import Decoding, server_limits
from mlfabric.shell.kept_numbers import next_number
from mlfabric.status_page import StatusPages
from mlfabric.telemetry import MetricsPage, SchedulerMetrics
from mlfabric.telemetry.history import Entry, History
from mlfabric.telemetry.otlp import tracer_of
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from mlfabric.version import __version__
from mlfabric.wire.plain import as_plain

__all__ = ["SchedulerOptions", "SchedulerRunner", "next_term"]

log = logging.getLogger("mlfabric.scheduler")
SURVEY_S = 1.0
GRACE_S = 0.5
STOOD_STILL_S = 3.0
"""A scheduler that did nothing for so long may have been succeeded meanwhile."""
PORT_WITHIN_S = 5.0
LOOK_AGAIN_S = 0.02
ANSWERED_WITHIN_S = 2.0
RECORDED_EVERY = 10
"""After so many surveys what is recorded is on disk."""
YOUNG_OBJECTS = 10_000
SPARE_CALLS = 64
"""So many connections and calls there may be beyond one session and one call of each member: for people and tools."""


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler runs.

    Args:
        bind: address to listen on.
        advertised: name under which members reach it; "" means ``bind``.
        port: 0 takes any free one.
        metrics_port: of /metrics and the status page; 0 any free one, None neither.
        batch_window_s: see ``SchedulerConfig``; >= 0.
        answer_s: a member whose process answers nothing for so long, though its connection stands, counts as silent; it
            is asked whenever it has said nothing for half of it. > 0.
        silence_s: how long a member may be silent before it counts as left; > 0.
        round_patience_s: see ``SchedulerConfig``; >= 0.
        default_bps: rate of a link that nobody stated and nobody measured; > 0.
        limits: how much it takes in.
        history: folder in which everything is written down that the status page shows; None for nowhere.
        state_dir: where the term is kept; None derives it from the time of day, and from what members have seen.
        security: of all its connections.
    """

    bind: str = "127.0.0.1"
    advertised: str = ""
    port: int = 50061
    metrics_port: int | None = None
    batch_window_s: float = 0.1
    answer_s: float = 10.0
    silence_s: float = 10.0
    round_patience_s: float = 1.0
    default_bps: int = 10_000_000_000
    limits: Limits = field(default_factory=Limits)
    history: Path | None = None
    state_dir: Path | None = None
    security: Security = LOOPBACK

    def __post_init__(self) -> None:
        checks = [
            ("port", self.port, 0 <= self.port < 1 << 16, "0 to 65535"),
            ("batch_window_s", self.batch_window_s, 0 <= self.batch_window_s <= 60, "0 to 60"),
            ("answer_s", self.answer_s, self.answer_s > 0, "> 0"),
            ("silence_s", self.silence_s, self.silence_s > 0, "> 0"),
            ("round_patience_s", self.round_patience_s, self.round_patience_s >= 0, "0 or more"),
            ("default_bps", self.default_bps, self.default_bps > 0, "> 0"),
        ]
        for name, value, good, allowed in checks:
            if not good:
                raise UsageError(f"scheduler: {name}={value!r}; allowed: {allowed}")


def next_term(state_dir: Path | None, seen: int = 0) -> int:
    """Return a term greater than that of any scheduler before on this state directory, and keep it there.

    The time of day in milliseconds is the least, so that without a directory a restart is newer as well.

    Args:
        state_dir: see ``SchedulerOptions``.
        seen: a term that members have seen; the new one is greater.

    Raises:
        UsageError: the directory cannot be written or holds something else.
    """
    least = max(clock.wall_ns() // 1_000_000, seen + 1)
    if state_dir is None:
        return least
    try:
        return next_number(state_dir / "epoch", least)  # named so since its first release
    except FabricError as error:
        raise UsageError(
            f"state_dir={str(state_dir)!r}: {error}; give a directory that this process may write"
        ) from error


def allow_connections() -> None:
    """Let this process have as many connections as it may: each member has one, and 1,024 is a common first limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def rare_collections() -> Iterator[None]:
    """Keep the garbage collector off what was loaded at the start: a pass over all of it would stop every decision.

    What lives now is never looked at again; new objects are, after more of them than usual. A process that keeps it off
    something already goes on doing so afterwards.
    """
    before, was_off = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_off:
            gc.unfreeze()


def _channel_options(answer_s: float, most_calls: int) -> list[tuple[str, int]]:
    """Return the settings of the members' connections: who answers no ping has lost its stream."""
    half_ms = max(1, round(answer_s * 500))
    return [
        *server_limits(most_calls),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", half_ms),
        ("grpc.keepalive_timeout_ms", half_ms),
        ("grpc.http2.ping_timeout_ms", half_ms),
    ]


class SchedulerRunner:
    """One scheduler process."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        self._instance = secrets.randbits(64)
        self._history = History(folder=options.history)
        has_readers = options.metrics_port is not None or options.history is not None
        journal = Journal(self._history) if has_readers else None
        self._tracer = tracer_of("scheduler", "scheduler", moments)
        self._meter = Meter(SchedulerMetrics(), __version__, journal, self._tracer.see if self._tracer else None)
        self._state: SchedulerState

    def _renew(self, seen: int = 0) -> SchedulerState:
        """Begin with nothing, under a term that is greater than one that members have seen."""
        options = self.options
        config = SchedulerConfig(
            term=Term(next_term(options.state_dir, seen), self._instance),
            ticket_secret=secrets.token_bytes(32),
            batch_window_ns=round(options.batch_window_s * 1e9),
            silence_ns=round(options.silence_s * 1e9),
            round_patience_ns=round(options.round_patience_s * 1e9),
            default_bps=options.default_bps,
            limits=options.limits,
        )
        self._state = SchedulerState(config)
        return self._state

    async def run(
        self, stop: asyncio.Event, ready: Callable[[str], None], begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serve until ``stop`` is set.

        Args:
            ready: called with the address once members can join.
            begin: waited for before a term is taken and anything is listened on; meanwhile everything is loaded.

        Raises:
            UsageError: the port is in use or may not be listened on; the term cannot be kept.
            FencedError: a member has seen a newer scheduler.
            ConfigError: others can reach the address, and there is no TLS.
        """
        # Before there is a server: gRPC's goes on in the background if it was made and never began.
        self.options.security.check(self.options.bind, "--bind")
        allow_connections()
        stands_by = begin is not None
        if begin is not None and not is_planner_compiled():  # whoever serves now has it compiled
            await begin()
            begin = None
        async with warm_planner():
            if begin is not None:
                log.info("standing by")
                await begin()
            with rare_collections():
                await self._serve(stop, ready, PORT_WITHIN_S if stands_by else 0.0)

    async def _serve(self, stop: asyncio.Event, ready: Callable[[str], None], port_within_s: float) -> None:
        most_calls = 2 * self.options.limits.members + SPARE_CALLS
        options = _channel_options(self.options.answer_s, most_calls)
        server = grpc.aio.server(interceptors=[Decoding()], options=options, maximum_concurrent_rpcs=most_calls)
        port = await self._listen(server, port_within_s)
        await self.serve(stop, ready, server, port, listen_for_pulses(self.options.bind, port))

    async def serve(
        self,
        stop: asyncio.Event,
        ready: Callable[[str], None],
        server: grpc.aio.Server,
        port: int,
        pulses: Datagrams | None,
    ) -> None:
        """Serve until ``stop`` is set, at a server that has its port and has not begun.

        Args:
            ready: called with the address once members can join.
            pulses: where signs of life arrive; None hears none.

        Raises:
            UsageError, FencedError: as for :meth:`run`.
        """
        service = FabricService(self._renew(), self._meter, self._renew, pulses)
        fabric_pb2_grpc.add_FabricServiceServicer_to_server(service, server)
        status = self._add_standard_services(server)
        page = self._page()
        await server.start()
        address = f"{self.options.advertised or self.options.bind}:{port}"
        log.info("scheduler at %s, term %s", address, self._state.context.config.term.number)
        ready(address)
        survey = asyncio.create_task(self._survey(service))
        stopped = asyncio.create_task(stop.wait())
        try:
            ends: list[asyncio.Future[Any]] = [stopped, service.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if service.failed.done():
                service.failed.result()
        finally:
            stopped.cancel()
            survey.cancel()
            await status.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
            service.close()
            await server.stop(GRACE_S)
            if page is not None:
                page.stop()
            self._record()
            self._history.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    def _add_standard_services(self, server: grpc.aio.Server) -> health.aio.HealthServicer:
        status = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, server)
        name = fabric_pb2.DESCRIPTOR.services_by_name["FabricService"].full_name
        reflection.enable_server_reflection((name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return status

    async def _listen(self, server: grpc.aio.Server, within_s: float) -> int:
        """Listen, and return the port; who takes over waits until the kernel has freed that of the one before."""
        where = f"{self.options.bind}:{self.options.port}"
        until_s = clock.monotonic_s() + within_s
        while True:
            try:
                port = add_port(server, where, self.options.security)
                cause = None
            except RuntimeError as error:
                port, cause = 0, error
            if port:
                return port
            if clock.monotonic_s() >= until_s:
                raise UsageError(f"cannot listen on {where}: in use or not allowed; choose another port") from cause
            await asyncio.sleep(LOOK_AGAIN_S)

    def _page(self) -> MetricsPage | None:
        """Serve what Prometheus scrapes and what people look at, on a thread, which asks this loop for the state."""
        options, journal, loop = self.options, self._meter.journal, asyncio.get_running_loop()
        if options.metrics_port is None or journal is None:
            return None

        async def look() -> tuple[fabric_pb2.GetStatusResponse, list[Entry]]:
            return self._described(), journal.open(clock.monotonic_ns())

        async def ask() -> dict[str, Any]:
            looking = asyncio.run_coroutine_threadsafe(look(), loop)
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                status, still_open = await asyncio.wrap_future(looking)
            return {"status": as_plain(status), "open": still_open}

        token = "" if is_loopback(options.bind) else secrets.token_urlsafe()
        pages = StatusPages(self._history, ask, token)
        page = MetricsPage(
            self._meter.metrics.registry, options.bind, options.metrics_port, options.security, pages.add_to
        )
        scheme, host = "http" if options.security.certificate is None else "https", options.advertised or options.bind
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{page.start()}/"
        self._meter.page = f"{address}?token={token}" if token else address
        log.info("status page at %s, metrics at %smetrics", self._meter.page, address)
        return page

    def _record(self) -> None:
        """Write down how things are, where that is wanted."""
        if self._history.is_recorded:
            self._history.record(as_plain(self._described()))

    def _described(self) -> fabric_pb2.GetStatusResponse:
        """Return the status for whoever sees it on the page or in a report, without the page's own token."""
        status = describe(self._state, self._meter, clock.monotonic_ns())
        status.ClearField("page")
        return status

    async def _survey(self, service: FabricService) -> None:
        for number in count():
            self._meter.survey(self._state)
            if number % RECORDED_EVERY == 0:
                self._record()
            began_s = clock.monotonic_s()
            await asyncio.sleep(SURVEY_S)
            stood_still_s = clock.monotonic_s() - began_s - SURVEY_S
            if stood_still_s > STOOD_STILL_S:
                service.recall(f"this process stood still for {stood_still_s:.1f} s and may have been succeeded")
