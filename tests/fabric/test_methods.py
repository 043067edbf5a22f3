"""Consistency methods through a whole fabric: iterations of all workers, and workers that stay near one another."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, DropReason, Method, MomentumAt, RuleSpec
from mlfabric.channels import TcpOptions
from tests.fabric.harness import Fabric, dropped, fabric, gradients, small_model, wait_until
from tests.fabric.programs import Program
from tests.fabric.several import same, together

STEPS = 20
ROWS = 4


def batch(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one worker's share of a step's data."""
    own = torch.Generator().manual_seed(1000 * step + part)
    inputs, targets = (torch.randn(ROWS, columns, dtype=torch.float64, generator=own) for columns in (4, 2))
    return inputs, targets


def loss(model: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(data[0]), data[1])


def doing(running: Fabric, worker: str, word: str) -> str:
    """Return what the status says a worker is doing if that has a word in it, else ""."""
    (activity,) = [m.activity for m in running.status().members if m.name == worker]
    return activity if word in activity else ""


def exchange(worker: Any, seed: int) -> Any:
    """Get, compute, push."""
    worker.get()
    gradients(worker._model, seed)
    return worker.push()


def one_process(workers: int, rule: RuleSpec) -> torch.nn.Module:
    """Train on all shares as one batch."""
    model = small_model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
    for step in range(STEPS):
        optimizer.zero_grad()
        shares = [batch(step, part) for part in range(workers)]
        loss(model, (torch.cat([x for x, _ in shares]), torch.cat([y for _, y in shares]))).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("workers", "kept"), [(3, None), (4, None), (3, MomentumAt.WORKERS)])
def test_synchronous_workers_end_where_one_process_with_all_their_data_does(
    running: Fabric, workers: int, kept: MomentumAt | None
) -> None:
    rule = RuleSpec(lr=0.1, momentum=0.9, momentum_at=kept, weight_decay=0.01)
    models = [small_model().double() for _ in range(workers)]
    joined = [running.worker(m, f"w{i}", rule=rule, method=Method.SYNCHRONOUS) for i, m in enumerate(models)]

    def train(part: int) -> None:
        for step in range(STEPS):
            assert joined[part].get().number == step
            loss(models[part], batch(step, part)).backward()
            outcome = joined[part].push().result(20)
            assert isinstance(outcome, Committed)
            assert (outcome.version.number, outcome.tau) == (step + 1, 0)
        joined[part].get()

    together(*(lambda part=part: train(part) for part in range(workers)))
    expected = one_process(workers, rule)
    for model in models:
        same(model, expected)


def test_an_iteration_goes_on_without_a_worker_that_dies_in_it_and_waits_for_it_no_longer() -> None:
    with Fabric(silence_s=0.5) as running:
        running.server()
        models = [small_model().double() for _ in range(2)]
        joined = [running.worker(m, f"w{i}", method=Method.SYNCHRONOUS) for i, m in enumerate(models)]
        victim = running.raw_worker(models[0], method=Method.SYNCHRONOUS)
        start = copy.deepcopy(models[0])
        for part, worker in enumerate(joined):
            worker.get()
            loss(models[part], batch(0, part)).backward()
            worker.push()
        victim.tell(victim.request())
        assert victim.told("send") is not None
        victim.__exit__()
        versions = [worker.get().number for worker in joined]
        assert versions == [1, 1]
        for part in range(2):
            (loss(start, batch(0, part)) / 2).backward()
        torch.optim.SGD(start.parameters(), lr=RuleSpec().lr).step()
        for model in models:
            same(model, start)
        for part, worker in enumerate(joined):
            loss(models[part], batch(1, part)).backward()
            worker.push()
        assert [worker.get().number for worker in joined] == [2, 2]


def test_a_worker_that_joins_later_takes_part_from_the_next_iteration(running: Fabric) -> None:
    first = running.worker(small_model(), "w0", method=Method.SYNCHRONOUS)
    exchange(first, 0).result(10)
    second = running.worker(small_model(), "w1", method=Method.SYNCHRONOUS)
    assert second.get().number == 1
    handle = exchange(first, 1)
    assert "waiting for the other workers" in wait_until(lambda: doing(running, "w0", "waiting"), "w0 waits")
    assert not handle.done()
    assert exchange(second, 1).result(10) == handle.result(10) == Committed(version=running.version(1, 2), tau=0)


