"""PyTorch's DataLoader with processes of its own in a registered worker, and other processes forked from one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

TRAIN = """
import torch, mlfabric
from torch.utils.data import DataLoader, TensorDataset

def wrapped(model, batches):
    optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    optimizer.finish()

def looped(model, batches):
    worker = mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=0.05))
    for inputs, targets in batches:
        worker.get()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        worker.push()
    worker.drain()
    worker.get()

def train(form, method, count, is_kept=False):
    torch.manual_seed(0)
    inputs, model = torch.randn(64, 4), torch.nn.Linear(4, 1)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    data, how = TensorDataset(inputs, targets), {"multiprocessing_context": method, "persistent_workers": is_kept}
    loader = DataLoader(data, batch_size=4, num_workers=2, **how)
    form(model, (batch for _ in range(count) for batch in loader))
    print("loss", torch.nn.functional.mse_loss(model(inputs), targets).item())

if __name__ == "__main__":
    train(CASE)
"""


def losses(code: int, out: str) -> list[float]:
    """Return the losses that a job's workers ended with."""
    assert code == 0, out
    assert "fork" not in out, out
    found = [float(line.split()[-1]) for line in out.splitlines() if "loss" in line]
    assert len(found) == 2, out
    return found


def test_a_wrapped_optimizer_trains_on_what_forked_processes_load(job):
    code, out = job(TRAIN.replace("CASE", "wrapped, 'fork', 2"))
    assert max(losses(code, out)) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("form", ["wrapped", "looped"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_every_way_to_start_loading_processes_trains(job, form, method, is_kept):
    code, out = job(TRAIN.replace("CASE", f"{form}, '{method}', 5, {is_kept}"))
    assert max(losses(code, out)) < 0.1


def test_a_process_that_is_forked_from_a_worker_s_is_not_the_worker(job):
    code, out = job(
        """
        import os, signal, sys, torch, mlfabric

        def said(call):
            try:
                call()
            except mlfabric.FabricError as error:
                return f"{type(error).__name__}: {error}"

        model = torch.nn.Linear(4, 1)
        worker = mlfabric.register_as_worker(model)
        worker.get()
        model(torch.ones(1, 4)).sum().backward()
        worker.push()
        copy = os.fork()
        if copy == 0:
            print("asked for a model,", said(worker.get), flush=True)
            print("registered,", said(lambda: mlfabric.register_as_worker(model)), flush=True)
            worker.drain()
            sys.exit(0)  # and all that is done at the end of a process
        assert os.waitpid(copy, 0)[1] == 0
        copy = os.fork()
        if copy == 0:
            signal.pause()
        os.kill(copy, signal.SIGTERM)
        assert os.waitpid(copy, 0)[1] == signal.SIGTERM
        model(torch.ones(1, 4)).sum().backward()
        print("the worker's update is", worker.push().result(60))
        """,
        workers=1,
    )
    assert code == 0, out
    assert "asked for a model, FabricClosedError: this process was forked from the worker's" in out
    assert "registered, UsageError: register_as_worker: this process was forked from the worker's" in out
    assert "the worker's update is Committed" in out
