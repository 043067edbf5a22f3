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


def test_workers_in_step_do_what_one_process_does_with_the_mean_gradient(job):
    """Nesterov's momentum, two groups, a cycle of rates and momenta, a state dict saved and loaded half way."""
    code, out = job(
        """
        import io, os, torch, mlfabric

        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

        def begin():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double()
            groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.01}]
            return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)

        def train(model, optimizer, workers):
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.2, 0.4], total_steps=8)
            for step in range(8):
                optimizer.zero_grad()
                for worker in workers:
                    torch.manual_seed(10 * step + worker)
                    (model(torch.randn(5, 3).double()).square().mean() / len(workers)).backward()
                optimizer.step()
                scheduler.step()
                if step == 3:
                    file = io.BytesIO()
                    torch.save(optimizer.state_dict(), file)
                    optimizer.state.clear()
                    file.seek(0)
                    optimizer.load_state_dict(torch.load(file, weights_only=True))

        plain, optimizer = begin()
        train(plain, optimizer, range(world))
        model, optimizer = begin()
        wrapped = mlfabric.wrap(optimizer, model, mode=mlfabric.Mode.SYNCHRONOUS)
        train(model, wrapped, [rank])
        far = max((a - b).abs().max().item() for a, b in zip(model.parameters(), plain.parameters()))
        print("equal" if far < 1e-12 else f"apart by {far}")
        """
    )
    assert code == 0, out
    assert out.count("equal") == 2, out
