"""DropCompute in a whole fabric, and under DistributedDataParallel without one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import mse_loss

import mlfabric
from mlfabric.worker_daemon.drop_compute import TIMED_STEPS
from tests.fabric.harness import Fabric, small_model
from tests.fabric.several import together

MICRO, LR = 3, 0.5
ONLY_ONE, ALL = 1e-9, 1e9
"""Thresholds after which a step has one micro-batch, and all."""


def micro_batches(rank: int) -> list[torch.Tensor]:
    return [torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * rank + n)) for n in range(MICRO)]


def backward(model: torch.nn.Module, batch: torch.Tensor) -> None:
    mse_loss(model(batch), torch.ones(4, 2)).backward()


def expected(done: list[int], divisor: int) -> list[torch.Tensor]:
    """Return the weights after a step with the first micro-batches of each worker."""
    model = small_model()
    for rank, count in enumerate(done):
        for batch in micro_batches(rank)[:count]:
            backward(model, batch)
    return [p.detach() - LR * p.grad / divisor for p in model.parameters() if p.grad is not None]


def step(worker: Any, model: torch.nn.Module, batches: list[torch.Tensor], threshold: Any, **options: Any) -> Any:
    """Make a step of the loop as the documents have it; return the loop."""
    loop = mlfabric.drop_compute(batches, worker, micro_batches=MICRO, threshold=threshold, **options)
    for batch in loop:
        backward(model, batch)
    return loop


def assert_weights(model: torch.nn.Module, wanted: list[torch.Tensor]) -> None:
    for found, value in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(found.detach(), value)


def joined(running: Fabric, rank: int, model: torch.nn.Module, **options: Any) -> Any:
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    return mlfabric.wrap(sgd, model, workers=2, settings=running.settings(f"w{rank}"), **options)


@pytest.mark.parametrize("method", ["all-reduce", "elastic", "partial"])
@pytest.mark.parametrize(("divide_by", "divisor"), [("computed", 1 + MICRO), ("all", 2 * MICRO)])
def test_a_rounds_mean_is_over_the_micro_batches_of_all_workers(method: str, divide_by: str, divisor: int) -> None:
    models = [small_model(), small_model()]
    options: Any = {"elastic": {"at_least": 1.0}, "partial": {"quorum": "full"}}.get(method, {})

    def work(rank: int) -> None:
        worker = joined(running, rank, models[rank], method=method, **options)
        threshold = ALL if rank else ONLY_ONE
        step(worker, models[rank], micro_batches(rank), threshold, divide_by=divide_by)
        worker.step()
        worker.leave()

    with Fabric() as running:
        together(partial(work, 0), partial(work, 1))
    for model in models:
        assert_weights(model, expected([1, MICRO], divisor))


def test_inner_steps_are_cut_short_and_their_movement_is_offered() -> None:
    models = [small_model(), small_model()]
    found: dict[int, Any] = {}

    def work(rank: int) -> None:
        worker = found[rank] = joined(running, rank, models[rank], method="local-sgd", at_least=1.0, inner_steps=MICRO)
        for made in range(2):
            for batch in mlfabric.drop_compute(
                micro_batches(rank), worker, micro_batches=MICRO, threshold=ALL if rank else ONLY_ONE
            ):
                worker.zero_grad()
                backward(models[rank], batch)
                worker.step()
                assert worker.version == made  # no micro-batch takes as long as a round
            assert worker.version == made + 1
        worker.leave()

    with Fabric() as running:
        together(partial(work, 0), partial(work, 1))
    assert [found[rank].version for rank in range(2)] == [2, 2]
    assert_weights(models[0], [p.detach() for p in models[1].parameters()])


def test_the_scheduler_hands_all_workers_the_same_threshold() -> None:
    models, reports, workers = [small_model(), small_model()], dict[int, Any](), dict[int, Any]()

    def work(rank: int) -> None:
        worker = workers[rank] = joined(running, rank, models[rank], method="all-reduce")
        for _ in range(3 * TIMED_STEPS):
            loop: Any = step(worker, models[rank], micro_batches(rank), "auto")
            worker.step()
            worker.zero_grad()
        reports[rank] = loop.report

    with Fabric() as running:
        together(partial(work, 0), partial(work, 1))
        words = running.scheduler.state.reductions["model"].thresholds.words
        for worker in workers.values():
            worker.leave()
    assert words
    assert reports[0].tau_s == reports[1].tau_s
    assert reports[0].predicted_speedup == reports[1].predicted_speedup
    assert all(report.steps > 0 for report in reports.values())


def test_overlap_is_refused() -> None:
    model = small_model()
    with Fabric() as running:
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        worker = mlfabric.wrap(sgd, model, method="elastic", overlap=True, settings=running.settings("w0"))
        with pytest.raises(mlfabric.UsageError, match="drop_compute with overlap"):
            mlfabric.drop_compute([], worker, micro_batches=2)
        with pytest.raises(mlfabric.UsageError, match="weigh with overlap"):
            worker.weigh(2)
        worker.leave()


def test_a_movement_has_no_divisor() -> None:
    model = small_model()
    with Fabric() as running:
        worker = mlfabric.wrap(
            torch.optim.SGD(model.parameters(), lr=LR), model, method="diloco", settings=running.settings("w0")
        )
        with pytest.raises(mlfabric.UsageError, match="divide_by='all' with inner steps"):
            mlfabric.drop_compute([], worker, micro_batches=2, divide_by="all")
        worker.leave()


def test_the_settings_of_a_worker_stay() -> None:
    model = small_model()
    with Fabric() as running:
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        worker = mlfabric.wrap(sgd, model, method="elastic", settings=running.settings("w0"))
        loop: Any = mlfabric.drop_compute([], worker, micro_batches=2)
        assert mlfabric.drop_compute([], worker, micro_batches=2) is loop
        with pytest.raises(mlfabric.UsageError, match="the same in all steps"):
            mlfabric.drop_compute([], worker, micro_batches=3)
        worker.leave()


def under_pytorch(rank: int, folder: str) -> None:
    """Make steps under DistributedDataParallel, in a process of its own."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    bare = small_model()
    bare.register_parameter("unused", torch.nn.Parameter(torch.zeros(3)))
    model = torch.nn.parallel.DistributedDataParallel(bare)
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    step(model, model, micro_batches(rank), ALL if rank else ONLY_ONE)
    sgd.step()
    assert_weights(bare[:], expected([1, MICRO], 1 + MICRO))
    assert bare.unused.grad is None

    other = torch.nn.parallel.DistributedDataParallel(small_model())
    for _ in range(2 * TIMED_STEPS):
        loop: Any = step(other, other, micro_batches(rank), "auto")
    taus = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(taus, torch.tensor([loop.report.tau_s], dtype=torch.float64))
    assert taus[0] == taus[1]
    assert loop.report.steps > 0
    dist.destroy_process_group()


@pytest.mark.processes
def test_without_any_fabric_under_distributed_data_parallel(tmp_path: Path) -> None:
    spawn(under_pytorch, (str(tmp_path),), nprocs=2)
