"""The monitor's shell: takes transfer records, watches a network interface, reports estimates. Judges nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mlfabric import clock, wire
from mlfabric.channels.interfaces import interface_of
from mlfabric.errors import ConfigError, UsageError
from mlfabric.fail_stop import FailStop
from mlfabric.model.specs import Member, Role
from mlfabric.monitor.estimate import Estimate, EstimatorOptions, Link, LinkEstimator, Transfer
from mlfabric.monitor.news import News
from mlfabric.monitor.nic import NicSample, NicSampler
from mlfabric.network import MAX_RATE_BPS
from mlfabric.protocol import LinkRate, LinksReported, MemberEvent, Welcome
from mlfabric.security import CLIENT, LOOPBACK, Identity, Security
from mlfabric.security.secure_grpc import add_port, caller_of
from mlfabric.security.tokens import same_token, token_at
from mlfabric.shell.control import Decoding, server_limits
from mlfabric.shell.session import SchedulerSession, SessionCallbacks
from mlfabric.telemetry import MetricsPage, MonitorMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, monitor_pb2, monitor_pb2_grpc

__all__ = ["MonitorConfig", "MonitorService"]

log = logging.getLogger("mlfabric.monitor")
STOP_WITHIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """How a monitor runs.

    Args:
        scheduler: ``host:port`` of the scheduler.
        name, host: see ``Member``.
        bind: address to listen on; "0.0.0.0" or "::" listens on all, and wants ``advertised``.
        advertised: name or address under which members reach it; "" means ``bind``.
        port: to listen on; 0 takes any free one.
        metrics_port: of /metrics; 0 any free one, None no page.
        interface: network interface to watch; "" takes the one that has the advertised address, if any.
        report_interval_s: between reports to the scheduler; > 0.
        half_life_s: see ``EstimatorOptions``.
        up_bps, down_bps: nominal rate of this host's link in bit/s; 0 means unknown.
        software_version: shown on the status page.
        most_hosts: of how many hosts it keeps estimates, > 0; what names more is refused.
        security: of all its connections.
    """

    scheduler: str
    name: str = "monitor-0"
    host: str = "localhost"
    bind: str = "127.0.0.1"
    advertised: str = ""
    port: int = 0
    metrics_port: int | None = None
    interface: str = ""
    report_interval_s: float = 0.2
    half_life_s: float = 10.0
    up_bps: int = 0
    down_bps: int = 0
    software_version: str = ""
    most_hosts: int = 4096
    security: Security = LOOPBACK

    def __post_init__(self) -> None:
        if self.bind in ("0.0.0.0", "::", "") and not self.advertised:
            raise ConfigError(f"monitor: bind={self.bind!r} wants advertised, the name that members dial; got ''")
        if not (math.isfinite(self.report_interval_s) and self.report_interval_s > 0):
            raise ConfigError(f"monitor: report_interval_s={self.report_interval_s}; allowed: > 0 and finite")
        if self.most_hosts <= 0:
            raise ConfigError(f"monitor: most_hosts={self.most_hosts}; allowed: > 0")
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"monitor: port={self.port}; allowed: 0 to 65535")


class MonitorService:
    """One monitor: ``start``, then ``run_until``, then ``close`` in any case.

    Attributes:
        address: that members report to, once it listens.
        metrics_port: of its page, None without one.
        metrics, estimator: what is shown, and what is known of links.
        failure: why it cannot go on, if so.
    """

    def __init__(self, config: MonitorConfig, metrics: MonitorMetrics | None = None) -> None:
        self.config = config
        self.address = ""
        self.metrics_port: int | None = None
        self.metrics = metrics or MonitorMetrics()
        self.estimator = LinkEstimator(EstimatorOptions(half_life_s=config.half_life_s))
        self.estimator.set_nominal(config.host, config.up_bps, config.down_bps)
        self._news = News()
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._page: MetricsPage | None = None
        self._nic: NicSampler | None = None
        self._session: SchedulerSession | None = None
        self.failure = FailStop()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen, and join the scheduler as soon as it is there.

        Raises:
            UsageError: an address or port cannot be had, or the interface does not exist.
        """
        self._nic = self._watched_nic()
        self._server = await self._serve()
        config = self.config
        if config.metrics_port is not None:
            self._page = MetricsPage(self.metrics.registry, config.bind, config.metrics_port, config.security)
            self.metrics_port = self._page.start()
        log.info("monitor %s at %s", self.config.name, self.address)
        member = Member(
            name=self.config.name,
            role=Role.MONITOR,
            incarnation=clock.wall_ns(),
            host=self.config.host,
            address=self.address,
            up_bps=self.config.up_bps,
            down_bps=self.config.down_bps,
        )
        callbacks = SessionCallbacks(admitted=self._admitted, instructed=lambda _: None)
        self._session = SchedulerSession(self.config.scheduler, member, self._register, callbacks, self.config.security)
        jobs = (self._session.run(), self._report_now_and_again(), self.failure.watch())
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def run_until(self, stop: asyncio.Event) -> None:
        """Measure and report until ``stop`` is set.

        Raises:
            RefusedError: the scheduler refuses this monitor for good.
            Exception: it cannot go on; that has been told.
        """
        assert self._session is not None, "it was started"
        stopped = asyncio.create_task(stop.wait())
        try:
            async with self._session.told_of_failure():
                done, _ = await asyncio.wait([*self._tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stopped.cancel()

    async def close(self) -> None:
        """Say good-bye to the scheduler and stop serving; leaves no task and no port."""
        if self._session is not None:
            await self._session.leave("stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
            await self._server.stop(STOP_WITHIN_S)
        if self._page is not None:
            await asyncio.to_thread(self._page.stop)

    # Serving

    async def _serve(self) -> grpc.aio.Server:
        # Before there is a server: gRPC's goes on in the background if it was made and never began.
        self.config.security.check(self.config.bind, "--bind")
        most = self.config.most_hosts
        server = grpc.aio.server(
            interceptors=[Decoding()], options=server_limits(2 * most), maximum_concurrent_rpcs=2 * most
        )
        monitor_pb2_grpc.add_MonitorServiceServicer_to_server(_Recorder(self), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        name = monitor_pb2.DESCRIPTOR.services_by_name["MonitorService"].full_name
        reflection.enable_server_reflection((name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        port = self._listen(server)
        await server.start()
        self.address = f"{_bracketed(self.config.advertised or self.config.bind)}:{port}"
        return server

    def _listen(self, server: grpc.aio.Server) -> int:
        where = f"{_bracketed(self.config.bind)}:{self.config.port}"
        try:
            return add_port(server, where, self.config.security)
        except RuntimeError as error:
            raise UsageError(f"monitor: cannot listen on {where}: in use or not to be had; choose another") from error

    def _watched_nic(self) -> NicSampler | None:
        interface = self.config.interface or interface_of(self.config.advertised or self.config.bind)
        return NicSampler(interface) if interface else None

    def token_of(self, member: str) -> bytes:
        """Return what a member shows here; empty, which nobody can show, before the scheduler admits this monitor."""
        key = self._session.token if self._session is not None else b""
        return token_at(key, member) if key else b""

    # Reporting

    async def _register(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        assert self._session is not None
        member = wire.to_member(self._session.member, self.config.software_version)
        return (await stub.RegisterAsMonitor(fabric_pb2.RegisterAsMonitorRequest(member=member))).admission

    def _admitted(self, _: Welcome) -> list[MemberEvent]:
        """Report everything anew: this scheduler may know nothing."""
        self._news.clear()
        return []

    async def _report_now_and_again(self) -> None:
        while True:
            now_s = clock.monotonic_s()
            self._look_at_nic()
            estimates = self._estimates(now_s)
            if self._session is not None and self._session.is_open:
                self._report(self._session, estimates, now_s)
            await asyncio.sleep(self.config.report_interval_s)

    def _report(self, session: SchedulerSession, estimates: dict[Link, Estimate], now_s: float) -> None:
        if news := self._news.of(estimates, now_s):
            session.send(self._event(news))
            self._news.reported(news.items(), now_s)

    def _event(self, news: Mapping[Link, Estimate]) -> LinksReported:
        rates = tuple(
            LinkRate(host=link.host, up=link.up, bps=min(found.bps, MAX_RATE_BPS), age_ns=round(found.age_s * 1e9))
            for link, found in news.items()
        )
        return LinksReported(monitor=self.config.name, rates=rates)

    def _estimates(self, now_s: float) -> dict[Link, Estimate]:
        found = {link: self.estimator.estimate(link, now_s) for link in self.estimator.links}
        known = {link: estimate for link, estimate in found.items() if estimate is not None and estimate.bps > 0}
        for link, estimate in known.items():
            self.metrics.link(link.host, link.up, estimate.bps, estimate.age_s, estimate.source.value)
        return known

    def _look_at_nic(self) -> None:
        sample = self._nic.sample() if self._nic is not None else None
        if sample is None or self._nic is None:
            return
        self.metrics.nic(self._nic.interface, sample.sent_bytes, sample.received_bytes)
        self._observe_nic(sample)

    def _observe_nic(self, sample: NicSample) -> None:
        for up, bps in ((True, sample.up_bps), (False, sample.down_bps)):
            link = Link(self.config.host, up)
            self.estimator.observe_nic(link, bps, sample.speed_bps, sample.started_s, sample.ended_s)


class _Recorder(monitor_pb2_grpc.MonitorServiceServicer):
    """Takes transfer records.

    Args:
        monitor: whose estimator hears of them, and which ends if a report cannot be taken in.
    """

    def __init__(self, monitor: MonitorService) -> None:
        self._monitor = monitor
        self._most_hosts = monitor.config.most_hosts
        self._hosts: dict[str, str] = {}
        self._named: set[str] = set()

    async def RecordTransfers(
        self,
        request: monitor_pb2.RecordTransfersRequest,
        context: grpc.aio.ServicerContext[monitor_pb2.RecordTransfersRequest, monitor_pb2.RecordTransfersResponse],
    ) -> monitor_pb2.RecordTransfersResponse:
        """Take in a member's finished transfers; all of them or, if one is malformed, none."""
        now_s = clock.monotonic_s()
        if not same_token(self._monitor.token_of(request.member), request.token):
            detail = f"a report of {request.member!r} without the token that the scheduler gave it for this monitor"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, detail)
        try:
            _check_caller(caller_of(context), request.member, request.succeeds)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        try:
            found = [from_record(record, now_s, self._hosts) for record in request.records]
        except UsageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if excess := self._note_hosts(request, found):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, excess)
        with self._monitor.failure.guard():
            self._take_in(request, found, now_s)
        return monitor_pb2.RecordTransfersResponse()

    def _take_in(
        self, request: monitor_pb2.RecordTransfersRequest, found: Sequence[Transfer | None], now_s: float
    ) -> None:
        if request.host:
            self._hosts |= {request.host: request.host, request.member: request.host}
            self._monitor.estimator.set_nominal(request.host, request.up_bps, request.down_bps)
        self._monitor.estimator.observe([transfer for transfer in found if transfer is not None], now_s)
        self._monitor.metrics.records(len(found))

    def _note_hosts(self, request: monitor_pb2.RecordTransfersRequest, found: Sequence[Transfer | None]) -> str:
        """Remember who is named; say what would be too many: whoever reports may name any host."""
        named = {host for transfer in found if transfer is not None for host in (transfer.from_host, transfer.to_host)}
        new = (named | {request.host}) - self._named
        if len(self._named) + len(new) > self._most_hosts:
            return f"{len(self._named)} hosts are known and {len(new)} new; allowed: {self._most_hosts}"
        if request.member not in self._hosts and len(self._hosts) >= 2 * self._most_hosts:
            return f"{len(self._hosts)} members and hosts are known; allowed: {2 * self._most_hosts}"
        self._named |= new
        return ""


def _check_caller(caller: Identity | None, member: str, succeeds: str) -> None:
    """Check that who reports may do so under this name, or as the replica that it was before.

    A server's word is taken for which replica it was: that the scheduler had told that to take its place was for the
    scheduler to check.

    Raises:
        ConfigError: it may not.
    """
    if caller is None:
        return
    if caller.role == Role.SERVER.value:
        refusal = caller.refusal(Role.SERVER, member, succeeds=succeeds)
    elif caller.role == CLIENT or caller.name not in ("", member) or succeeds:
        refusal = f"the certificate is that of a {caller}; it does not allow reports of {member!r}"
    else:
        refusal = None
    if refusal is not None:
        raise ConfigError(refusal)


def from_record(record: monitor_pb2.TransferRecord, now_s: float, hosts: Mapping[str, str]) -> Transfer | None:
    """Return the transfer that a record describes, on the clock of ``now_s``; None if it went nobody knows where.

    Args:
        record: as a member sent it.
        now_s: when it came.
        hosts: of all members that have reported, by their names, and by their own.

    Raises:
        UsageError: a host has no name, a time is negative or not finite, or more bytes were busy than there were.
    """
    to_host = record.to_host or hosts.get(record.to_peer, "")
    for field, given in (("from_host", record.from_host), ("to_host", record.to_host or record.to_peer)):
        if not given:
            raise UsageError(f"TransferRecord.{field}=''; allowed: a name that is not empty")
    for field in ("seconds", "ended_ago_s", "busy_seconds"):
        value = getattr(record, field)
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"TransferRecord.{field}={value}; allowed: 0 or more, and finite")
    if record.busy_bytes > record.bytes:
        raise UsageError(f"TransferRecord.busy_bytes={record.busy_bytes}; allowed: up to bytes={record.bytes}")
    if not to_host:
        return None
    ended_s = now_s - record.ended_ago_s
    return Transfer(
        from_host=record.from_host,
        to_host=to_host,
        bytes=record.bytes,
        started_s=ended_s - record.seconds,
        ended_s=ended_s,
        paced=record.paced,
        busy_bytes=record.busy_bytes,
        busy_s=record.busy_seconds,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