@pytest.mark.parametrize("method", [Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS])
def test_the_first_worker_does_not_begin_alone_if_the_job_says_how_many_there_are(
    running: Fabric, method: Method
) -> None:
    first = running.worker(small_model(), "w0", method=method, workers=2)
    handle = exchange(first, 0)
    assert wait_until(lambda: doing(running, "w0", "waiting"), "w0 waits").startswith("waiting for 1 of 2 workers")
    assert not handle.done()
    second = running.worker(small_model(), "w1", method=method, workers=2)
    second.get()
    gradients(second._model, 1)
    committed = {second.push().result(10).version.number, handle.result(10).version.number}
    assert committed == ({1} if method is Method.SYNCHRONOUS else {1, 2})


def test_an_update_of_an_old_version_is_dropped_in_words_and_its_worker_goes_on(running: Fabric) -> None:
    worker = running.worker(small_model(), "w0", method=Method.SYNCHRONOUS)
    worker.get()
    late = running.worker(small_model(), "w1", method=Method.SYNCHRONOUS)
    late.get()
    late.leave()
    exchange(worker, 0).result(10)
    late = running.worker(small_model(), "w1", method=Method.SYNCHRONOUS)
    late.version = running.version(1, 0)
    gradients(late._model, 0)
    outcome = dropped(late.push(), DropReason.DEADLINE_PAST)
    assert "computed from version 0, whose iteration was made without it; model is at version 1" in outcome.detail
    handle = exchange(worker, 1)
    assert exchange(late, 1).result(10) == handle.result(10)


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_stale_synchronous_workers_are_never_further_apart_than_the_slack(running: Fabric, slack: int) -> None:
    """A worker that begins an iteration has a model that contains what the slack asks of all the others."""
    workers, iterations = 3, 12
    joined = [
        running.worker(small_model(), f"w{i}", method=Method.STALE_SYNCHRONOUS, slack=slack) for i in range(workers)
    ]
    for worker in joined:
        worker.get()
    ahead: list[int] = []
    pause = threading.Event()

    def train(part: int) -> None:
        for finished in range(iterations):
            version = joined[part].version.number
            others = version - finished
            assert others >= (workers - 1) * (finished - slack), f"w{part} began {finished + 1} at version {version}"
            ahead.append(finished * workers - version)
            gradients(joined[part]._model, finished)
            pause.wait(0.01 * part)
            joined[part].push()
            joined[part].get()
        joined[part].leave()

    together(*(lambda part=part: train(part) for part in range(workers)))
    assert max(ahead) <= (workers - 1) * slack
    if slack:
        assert max(ahead) > 0, "nobody was ever ahead"


def test_who_is_too_far_ahead_waits_until_the_slowest_has_come_closer(running: Fabric) -> None:
    fast, slow = (
        running.worker(small_model(), name, method=Method.STALE_SYNCHRONOUS, slack=1) for name in ("fast", "slow")
    )
    slow.get()
    for seed in range(2):
        assert isinstance(exchange(fast, seed).result(10), Committed)
    why = wait_until(lambda: doing(running, "fast", "held back"), "fast is held back")
    assert "it has finished 2 iterations, the slowest worker 0; a slack of 1 is allowed" in why
    exchange(slow, 0)
    assert fast.get().number == 3


def test_options_of_methods_are_checked_before_anything_is_sent(running: Fabric) -> None:
    with pytest.raises(mlfabric.ConfigError, match="slack=1 with method synchronous; allowed: 0, or more if stale"):
        running.worker(small_model(), method=Method.SYNCHRONOUS, slack=1)
    with pytest.raises(
        mlfabric.ConfigError, match="tau_max=3 with method synchronous; allowed: with asynchronous only"
    ):
        running.worker(small_model(), method=Method.SYNCHRONOUS, tau_max=3)
    running.worker(small_model(), "w0", method=Method.STALE_SYNCHRONOUS, slack=2)
    with pytest.raises(mlfabric.RefusedError, match="slack: 1 here, 2 at"):
        running.worker(small_model(), "w1", method=Method.STALE_SYNCHRONOUS, slack=1)


