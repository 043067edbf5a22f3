"""Sums on the way, live: scheduler, server and aggregators as processes, eight workers with network cards of their own.

Every gradient is constant and known, so the model that must come out follows from the order of commits alone.
"""

from __future__ import annotations

import itertools
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

import mlfabric
from mlfabric import Committed, MomentumAt, RuleSpec
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.planning import warm_up
from tests.fabric.harness import PATIENCE_S, wait_until
from tests.fabric.test_processes import Services, free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]  # the planner may have to be compiled first

ELEMENTS = 50_000
BPS = 40_000_000
WORKERS = 8
AGGREGATORS = ("aggregator-0", "aggregator-1", "aggregator-2")
LR = 0.125
SEEN_WITHIN_S = 2.0


class Fabric(Services):
    """Services on machines of their own, with network cards on which an update takes 80 ms."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports |= {name: free_port() for name in AGGREGATORS}

    def start_all(self) -> None:
        self.start_scheduler()
        self.start_server("--host", "server", "--up", "40M", "--down", "40M")
        for name in AGGREGATORS:
            self.start_aggregator(name)
        wait_until(lambda: self.has("server") and self.here("aggregator") == len(AGGREGATORS), "all services are there")

    def start_aggregator(self, name: str) -> None:
        card = ("--up", "40M", "--down", "40M", "--metrics-port", str(self.ports[name]))
        member = ("--scheduler", self.address, "--name", name, "--host", name)
        self.running[name] = self._popen(name, "-m", "mlfabric", "aggregator", *member, *card)

    def here(self, role: str) -> int:
        status = self.status()
        return 0 if status is None else sum(m.role == role and m.state == "here" for m in status.members)

    def summing(self) -> str | None:
        """Return the name of an aggregator that sums at present."""
        status = self.status()
        found = [m.name for m in status.members if m.role == "aggregator" and "sums" in m.activity]
        return found[0] if found else None

    def metric(self, name: str, *services: str) -> float:
        """Return the sum of a metric over its labels and over these aggregators, or all."""
        found = 0.0
        for service in services or AGGREGATORS:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[service]}/metrics", timeout=PATIENCE_S) as page:
                families = list(text_string_to_metric_families(page.read().decode()))
            found += sum(sample.value for family in families for sample in family.samples if sample.name == name)
        return found


class Job:
    """Workers that train one model, and what they know of it."""

    def __init__(self, fabric: Fabric, model: str, rule: RuleSpec) -> None:
        self.rule = rule
        self.values = torch.arange(ELEMENTS, dtype=torch.float64)
        self.grown: list[tuple[int, float]] = []

        def worker(name: str) -> Any:
            weights = {"w": self.values.clone().requires_grad_()}
            tcp = TcpOptions(up_bps=BPS, down_bps=4 * BPS)
            return mlfabric.register_as_worker(
                weights,
                settings=WorkerSettings(scheduler=fabric.address, name=name, host=f"host-{name}", tcp=tcp),
                model_name=model,
                rule=rule,
                momentum_at=MomentumAt.SERVER,
                tau_max=1000,
            )

        with ThreadPoolExecutor(WORKERS) as pool:
            self.workers = list(pool.map(worker, [f"{model}-{i}" for i in range(WORKERS)]))
            self.began_with = list(pool.map(lambda worker: worker.get().number, self.workers))

    def leave(self) -> None:
        for worker in self.workers:
            worker.leave()

    def push_all(self, step: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let every worker push at the same time; note what was committed as which version."""
        values = [float(1 + index + 10 * step) for index in range(len(self.workers))]
        handles = []
        for worker, value in zip(self.workers, values, strict=True):
            worker._model["w"].grad = torch.full((ELEMENTS,), value, dtype=torch.float64)
            handles.append(worker.push())
        meanwhile()
        for handle, value in zip(handles, values, strict=True):
            outcome = handle.result(PATIENCE_S)
            assert isinstance(outcome, Committed), outcome
            self.grown.append((outcome.version.number, value))

    def expected(self) -> float:
        """Return what was added to each weight by all commits, one after the other in their order."""
        weight = history = 0.0
        for _, gradient in sorted(self.grown):
            history = self.rule.momentum * history - LR * gradient
            weight += history
        return weight

    def check(self) -> None:
        """Compare: every update was applied once, in the order of versions."""
        assert sorted(version for version, _ in self.grown) == list(range(1, len(self.grown) + 1))
        worker = self.workers[0]
        worker.get(min_version=len(self.grown))
        torch.testing.assert_close(worker._model["w"].detach(), self.values + self.expected(), rtol=1e-10, atol=0)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    warm_up(lambda _: None)
    fabric = Fabric(tmp_path_factory.mktemp("aggregation"))
    try:
        fabric.start_all()
        yield fabric
    finally:
        fabric.close()


