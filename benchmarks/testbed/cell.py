"""One run of the paper's table: a testbed of its own, one system on it, its logs, and the models judged afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from benchmarks.testbed.cpu import CpuMeter, saturated_share, used_share
from benchmarks.testbed.forwarding import by_rate
from benchmarks.testbed.hosts import Host, Testbed, testbed
from benchmarks.testbed.judging import curve_of
from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.networks import FOUR, NETWORKS
from benchmarks.testbed.processes import Child, ChildError, Launcher
from benchmarks.testbed.provenance import git_revision
from benchmarks.testbed.runs import Backup, BackupKind, Goal, Place, RunPlan, worker_name
from benchmarks.testbed.spec import CellResult, CellSpec, Machine
from benchmarks.testbed.weather import Weather
from benchmarks.testbed.workload import Classifier, Workload, WorkloadSpec
from mlfabric.errors import FabricError
from mlfabric.twin.settings import COMPUTE

__all__ = ["plan_of", "result_of", "run_cell", "spared_in"]

GRACE_S = 240.0
"""How much longer than it is to train a run may take, start and end included, before it is given up."""
LOOK_S = 0.25
QUEUE_S = 0.05
ALWAYS_SPARED = frozenset({"scheduler"})
"""Hosts that keep their full rate: models are 500 times smaller here than in the paper, control messages are not."""


def run_cell(spec: CellSpec) -> CellResult:
    """Run one system in one cell and judge what it trained.

    Raises:
        UnavailableError: network namespaces cannot be made here; or the run applied no gradient.
        FabricError: a process of the run failed, or did not end.
    """
    began = time.monotonic()
    workload = workload_of(spec).build()
    plan = plan_of(spec, spec.link_bps(workload.n_parameters))
    logs, meter, weather = _train(spec, plan)
    windows = meter.between(logs.began_ns, logs.ended_ns)
    machine = Machine(
        cpu_used_share=used_share(windows),
        cpu_saturated_share=saturated_share(windows),
        overrun_share=logs.overrun_share(),
        wall_s=time.monotonic() - began,
        git_revision=git_revision(),
        finished_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    forwarded = by_rate(logs.workers, weather, began_ns=logs.began_ns, ended_ns=logs.ended_ns)
    return replace(result_of(spec, logs, workload, machine), forwarded=forwarded)


def workload_of(spec: CellSpec) -> WorkloadSpec:
    """Return what is trained."""
    return WorkloadSpec(
        model=spec.model,
        batch_size=spec.batch_size,
        seed=spec.seed,
        workers=spec.workers,
        sliced=spec.cell.is_sliced,
    )


def plan_of(spec: CellSpec, link_bps: int) -> RunPlan:
    """Return what every process of the run is told."""
    return RunPlan(
        workload=workload_of(spec),
        link_bps=link_bps,
        compute=COMPUTE[spec.compute],
        seed=spec.seed,
        dilation=spec.dilation,
        consistency=spec.entry.consistency,
        learning_rate=spec.learning_rate,
        momentum=spec.momentum,
        duration_s=spec.duration_s,
        goal=_goal_of(spec),
        delay_bound=spec.delay_bound,
        report_every_s=spec.report_every_s,
        backup=Backup(kind=BackupKind(spec.backup), lead_updates=spec.lead_updates),
        wrapped=spec.entry.wrapped,
        members=min(spec.entry.members, spec.workers),
    )


def _goal_of(spec: CellSpec) -> Goal | None:
    if not spec.accuracy:
        return None
    return Goal(least_s=spec.least_s, least_steps=spec.least_steps, accuracy=spec.accuracy)


def result_of(spec: CellSpec, logs: RunLogs, workload: Workload, machine: Machine) -> CellResult:
    """Put together what a run's logs say; snapshots are evaluated here."""
    commits = logs.commits()
    elapsed_s = (logs.ended_ns - logs.began_ns) / 1e9 / spec.dilation
    judged = partial(
        curve_of,
        logs.snapshots,
        began_ns=logs.began_ns,
        dilation=spec.dilation,
        gradients_after=logs.gradients_after(spec),
    )
    return CellResult(
        spec=spec,
        seconds_per_iteration=elapsed_s * spec.workers / len(commits.workers),
        gradients_per_second=len(commits.workers) / elapsed_s,
        compute_s=logs.compute_s(spec),
        dropped_by_worker=tuple(log.dropped for log in logs.workers),
        curve=judged(workload.accuracy),
        slow_curve=judged(_accuracy_on_slow_classes(workload)) if spec.cell.is_sliced else None,
        commits=commits,
        machine=machine,
        backup=logs.backup(),
    )