def test_no_update_is_applied_with_a_delay_above_the_bound_however_slow_some_workers_are(tmp_path: Path) -> None:
    updates, tau_max = 400, 3
    with fabric(checkpoint_dir=tmp_path) as running:
        slow = replace(running.settings("slow"), tcp=TcpOptions(up_bps=8_000_000))
        options: dict[str, Any] = {"rule": RuleSpec(lr=1e-6), "tau_max": tau_max}
        models = [{"w": torch.nn.Parameter(torch.zeros(8192))} for _ in range(4)]
        joined = [running.worker(models[i], f"w{i}", **options) for i in range(3)]
        joined.append(running.enter(mlfabric.register_as_worker(models[3], settings=slow, **options)))
        pause = threading.Event()

        def train(part: int) -> None:
            joined[part].get()
            while joined[part].version.number < updates:
                pause.wait(0.02 if part == 0 else 0.0)
                models[part]["w"].grad = torch.ones(8192)
                joined[part].exchange()
            joined[part].drain(20)

        together(*(lambda part=part: train(part) for part in range(4)))
        (log,) = tmp_path.glob("*.commits.jsonl")
        delays = [tau for line in log.read_text().splitlines() for tau in json.loads(line)["tau"]]
        assert len(delays) >= updates
        assert max(delays) <= tau_max
        assert sum(worker.tally.dropped for worker in joined) > 0, "nobody was ever late"


def test_a_scheduler_that_begins_anew_changes_no_iteration() -> None:
    workers, rule = 3, RuleSpec(lr=0.1, momentum=0.9)
    with fabric() as running:
        models = [small_model().double() for _ in range(workers)]
        joined = [running.worker(m, f"w{i}", rule=rule, method=Method.SYNCHRONOUS) for i, m in enumerate(models)]
        half, over = threading.Barrier(workers + 1), threading.Event()

        def train(part: int) -> None:
            for step in range(STEPS):
                assert joined[part].get().number == step
                loss(models[part], batch(step, part)).backward()
                if step == STEPS // 2:
                    half.wait(20)
                joined[part].push()
            joined[part].get()

        def restart() -> None:
            half.wait(20)
            running.restart_scheduler()
            over.set()

        together(restart, *(lambda part=part: train(part) for part in range(workers)))
        assert over.is_set()
        for model in models:
            same(model, one_process(workers, rule))


VICTIM = """
import torch, mlfabric
model = {"w": torch.nn.Parameter(torch.zeros(100_000))}
worker = mlfabric.register_as_worker(model, method=mlfabric.Method.SYNCHRONOUS, rule=mlfabric.RuleSpec(lr=1.0))
worker.get()
model["w"].grad = torch.full((100_000,), 90.0)
worker.push().result()
"""


def test_nothing_of_a_process_that_is_killed_while_it_sends_is_applied() -> None:
    with Fabric(silence_s=0.5) as running:
        running.server()
        models = [{"w": torch.nn.Parameter(torch.zeros(100_000))} for _ in range(2)]
        options = {"method": Method.SYNCHRONOUS, "rule": RuleSpec(lr=1.0)}
        joined = [running.worker(model, f"w{part}", **options) for part, model in enumerate(models)]
        surroundings = {"SCHEDULER": running.scheduler.address, "NAME": "victim", "HOST": "far", "UP": "1M"}
        with Program("-c", VICTIM, **{f"MLFABRIC_{name}": value for name, value in surroundings.items()}) as victim:
            wait_until(lambda: len(running.status().workers) == 3, "the victim has joined")
            for part, worker in enumerate(joined):
                worker.get()
                models[part]["w"].grad = torch.full((100_000,), 2.0 + 4 * part)
                worker.push()
            wait_until(lambda: doing(running, "victim", "sending"), "the victim sends")
            victim.kill()
        for version in (1, 2):
            for part, worker in enumerate(joined):
                assert worker.get().number == version
                torch.testing.assert_close(models[part]["w"].detach(), torch.full((100_000,), -4.0 * version))
                models[part]["w"].grad = torch.full((100_000,), 4.0)
                worker.push()
