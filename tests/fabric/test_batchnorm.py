"""BatchNorm's statistics of 24 workers: they are one process's, summed on the way or one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import mlfabric
from mlfabric import Committed, RuleSpec
from mlfabric.channels import TcpOptions
from tests.fabric.harness import Fabric, fabric

WORKERS, ROUNDS = 24, 12


class Trainee:
    """A model of one worker, and data of its own."""

    def __init__(self, number: int) -> None:
        self.draw = torch.Generator().manual_seed(number)
        self.norm = torch.nn.BatchNorm1d(3)
        self.model = torch.nn.Sequential(self.norm, torch.nn.Linear(3, 2000))

    def forward_and_backward(self) -> None:
        inputs = 5 + 2 * torch.randn(500, 3, generator=self.draw)
        self.model(inputs).square().mean().backward()

    @property
    def statistics(self) -> torch.Tensor:
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        return torch.cat([self.norm.running_mean, self.norm.running_var])


def check(workers: list[tuple[Trainee, mlfabric.Worker]]) -> None:
    """Compare with one process that made as many steps as there were rounds."""
    alone = Trainee(1000)
    for _ in range(ROUNDS):
        alone.forward_and_backward()
    for trainee, worker in workers:
        worker.get(min_version=WORKERS * ROUNDS)
        assert (trainee.statistics / alone.statistics - 1).abs().max() < 0.1
        assert (trainee.statistics >= 0).all()
        assert trainee.norm.num_batches_tracked == ROUNDS
        trainee.model.eval()
        assert trainee.model(5 + 2 * torch.randn(9, 3, generator=trainee.draw)).isfinite().all()


@contextmanager
def summing(folder: Path) -> Iterator[Fabric]:
    """Run a fabric whose server has a narrow card, and an aggregator with a wide one; there must have been sums."""
    with Fabric() as running:
        wide, narrow = 1_000_000_000, 16_000_000
        running.server(host="server-host", checkpoint_dir=folder, tcp=TcpOptions(up_bps=wide, down_bps=narrow))
        running.aggregator(name="between", host="between", tcp=TcpOptions(up_bps=wide, down_bps=wide))
        yield running
    groups = [json.loads(line) for path in folder.glob("*.commits.jsonl") for line in path.read_text().splitlines()]
    assert any(len(group["updates"]) > 1 for group in groups)


@pytest.mark.parametrize("in_groups", [True, False])
def test_statistics_of_24_workers_are_those_of_one_process(tmp_path: Path, in_groups: bool) -> None:
    with (
        summing(tmp_path) if in_groups else fabric() as running,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        trainees = [Trainee(number) for number in range(WORKERS)]
        joined = [
            running.worker(trainee.model, f"w{n}", rule=RuleSpec(lr=1e-4), tau_max=1000)
            for n, trainee in enumerate(trainees)
        ]
        workers = list(zip(trainees, joined, strict=True))
        for _ in range(ROUNDS):
            list(pool.map(lambda worker: worker.get(), joined))
            for trainee in trainees:
                trainee.forward_and_backward()
            outcomes = [pushed.result(60) for pushed in pool.map(lambda worker: worker.push(), joined)]
            assert all(isinstance(outcome, Committed) for outcome in outcomes)
        check(workers)
