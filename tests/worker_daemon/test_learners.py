"""Several learners on one device: SMA as the paper has it, whichever way gradients are computed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import mlfabric
from mlfabric.worker_daemon import learners as learners_module
from mlfabric.worker_daemon.learner_engines import ENGINES

K, BATCH = 3, 4


def a_model(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def squared(model: Any, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs), wanted)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(BATCH, 5, generator=draw), torch.randn(BATCH, 2, generator=draw)) for _ in range(count)]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_definition(model: nn.Module, iterations: int, make: Any, alpha: float, momentum: float) -> torch.Tensor:
    """Return the central model of algorithm 1, computed with one module and one optimizer for each learner."""
    learners = [deepcopy(model) for _ in range(K)]
    optimizers = [make(learner.parameters()) for learner in learners]
    z, before, data = flat(model), flat(model), iter(batches(K * iterations))
    for _ in range(iterations):
        total = torch.zeros_like(z)
        for learner, optimizer in zip(learners, optimizers, strict=True):
            correction = alpha * (flat(learner) - z)
            optimizer.zero_grad()
            squared(learner, *next(data)).backward()
            optimizer.step()
            nn.utils.vector_to_parameters(flat(learner) - correction, learner.parameters())
            total += correction
        z, before = z + total + momentum * (z - before), z
    return z


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_central_model_is_that_of_the_algorithm(engine: str, optimizer: str) -> None:
    model, make = a_model(), OPTIMIZERS[optimizer]
    wanted = by_definition(deepcopy(model), 6, make, 1 / K, 0.9)
    learners = mlfabric.Learners(model, make(model.parameters()), squared, count=K, engine=engine)
    made = [learners.step(*batch) for batch in batches(K * 6)]
    assert [losses is not None for losses in made] == [False, False, True] * 6
    assert torch.allclose(flat(model), wanted, atol=1e-6)
    assert learners.report.iterations == 6
    assert learners.report.engine == engine


def test_alpha_and_no_momentum_are_ea_sgd() -> None:
    model, make = a_model(), OPTIMIZERS["sgd"]
    wanted = by_definition(deepcopy(model), 5, make, 0.1, 0.0)
    learners = mlfabric.Learners(
        model, make(model.parameters()), squared, count=K, alpha=0.1, momentum=0.0, engine="batched"
    )
    for batch in batches(K * 5):
        learners.step(*batch)
    assert torch.allclose(flat(model), wanted, atol=1e-6)


def test_a_great_change_of_the_learning_rate_makes_a_restart_and_a_small_one_none() -> None:
    model = a_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    learners = mlfabric.Learners(model, sgd, squared, count=2, engine="batched")
    data = iter(batches(12))
    for rate, restarts in ((0.1, 0), (0.09, 0), (0.03, 1), (0.03, 1)):
        sgd.param_groups[0]["lr"] = rate
        learners.step(*next(data))
        learners.step(*next(data))
        assert learners.report.restarts == restarts


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_norm_statistics_are_the_means_of_the_learners(engine: str) -> None:
    norm = nn.BatchNorm1d(7)
    first = nn.Linear(5, 7)
    model = nn.Sequential(first, norm, nn.Linear(7, 2))
    learners = mlfabric.Learners(model, torch.optim.SGD(model.parameters(), lr=0.0), squared, count=2, engine=engine)
    data = batches(2)
    means = [first(inputs).mean(dim=0).detach() for inputs, _ in data]
    for batch in data:
        learners.step(*batch)
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean, 0.1 * (means[0] + means[1]) / 2, atol=1e-6)
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 1


def test_the_fastest_engine_is_taken_and_one_that_cannot_compute_the_model_is_left_out() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(inputs)
            return made if float(made.detach().sum()) > 0 else -made  # no batched model can branch

    model = Branching()
    learners = mlfabric.Learners(model, torch.optim.SGD(model.parameters(), lr=0.1), squared, count=2)
    for batch in batches(4):
        learners.step(*batch)
    assert learners.report.engine in ("threads", "in turn")


def test_batches_of_different_shapes_are_computed_in_turn() -> None:
    model = a_model()
    learners = mlfabric.Learners(model, torch.optim.SGD(model.parameters(), lr=0.1), squared, count=2)
    (inputs, wanted), whole = batches(2)
    learners.step(inputs[:1], wanted[:1])
    losses = learners.step(*whole)
    assert losses is not None
    assert bool(torch.isfinite(losses).all())
    assert learners.report.engine == ""
    for batch in batches(2):
        learners.step(*batch)
    assert learners.report.engine in ENGINES


def test_a_schedule_of_the_optimizer_acts_on_all_learners_and_their_mode_is_the_models() -> None:
    dropout = nn.Dropout(0.9)
    model = nn.Sequential(nn.Linear(5, 2), dropout)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    learners = mlfabric.Learners(model, sgd, squared, count=2, engine="batched", momentum=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, step_size=1, gamma=0.0)
    data = batches(4)
    model.eval()
    first, second = (squared(model, *batch).item() for batch in data[:2])
    learners.step(*data[0])
    losses = learners.step(*data[1])
    assert losses is not None
    assert losses.tolist() == pytest.approx([first, second])
    schedule.step()
    learners.restart()
    before = flat(model).clone()
    for batch in data[2:]:
        learners.step(*batch)
    assert torch.equal(flat(model), before)


def test_learners_come_and_go_while_the_best_number_is_looked_for() -> None:
    model = a_model()
    before = flat(model).clone()
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    learners = mlfabric.Learners(model, adam, squared, count="auto")
    data = batches(40)
    counts = set()
    for turn in range(4000):
        learners.step(*data[turn % len(data)])
        counts.add(learners.count)
        if not learners.is_tuning:
            break
    assert not learners.is_tuning
    assert max(counts) > 1
    assert not torch.equal(flat(model), before)
    assert bool(torch.isfinite(flat(model)).all())


def test_what_a_learner_takes_is_said_and_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    learners = mlfabric.Learners(model, sgd, squared, count=2)
    for batch in batches(2):
        learners.step(*batch)
    each = learners.report.bytes_per_learner
    assert 4 * 4 * len(flat(model)) < each < 20 * 4 * len(flat(model))
    monkeypatch.setattr(learners_module, "_free_bytes", lambda device: 10 * each)
    with pytest.raises(mlfabric.UsageError, match=r"count=1000: a learner takes .* allowed: up to"):
        mlfabric.Learners(model, sgd, squared, count=1000)
    many = mlfabric.Learners(model, sgd, squared, count=10)
    *first, last = batches(10)
    for batch in first:
        many.step(*batch)
    with pytest.raises(mlfabric.UsageError, match=r"count=10: a learner takes .* allowed: up to 9"):
        many.step(*last)


def test_frozen_parameters_are_shared_and_stay() -> None:
    first, last = nn.Linear(5, 7).requires_grad_(False), nn.Linear(7, 2)
    model, frozen = nn.Sequential(first, nn.Tanh(), last), first.weight.clone()
    for engine in ENGINES:
        sgd = torch.optim.SGD(last.parameters(), lr=0.1)
        learners = mlfabric.Learners(model, sgd, squared, count=2, engine=engine)
        for batch in batches(4):
            learners.step(*batch)
    assert torch.equal(first.weight, frozen)


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"count": 0}, "count=0; allowed"),
        ({"count": "many"}, "count='many'; allowed"),
        ({"alpha": 0.0}, "alpha=0.0; allowed: above 0, at most 1"),
        ({"momentum": 1.0}, "momentum=1.0; allowed: 0 to below 1"),
        ({"engine": "fast"}, "engine='fast'; allowed: auto, batched, threads, in turn"),
        ({"loss": 3}, "loss=3; allowed: a function"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], story: str) -> None:
    model = a_model()
    given = {"loss": squared, **options}
    with pytest.raises(mlfabric.UsageError, match=story):
        mlfabric.Learners(model, torch.optim.SGD(model.parameters(), lr=0.1), **given)
