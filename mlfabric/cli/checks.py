"""What ``mlfabric doctor`` looks at. Each check is a function that returns findings; none changes anything."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata

import psutil
from rich.text import Text

from mlfabric import __version__
from mlfabric.addresses import split_address
from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel, TransferRecord
from mlfabric.cli.tables import rate_text
from mlfabric.errors import FabricError, RefusedError, UnavailableError, UsageError
from mlfabric.launch.ports import free_port, is_here
from mlfabric.launch.scheduler_status import HERE, StatusReader
from mlfabric.v1 import fabric_pb2

__all__ = ["Finding", "Level", "examine", "styled"]

LEAST_PYTHON = (3, 11)
LEAST_VERSIONS = {"torch": (2, 6), "grpcio": (1, 72), "protobuf": (6, 30), "numpy": (2, 0)}
LEAST_FILES = 4096
LOOKS = 5
DIAL_S = 3.0
RATE_PAYLOAD_BYTES = 32 * 1024 * 1024
RATE_ROUNDS = 4
SLOW_LOOPBACK_BPS = 4e9
SLOW_ROUND_TRIP_S = 0.05
SLOW_LINK_SHARE = 0.5
CLOCK_SLACK_S = 60


class Level(Enum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found, and what to do about it."""

    what: str
    level: Level
    found: str
    advice: str = ""


def styled(level: Level) -> Text:
    """Return a level's word in its colour."""
    return Text(level.value, style={Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}[level])


def _judge(what: str, good: bool, found: str, advice: str, otherwise: Level = Level.WARN) -> Finding:
    return Finding(what=what, level=Level.OK if good else otherwise, found=found, advice="" if good else advice)


async def examine(asker: StatusReader, *, scheduler_expected: bool) -> list[Finding]:
    """Run all checks.

    Args:
        asker: asks the scheduler.
        scheduler_expected: whether it is a fault that none answers there.

    Raises:
        UsageError: the scheduler's address is none, or must not be dialled without TLS.
    """
    local: tuple[Callable[[], list[Finding]], ...] = (python, packages, rights, clock, ports, network_cards)
    findings = [finding for check in local for finding in check()]
    findings.append(await loopback_rate())
    return findings + await fabric(asker, scheduler_expected)


def python() -> list[Finding]:
    """Check the interpreter."""
    wanted = ".".join(map(str, LEAST_PYTHON))
    good = tuple(map(int, platform.python_version_tuple()[:2])) >= LEAST_PYTHON
    return [_judge("Python", good, platform.python_version(), f"use Python {wanted} or newer", Level.FAIL)]


def packages() -> list[Finding]:
    """Check that what we build on is there and new enough."""
    return [_package(name, least) for name, least in LEAST_VERSIONS.items()]


def _package(name: str, least: tuple[int, int]) -> Finding:
    wanted = f"pip install '{name}>={least[0]}.{least[1]}'"
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(what=name, level=Level.FAIL, found="missing", advice=wanted)
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    return _judge(name, numbers >= least, found, wanted, Level.FAIL)


def rights() -> list[Finding]:
    """Check what this user may do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raisable = hard == resource.RLIM_INFINITY or hard >= LEAST_FILES
    how = f"ulimit -n {LEAST_FILES}" if raisable else f"ask the administrator for a hard limit of {LEAST_FILES}"
    root = os.geteuid() == 0
    user = "root" if root else f"user {os.geteuid()}: trains; only emulated clusters of network namespaces need root"
    return [
        _judge("open files", soft >= LEAST_FILES, f"{soft} (hard limit {_limit(hard)})", how),
        Finding(what="rights", level=Level.OK, found=user),
    ]


def _limit(value: int) -> str:
    return "none" if value == resource.RLIM_INFINITY else str(value)


def clock() -> list[Finding]:
    """Check the clock that durations are taken with."""
    resolution_s = time.get_clock_info("monotonic").resolution
    good = resolution_s <= 1e-6
    return [_judge("clock", good, f"resolution {resolution_s * 1e9:.0f} ns", "link rates will be guesses")]


def ports() -> list[Finding]:
    """Check that this user can listen at all."""
    try:
        port = free_port("127.0.0.1")
    except UsageError as error:
        return [Finding(what="ports", level=Level.FAIL, found=str(error), advice="allow listening on 127.0.0.1")]
    return [Finding(what="ports", level=Level.OK, found=f"can listen on 127.0.0.1, as on port {port}")]


def network_cards() -> list[Finding]:
    """Check what the network cards say of their speed."""
    cards = [(n, s.speed) for n, s in psutil.net_if_stats().items() if s.isup and not n.startswith("lo")]
    if not cards:
        return [Finding(what="network cards", level=Level.OK, found="none but loopback")]
    return [
        _judge(
            f"network card {name}",
            mbps > 0,
            rate_text(mbps * 1e6) if mbps > 0 else "speed unknown",
            "rates are learnt from transfers; state them with --up and --down to begin well",
        )
        for name, mbps in sorted(cards)
    ]


async def loopback_rate() -> Finding:
    """Measure our data channel between two endpoints of this process: what this machine's CPU allows at most."""
    try:
        rate_bps = await _channel_rate_bps()
    except FabricError as error:
        return Finding(what="data channel", level=Level.FAIL, found=str(error), advice="allow TCP on 127.0.0.1")
    found = f"{rate_text(rate_bps)} over loopback, both ends in one process"
    return _judge("data channel", rate_bps >= SLOW_LOOPBACK_BPS, found, "the CPU is slow or busy")