def _accuracy_on_slow_classes(workload: Workload) -> Callable[[np.ndarray], float]:
    """Return what judges a model by the classes of which slow hosts have most of the images."""
    assert isinstance(workload, Classifier), "only images are sliced by their classes"
    slow = [rank for rank in range(workload.spec.workers) if worker_name(rank) in FOUR.names]
    return partial(workload.accuracy_on, workload.classes_of(slow))


def _train(spec: CellSpec, plan: RunPlan) -> tuple[RunLogs, CpuMeter, Weather]:
    """Run the system on a testbed; return the logs, what measured the CPU meanwhile, and what the links did."""
    module = spec.entry.load()
    services: Mapping[str, Any] = getattr(module, "SERVICES", {})
    getattr(module, "prepare", _nothing_to_prepare)()
    ranks = {worker_name(rank): rank for rank in range(spec.workers)}
    with ExitStack() as stack:
        made = stack.enter_context(
            testbed([*services, *ranks], link_bps=plan.link_bps, queue_s=QUEUE_S * spec.dilation)
        )
        launcher = stack.enter_context(Launcher(preloaded=[module.__name__, *plan.workload.preloaded]))
        weather = stack.enter_context(
            Weather(
                made,
                NETWORKS[spec.network],
                seed=spec.seed,
                link_bps=plan.link_bps,
                dilation=spec.dilation,
                spared=spared_in(spec, services.keys()),
            )
        )
        plan = replace(plan, forecast=weather.forecast)
        meter = stack.enter_context(CpuMeter())
        children = {
            host.name: launcher.start(
                host,
                services.get(host.name, module.worker),
                place_of(host, made, ranks.get(host.name), spec.workers),
                plan,
                name=host.name,
            )
            for host in made.hosts
        }
        found = _collect(children, spec.duration_s + GRACE_S)
    return RunLogs.of(found), meter, weather


def _nothing_to_prepare() -> None:
    """Stand in for what most systems do not have."""


def spared_in(spec: CellSpec, services: Collection[str]) -> frozenset[str]:
    """Return the hosts, of those that are no workers', that the weather leaves their full rate."""
    return ALWAYS_SPARED.intersection(services) if spec.server_weather else frozenset(services)


def place_of(host: Host, made: Testbed, rank: int | None, workers: int) -> Place:
    """Return where a process is, and where the others are."""
    return Place(
        name=host.name,
        rank=rank,
        workers=workers,
        addresses={other.name: other.address for other in made.hosts},
        interface=host.interface,
    )


def _collect(children: Mapping[str, Child], timeout_s: float) -> dict[str, object]:
    """Wait for all; the first that fails ends the wait.

    Raises:
        FabricError: one failed, or did not end in time.
    """
    deadline_s = time.monotonic() + timeout_s
    found: dict[str, object] = {}
    while len(found) < len(children):
        for name, child in children.items():
            if name not in found:
                try:
                    found[name] = child.join(LOOK_S)
                except TimeoutError as error:
                    if time.monotonic() > deadline_s:
                        raise FabricError(f"the run was given up after {timeout_s:g} s: {error}") from error
                except ChildError as error:
                    raise FabricError(str(error)) from error
    return found
