"""A few steps of a system, each of its processes on a host of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.testbed.cell import place_of
from benchmarks.testbed.hosts import Testbed, testbed
from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.processes import Launcher
from benchmarks.testbed.runs import RunPlan, worker_name
from mlfabric.errors import UnavailableError
from tests.testbed.steps import LINK_BPS, TIMEOUT_S

__all__ = ["hosts_of", "run_on"]


@contextmanager
def hosts_of(system: Any, workers: int) -> Iterator[Testbed]:
    """Make the hosts of a system; skip the test where there can be none."""
    if hasattr(system, "prepare"):
        system.prepare()
    try:
        with testbed([*_services(system), *map(worker_name, range(workers))], link_bps=LINK_BPS) as made:
            yield made
    except UnavailableError as error:
        pytest.skip(str(error))


def run_on(bed: Testbed, launcher: Launcher, system: Any, plan: RunPlan, workers: int) -> RunLogs:
    """Run all processes of a system to their end; return what they logged."""
    ranks = {worker_name(rank): rank for rank in range(workers)}
    children = {}
    for host in bed.hosts:
        part = _services(system).get(host.name, system.worker)
        place = place_of(host, bed, ranks.get(host.name), workers)
        children[host.name] = launcher.start(host, part, place, plan)
    found: dict[str, object] = {name: child.join(TIMEOUT_S) for name, child in children.items()}
    return RunLogs.of(found)


def _services(system: Any) -> Mapping[str, Any]:
    return getattr(system, "SERVICES", {})