async def _channel_rate_bps() -> float:
    receiver, sender = TcpChannel(), TcpChannel()
    arrived: asyncio.Queue[TransferRecord] = asyncio.Queue()

    async def take(connection: Connection) -> None:
        buffer = memoryview(bytearray(RATE_PAYLOAD_BYTES))
        for _ in range(RATE_ROUNDS):
            frame = await connection.receive()
            await arrived.put(await connection.receive_into(buffer, frame.length))

    try:
        connection = await sender.connect(await receiver.listen(take))
        payload = memoryview(bytearray(RATE_PAYLOAD_BYTES))
        frame = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=RATE_PAYLOAD_BYTES)
        for _ in range(RATE_ROUNDS):
            await connection.send(frame, [payload])
        return max([(await arrived.get()).rate_bps for _ in range(RATE_ROUNDS)])
    finally:
        await sender.close()
        await receiver.close()


async def fabric(asker: StatusReader, expected: bool) -> list[Finding]:
    """Check the scheduler, and the way from here to each member that accepts connections."""
    scheduler = asker.scheduler
    host, port = split_address(scheduler)
    try:
        async with asker as reader:
            status = await reader.read()
            round_trips = [await reader.round_trip_s() for _ in range(LOOKS)]
    except (RefusedError, UnavailableError) as error:
        level = Level.FAIL if expected else Level.WARN
        return [
            Finding(what="scheduler", level=level, found=str(error).split(";")[0], advice=_how_to_begin(host, port))
        ]
    median_s = statistics.median(round_trips)
    found = f"{scheduler} answers in {median_s * 1e3:.1f} ms"
    findings = [
        _judge("scheduler", median_s < SLOW_ROUND_TRIP_S, found, "put it nearer, or give it more CPU"),
        _versions(status),
        time_of_day(status.term),
    ]
    members = [m for m in status.members if m.state == HERE and m.role in ("server", "monitor") and m.address]
    if not any(m.role == "server" for m in members):
        advice = f"mlfabric server --scheduler {scheduler}"
        findings.append(Finding(what="servers", level=Level.WARN, found="none has joined", advice=advice))
    return findings + list(await asyncio.gather(*(reachable(m) for m in members))) + link_rates(status)


def _how_to_begin(host: str, port: int) -> str:
    return f"mlfabric up --port {port}" if is_here(host) else f"start it on {host}; is {port} open in its firewall?"


def _versions(status: fabric_pb2.GetStatusResponse) -> Finding:
    theirs = status.software_version
    return _judge("versions", theirs == __version__, f"{__version__} here, {theirs} there", "install the same on both")


def time_of_day(term: int) -> Finding:
    """Check this host's clock: a scheduler's term is the time of day of its start in milliseconds, if not more."""
    ahead_s = int(term / 1e3 - time.time())
    found = f"the scheduler's term is {ahead_s} s ahead of it" if ahead_s > 0 else "in line with the scheduler's"
    return _judge("time of day", ahead_s <= CLOCK_SLACK_S, found, "synchronise the clocks (NTP) on both hosts")


async def reachable(member: fabric_pb2.MemberStatus) -> Finding:
    """Measure how long connecting to a member takes; rates are what transfers have shown (:func:`link_rates`)."""
    what = f"{member.role} {member.name}"
    try:
        times = [await _connect_s(member.address) for _ in range(LOOKS)]
    except (OSError, TimeoutError) as error:
        found = f"{member.address} cannot be reached: {error or 'no answer'}"
        return Finding(what=what, level=Level.FAIL, found=found, advice="check its --advertise, its ports, firewalls")
    return Finding(
        what=what, level=Level.OK, found=f"{member.address} connects in {statistics.median(times) * 1e3:.2f} ms"
    )


def link_rates(status: fabric_pb2.GetStatusResponse) -> list[Finding]:
    """Tell at which rates members reach each other, as transfers have shown; far below nominal is a warning."""
    return [_link_rate(link) for link in status.links if link.HasField("age_s")]


def _link_rate(link: fabric_pb2.LinkStatus) -> Finding:
    found = f"{rate_text(link.estimate_bps)}, measured {link.age_s:.1f} s ago"
    if link.nominal_bps:
        found += f"; nominal {rate_text(link.nominal_bps)}"
    good = link.estimate_bps >= SLOW_LINK_SHARE * link.nominal_bps
    direction = "up" if link.up else "down"
    return _judge(f"link {link.host} {direction}", good, found, "look who else uses it, or state its true rate")


async def _connect_s(address: str) -> float:
    host, port = split_address(address)
    began = time.perf_counter()
    async with asyncio.timeout(DIAL_S):
        _, writer = await asyncio.open_connection(host, port, family=socket.AF_UNSPEC)
    took_s = time.perf_counter() - began
    writer.close()
    await writer.wait_closed()
    return took_s
