"""A wrapped optimizer goes by its parameter groups at every step, as PyTorch's users and their schedulers set them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes


def test_a_scheduler_s_rate_reaches_the_step_that_it_was_set_for(job):
    """From .5 to 5e-13: the last steps move nothing. Then one more, which others have got without any finish()."""
    code, out = job(
        """
        import os, torch, mlfabric

        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        plain = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 2, 1e-3)
        optimizer = mlfabric.wrap(plain, model)
        if os.environ["RANK"] == "0":
            for step in range(10):
                model.weight.grad = torch.ones_like(model.weight)
                optimizer.step()
                scheduler.step()
            optimizer.finish()
            print(f"after 10 steps: {model.weight[0, 0].item():.6f}, rate {scheduler.get_last_lr()[0]:.0e}")
            plain.param_groups[0]["lr"] = 2.0
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
        else:
            optimizer.worker.get(min_version=11)
            print(f"after the end: {model.weight[0, 0].item():.6f}")
        """
    )
    assert code == 0, out
    assert "after 10 steps: -1.001001, rate 5e-16" in out
    assert "after the end: -3.001001" in out
    assert "UserWarning" not in out, out
