"""Several models in one training script."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

GAN = """
import torch, mlfabric
from torch import distributed
from torch.nn.functional import binary_cross_entropy_with_logits as loss

STEPS = 40
distributed.init_process_group("gloo")

def gan(method):
    torch.manual_seed(0)
    generator, critic = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
    makes, judges = (torch.optim.SGD(model.parameters(), 0.1) for model in (generator, critic))
    make = mlfabric.wrap(makes, generator, method=method, model_name=f"make {method}")
    judge = mlfabric.wrap(judges, critic, method=method, model_name=f"judge {method}")
    distributed.barrier()  # asynchronous training would begin alone
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(STEPS):
        real, made = torch.randn(64, 1) + 3, generator(torch.randn(64, 2))
        judge.zero_grad()
        (loss(critic(real), ones) + loss(critic(made.detach()), zeros)).backward()
        judge.step()
        make.zero_grad()
        loss(critic(made), ones).backward()
        make.step()
    for optimizer in (make, judge):
        optimizer.finish()
        worker = optimizer.worker
        tally, version = worker.tally, worker.version.number
        counts = tally.committed, tally.dropped, tally.lost, worker.tau_max
        print("model", method, worker.name, version, *counts, generator.bias.item(), sep=",")
    distributed.barrier()
    make.worker.leave()
    judge.worker.leave()

for method in ("asynchronous", "synchronous"):
    gan(method)
"""


def test_a_gan_trains_two_models_in_each_of_two_processes(job):
    code, out = job(GAN)
    assert code == 0, out
    rows = [line.partition("model,")[2].split(",") for line in out.splitlines() if "model," in line]
    assert len(rows) == 8, out
    for method in ("asynchronous", "synchronous"):
        mine = [row for row in rows if row[0] == method]
        assert {row[1] for row in mine} == {f"worker-{i}{more}" for i in range(2) for more in ("", f".judge {method}")}
        assert {int(row[3]) + int(row[4]) for row in mine} == {40}, "every update was decided upon"
        assert {row[5] for row in mine} == {"0"}
        assert all(float(row[7]) > 1 for row in mine), "the generator came nearer to its data"
    together = [row for row in rows if row[0] == "synchronous"]
    assert {(row[2], row[3]) for row in together} == {("40", "40")}, "a step is one update of both processes"
    alone = [row for row in rows if row[0] == "asynchronous"]
    assert max(int(row[6]) for row in alone) == 4, "twice the workers of one model"
    # An update that came with a delay above 4 is dropped: the other process may have been five steps ahead.
    for model in ([row for row in alone if ("judge" in row[1]) == judged] for judged in (False, True)):
        done = [int(row[3]) for row in model]
        assert max(done) <= max(int(row[2]) for row in model) <= sum(done)
