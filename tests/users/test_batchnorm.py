"""BatchNorm's statistics in jobs of several workers: they are those of the data, whoever brought them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import os, torch, mlfabric

torch.manual_seed(int(os.environ["RANK"]))
model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=0.5), torch.nn.Linear(3, 1))
worker = mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=1e-3), tau_max=1000, init=0)
worker.get()
for step in range(12):
    model(5 + 2 * torch.randn(4000, 3)).square().mean().backward()
    worker.push()
    worker.get()
worker.drain()
worker.get()
mean, variance = model[0].running_mean, model[0].running_var
print("within 10 %:", bool((mean / 5 - 1).abs().max() < 0.1 and (variance / 4 - 1).abs().max() < 0.1))
print("batches:", model[0].num_batches_tracked.item())
model.eval()
print("finite:", bool(model(5 + 2 * torch.randn(9, 3)).isfinite().all()))
"""


def check(out: str, workers: int) -> None:
    assert out.count("within 10 %: True") == workers, out
    assert out.count("finite: True") == workers, out
    batches = [int(line.split()[-1]) for line in out.splitlines() if "batches:" in line]
    assert len(batches) == workers, out
    assert min(batches) >= 12, out
    assert max(batches) <= 12 * workers, out


def test_statistics_of_two_workers_are_those_of_the_data(job):
    code, out = job(SCRIPT, workers=2)
    assert code == 0, out
    check(out, 2)
