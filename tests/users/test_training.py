"""Training scripts as PyTorch's users write them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes


def test_a_wrapped_optimizer_trains(job):
    code, out = job(
        """
        import torch, mlfabric

        torch.manual_seed(0)
        data, model = torch.randn(256, 4), torch.nn.Linear(4, 1)
        target = data @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
        optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data), target).backward()
            optimizer.step()
        optimizer.finish()
        print("loss", torch.nn.functional.mse_loss(model(data), target).item())
        """
    )
    assert code == 0, out
    losses = [float(line.split()[-1]) for line in out.splitlines() if "loss" in line]
    assert len(losses) == 2, out
    assert max(losses) < 0.1, out