@pytest.fixture
def jobs(fabric: Fabric, request: pytest.FixtureRequest) -> Iterator[Callable[[RuleSpec], Job]]:
    """Start workers of a model of this test's own; all aggregators are there."""
    with ExitStack() as stack:

        def start(rule: RuleSpec) -> Job:
            job = Job(fabric, request.node.name, rule)
            stack.callback(job.leave)
            return job

        yield start


def to_one_that_sums(fabric: Fabric, job: Job, steps: Iterator[int], do: Callable[[str], None]) -> str:
    """Do something to an aggregator while it sums what all push; return its name."""
    found: list[str] = []

    def look() -> None:
        until_s = time.monotonic() + SEEN_WITHIN_S
        while not found and time.monotonic() < until_s:
            if (name := fabric.summing()) is not None:
                found.append(name)
                do(name)

    for step in itertools.islice(steps, 10):
        job.push_all(step, look)
        if found:
            return found[0]
    raise AssertionError("no aggregator was seen to sum")


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_updates_that_are_summed_on_their_way_act_as_if_each_had_been_sent(
    fabric: Fabric, jobs: Callable[[RuleSpec], Job], momentum: float
) -> None:
    job = jobs(RuleSpec(lr=LR, momentum=momentum))
    sums, updates = fabric.metric("mlfabric_sums_total"), fabric.metric("mlfabric_sum_updates_sum")
    for step in range(4):
        job.push_all(step)

    job.check()
    sums, updates = fabric.metric("mlfabric_sums_total") - sums, fabric.metric("mlfabric_sum_updates_sum") - updates
    assert updates >= 2 * sums > 0
    # On a busy machine sums may be overdue; a sum that is given up closes its connections, some before both ends know.
    broken, most = fabric.metric("mlfabric_broken_connections_total"), WORKERS + len(AGGREGATORS)
    given_up = partial(fabric.metric, "mlfabric_sums_torn_total", "scheduler")
    wait_until(lambda: broken <= most * given_up(), "the scheduler, which does so once a second, counts as many")


def test_gets_that_wait_for_the_first_weights_are_handed_on_as_one_version(
    fabric: Fabric, jobs: Callable[[RuleSpec], Job]
) -> None:
    before = fabric.metric("mlfabric_models_handed_on_total")
    job = jobs(RuleSpec(lr=LR))

    assert job.began_with == [0] * WORKERS
    for worker in job.workers:
        assert torch.equal(worker._model["w"].detach(), job.values)
    assert fabric.metric("mlfabric_models_handed_on_total") > before


def test_an_aggregator_that_is_killed_loses_nothing_and_sums_again_when_it_is_back(
    fabric: Fabric, jobs: Callable[[RuleSpec], Job]
) -> None:
    job, steps = jobs(RuleSpec(lr=LR)), itertools.count()

    def kill(name: str) -> None:
        fabric.running[name].kill()
        fabric.running[name].wait()

    killed = to_one_that_sums(fabric, job, steps, kill)
    job.push_all(next(steps))
    job.check()

    fabric.start_aggregator(killed)
    wait_until(lambda: fabric.here("aggregator") == len(AGGREGATORS), "it is back")

    def sums_again() -> bool:
        job.push_all(next(steps))
        return fabric.metric("mlfabric_sums_total", killed) > 0

    wait_until(sums_again, "it sums again")
    job.check()


def test_an_aggregator_that_is_told_to_end_says_good_bye_and_nothing_is_lost(
    fabric: Fabric, jobs: Callable[[RuleSpec], Job]
) -> None:
    job, steps = jobs(RuleSpec(lr=LR)), itertools.count()
    leaver = to_one_that_sums(fabric, job, steps, lambda name: fabric.running[name].send_signal(signal.SIGTERM))
    assert fabric.running[leaver].wait(PATIENCE_S) == 0, fabric.log(leaver)
    assert "Traceback" not in fabric.log(leaver)
    wait_until(lambda: fabric.here("aggregator") == len(AGGREGATORS) - 1, "it has left")
    job.push_all(next(steps))
    job.check()
