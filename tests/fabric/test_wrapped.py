"""Wrapped optimizers through a whole fabric: in step they do what torch does in one process, at rates that move."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

import mlfabric
from mlfabric.model.specs import Method, MomentumAt
from tests.fabric.harness import Fabric, fabric
from tests.fabric.several import together

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
STEPS = 6
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
CASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], Schedule]] = {
    "sgd": (SGD, {"lr": 0.1}, lambda o: LambdaLR(o, [lambda n: 0.5**n, lambda n: n % 2])),
    "momentum": (
        SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        lambda o: OneCycleLR(o, [0.2, 0.4], total_steps=STEPS + 1),
    ),
    "adam": (ADAM, {"lr": 0.1, "weight_decay": 0.1}, lambda o: LambdaLR(o, [lambda n: 0.5**n, lambda n: n % 2])),
    "adamw": (ADAMW, {"lr": 0.1, "weight_decay": 0.2}, lambda o: LambdaLR(o, lambda n: 1 / (1 + n))),
}


def begin(case: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    kind, settings, _ = CASES[case]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double()
    two: list[dict[str, Any]] = [{"params": model[0].parameters()}]
    two.append({"params": model[1].parameters(), "weight_decay": 0.01})
    return model, kind(two, **settings)


def train(case: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, workers: list[int], of: int) -> None:
    """Train with the mean gradient of some of the workers; a scheduler sets the rates.

    An optimizer with momentum is saved and loaded half way.
    """
    scheduler = CASES[case][2](optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        for worker in workers:
            draw = torch.Generator().manual_seed(of * step + worker)
            inputs = torch.randn(5, 3, generator=draw, dtype=torch.float64)
            (model(inputs).square().mean() / len(workers)).backward()
        optimizer.step()
        scheduler.step()
        if case == "momentum" and step == STEPS // 2:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            optimizer.state.clear()
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))


def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def in_step(running: Fabric, case: str, count: int, **options: Any) -> list[torch.nn.Module]:
    """Train with so many workers in threads of their own; return their models."""
    models = []
    begun = [begin(case) for _ in range(count)]  # here, as threads share the state that weights are drawn from

    def work(rank: int) -> None:
        model, optimizer = begun[rank]
        settings = running.settings(f"w{rank}")
        wrapped = mlfabric.wrap(optimizer, model, settings=settings, workers=count, **options)
        train(case, model, wrapped, [rank], count)
        models.append(model)
        wrapped.worker.leave()

    together(*(partial(work, rank) for rank in range(count)))
    return models


@pytest.mark.parametrize("case", CASES)
def test_in_step_workers_do_what_one_process_does_with_the_mean_gradient(case: str) -> None:
    plain, optimizer = begin(case)
    train(case, plain, optimizer, [0, 1, 2], 3)
    with fabric() as running:
        models = in_step(running, case, 3, method=Method.SYNCHRONOUS)
    assert [apart(model, plain) < 1e-12 for model in models] == [True] * 3


@pytest.mark.parametrize("case", ["adam", "momentum"])
def test_a_lone_worker_with_overlap_does_what_torch_does(case: str) -> None:
    plain, optimizer = begin(case)
    train(case, plain, optimizer, [0], 1)
    with fabric() as running:
        (model,) = in_step(running, case, 1, method=Method.SYNCHRONOUS, overlap=True)
    assert apart(model, plain) < 1e-12


def test_rates_reach_every_part_of_a_model_that_is_cut() -> None:
    plain, optimizer = begin("adamw")
    train("adamw", plain, optimizer, [0, 1], 2)
    with fabric() as running:
        for name in ("second", "third"):
            running.server(name=name)
        models = in_step(running, "adamw", 2, method=Method.SYNCHRONOUS, servers=3)
    assert [apart(model, plain) < 1e-12 for model in models] == [True] * 2


def test_a_rate_of_nothing_is_a_step_of_nothing_and_closures_and_scalers_work() -> None:
    with fabric() as running:
        model, optimizer = begin("sgd")
        wrapped = mlfabric.wrap(optimizer, model, settings=running.settings())
        for group in wrapped.param_groups:
            group["lr"] = 0.0
        before = [p.detach().clone() for p in model.parameters()]
        inputs = torch.ones(2, 3, dtype=torch.float64)

        def closure() -> torch.Tensor:
            wrapped.zero_grad()
            loss: torch.Tensor = model(inputs).square().mean()
            loss.backward()
            return loss

        assert wrapped.step(closure).item() > 0
        scaler = torch.amp.GradScaler("cpu")
        wrapped.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(wrapped)
        scaler.update()
        wrapped.finish()
        assert wrapped.worker.tally.committed == 2
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        wrapped.worker.leave()


def test_what_cannot_be_loaded_or_added_is_refused() -> None:
    with fabric() as running:
        model, optimizer = begin("momentum")
        wrapped = mlfabric.wrap(optimizer, model, momentum_at=None, settings=running.settings())
        with pytest.raises(mlfabric.UsageError, match="add_param_group after wrap"):
            wrapped.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
        assert len(wrapped.param_groups) == 2
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
        optimizer.param_groups[0]["lr"] = 0.7
        assert wrapped.param_groups[0]["lr"] == 0.7
        wrapped.worker.leave()
    with fabric() as running:
        plain, used = begin("adam")
        train("adam", plain, used, [0], 1)
        model, optimizer = begin("adam")
        wrapped = mlfabric.wrap(optimizer, model, settings=running.settings())
        with pytest.raises(mlfabric.UsageError, match="with averages or momentum, which the server keeps"):
            wrapped.load_state_dict(used.state_dict())
        wrapped.load_state_dict(wrapped.state_dict())
        wrapped.worker.leave()


def test_momentum_may_be_the_server_s() -> None:
    plain, _ = begin("sgd")
    reference = SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model, _ = begin("sgd")
    with fabric() as running:
        settings, mine = running.settings(), SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = mlfabric.wrap(
            mine, model, momentum_at=MomentumAt.SERVER, method=Method.SYNCHRONOUS, settings=settings
        )
        for one, of in ((plain, reference), (model, wrapped)):
            for step in range(4):
                of.zero_grad()
                one(torch.full((2, 3), float(step), dtype=torch.float64)).square().mean().backward()
                of.step()
        wrapped.worker.leave()
    assert apart(model, plain) < 1e-12
