"""Emulated links: how near transfers come to their rates, and what it costs to make hosts and to change rates.

For each full rate and each share of it that the paper's settings know: a transfer of a second through an up-link, one
through a down-link, and ten at a time to one host. Figures are shares of what the rate leaves for payload.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.testbed.cpu import CpuMeter
from benchmarks.testbed.hosts import Host, Testbed, testbed
from benchmarks.testbed.namespaces import entered
from benchmarks.testbed.shaping import ETHERNET_BYTES, MTU_BYTES
from mlfabric.twin.settings import NETWORK, Direction

__all__ = ["run"]

FULL_BPS = (10_000_000, 20_000_000, 100_000_000)
HOSTS = 33
SENDERS = 10
CHANGES = 50
RECEIVE_BYTES = 64 * 1024
PATIENCE_S = 120.0
PAYLOAD_SHARE = (MTU_BYTES - 20 - 32) / ETHERNET_BYTES
"""Of an Ethernet frame that is full: without the headers of IP and of TCP with its time stamps."""


def run(seconds: float = 1.0) -> dict[str, Any]:
    """Measure.

    Args:
        seconds: that each transfer should take.

    Returns:
        ``start_s`` and ``stop_s`` of 33 hosts, ``change_all_cpu_ms`` for the rates of all their links, and for each
        full rate and share ``up``, ``down`` and ``many_to_one``, and ``halved``: the same for a transfer in the middle
        of which the rate became a half. And ``cpu_used_share`` and ``cpu_saturated_share`` of the whole computer
        meanwhile: on a busy one the figures mean nothing.

    Raises:
        UnavailableError: hosts cannot be made here.
    """
    found: dict[str, Any] = _cost()
    with CpuMeter() as cpu, testbed([f"h{i}" for i in range(SENDERS + 1)], link_bps=max(FULL_BPS)) as bed:
        for full_bps in FULL_BPS:
            for share in NETWORK["N1"].shares:
                _set(bed, {host.name: full_bps for host in bed.hosts} | {"h0": round(full_bps * share)})
                found[f"{full_bps // 1_000_000}M.{share}"] = _at(bed, round(full_bps * share), seconds)
    found["cpu_used_share"], found["cpu_saturated_share"] = cpu.used_share, cpu.saturated_share
    return found


def _cost() -> dict[str, float]:
    """Measure what hosts cost without any traffic."""
    began_s = time.perf_counter()
    with testbed([f"h{i}" for i in range(HOSTS)], link_bps=FULL_BPS[0]) as bed:
        start_s = time.perf_counter() - began_s
        costs_s = []
        for change in range(CHANGES):
            cpu_s = time.process_time()
            _set(bed, {host.name: FULL_BPS[0] + 1000 * (change + 1) for host in bed.hosts})
            costs_s.append(time.process_time() - cpu_s)
        ended_s = time.perf_counter()
    stop_s = time.perf_counter() - ended_s
    return {"start_s": start_s, "stop_s": stop_s, "change_all_cpu_ms": statistics.median(costs_s) * 1e3}


def _set(bed: Testbed, rates_bps: dict[str, int]) -> None:
    bed.set_rates({(name, way): bps for name, bps in rates_bps.items() for way in Direction})


def _at(bed: Testbed, bps: int, seconds: float) -> dict[str, float]:
    """Measure transfers from and to the first host, whose link has this rate."""
    one, *others = bed.hosts
    size_bytes = round(bps / 8 * PAYLOAD_SHARE * seconds)
    found = {
        "up": seconds / _transfer([one], others[0], size_bytes),
        "down": seconds / _transfer(others[:1], one, size_bytes),
        "many_to_one": seconds / _transfer(others, one, size_bytes // len(others)),
    }
    halve = partial(_set, bed, {one.name: bps // 2})
    found["halved"] = 1.5 * seconds / _transfer([one], others[0], size_bytes, in_the_middle=halve)
    return found


def _transfer(
    senders: Sequence[Host], receiver: Host, size_bytes: int, in_the_middle: Callable[[], None] = lambda: None
) -> float:
    """Return how many seconds it took until the receiver had so many bytes of each sender."""
    with entered(receiver.namespace):
        server = socket.create_server((receiver.address, 0), backlog=len(senders))
    address = server.getsockname()
    with server, ThreadPoolExecutor(2 * len(senders)) as pool:
        taken = [pool.submit(_take, server, size_bytes, in_the_middle) for _ in senders]
        began_s = time.perf_counter()
        for sender in senders:
            pool.submit(_send, sender, address, size_bytes)
        for one in taken:
            one.result(PATIENCE_S)
        return time.perf_counter() - began_s


def _send(host: Host, address: tuple[str, int], size_bytes: int) -> None:
    with entered(host.namespace):
        sock = socket.socket()
    with sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(address)
        sock.sendall(bytes(size_bytes))


def _take(server: socket.socket, size_bytes: int, in_the_middle: Callable[[], None]) -> None:
    """Take a connection's bytes; call something once half of them are here."""
    server.settimeout(PATIENCE_S)
    sock, _ = server.accept()
    got = 0
    with sock:
        while more := len(sock.recv(min(RECEIVE_BYTES, size_bytes - got) or 1)):
            if got < size_bytes // 2 <= got + more:
                in_the_middle()
            got += more
    if got != size_bytes:
        raise RuntimeError(f"{got} of {size_bytes} bytes came")
