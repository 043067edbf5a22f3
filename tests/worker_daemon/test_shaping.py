"""What workers make of gradients: clipping and velocities as in torch, without ever touching what the script keeps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import mlfabric
from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.worker_daemon.gradient_rules import Shaping
from mlfabric.worker_daemon.optimizer_steps import steps_of
from mlfabric.worker_daemon.register import _placed
from mlfabric.worker_daemon.tensors import ModelTensors
from tests.fabric.harness import fabric
from tests.worker_daemon.conftest import pushed, three_vectors


@pytest.mark.parametrize("clip_norm", [0.5, 2.0, 100.0])
def test_gradients_are_clipped_as_torch_does_it(clip_norm: float) -> None:
    model, twin = three_vectors(), three_vectors()
    tensors = ModelTensors(model, Shaping(RuleSpec(clip_norm=clip_norm)))
    draw = torch.Generator().manual_seed(1)
    for name in ("a", "c"):
        model[name].grad = kept = torch.randn(3, generator=draw, dtype=torch.float64)
        twin[name].grad = kept.clone()
    as_it_was = kept.clone()
    torch.nn.utils.clip_grad_norm_(twin.values(), clip_norm)
    found, norm = pushed(tensors)
    for name, parameter in twin.items():
        wanted = torch.zeros(3, dtype=torch.float64) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], wanted, rtol=1e-14, atol=0)
    assert norm == pytest.approx(math.sqrt(sum(float(piece.square().sum()) for piece in found.values())), rel=1e-14)
    assert norm <= clip_norm
    assert torch.equal(kept, as_it_was)


def test_only_parameters_count_for_clipping_and_only_they_are_clipped() -> None:
    model = torch.nn.BatchNorm1d(1, affine=True)
    tensors = ModelTensors(model, Shaping(RuleSpec(clip_norm=1.0)))
    assert model.running_mean is not None
    model.running_mean.fill_(100.0)
    model.weight.grad, model.bias.grad = torch.tensor([0.6]), torch.tensor([0.8 - 1e-6])
    found, norm = pushed(tensors)
    assert [float(piece) for piece in found.values()] == pytest.approx([0.6, 0.8, 100.0, 1.0, 0], rel=1e-4)
    assert norm == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("clip_norm", [0.0, 1.5])
def test_a_lone_worker_with_its_own_momentum_makes_the_steps_of_torch_sgd(clip_norm: float) -> None:
    rule = RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=MomentumAt.WORKERS, clip_norm=clip_norm)
    model, plain = three_vectors(), three_vectors()
    tensors = ModelTensors(model, Shaping(rule))
    optimizer = torch.optim.SGD(plain.values(), lr=0.1, momentum=0.9, weight_decay=0.1)
    draw = torch.Generator().manual_seed(2)
    for _ in range(10):
        for name in ("a", "b", "c"):
            gradient = torch.randn(3, generator=draw, dtype=torch.float64)
            model[name].grad, plain[name].grad = gradient, gradient.clone()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(plain.values(), clip_norm)
        optimizer.step()
        velocities, _ = pushed(tensors)
        with torch.no_grad():
            for name, velocity in velocities.items():
                model[name].sub_(velocity, alpha=0.1)
    torch.testing.assert_close(dict(model.items()), dict(plain.items()), rtol=1e-12, atol=1e-12)


def test_what_the_script_does_with_its_gradients_changes_no_velocity() -> None:
    model = three_vectors()
    tensors = ModelTensors(model, Shaping(RuleSpec(momentum=0.5, momentum_at=MomentumAt.WORKERS)))
    bucket = torch.ones(3, dtype=torch.float64)
    model["a"].grad = bucket
    parcel, _ = tensors.take_update()
    bucket.fill_(7.0)
    assert parcel.is_unchanged()
    model["a"].grad = torch.zeros(3, dtype=torch.float64)
    assert pushed(tensors)[0]["a"].tolist() == [0.5] * 3
    assert pushed(tensors)[0]["a"].tolist() == [0.25] * 3


@pytest.mark.parametrize(
    "shaping_of",
    [
        lambda _: Shaping(RuleSpec(momentum=0.5, momentum_at=MomentumAt.WORKERS, clip_norm=10.0)),
        lambda model: steps_of(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), model, None)[1],
    ],
    ids=["of a rule", "of a wrapped optimizer"],
)
def test_an_update_that_is_not_finite_leaves_the_velocity_as_it_was(
    shaping_of: Callable[[torch.nn.Module], Shaping],
) -> None:
    model = three_vectors()
    tensors = ModelTensors(model, shaping_of(model))
    for value, finite in ((1.0, True), (math.nan, False), (math.inf, False), (0.0, True)):
        model["a"].grad = torch.full((3,), value, dtype=torch.float64)
        found, norm = pushed(tensors)
        assert math.isfinite(norm) == finite
    assert found["a"].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("rule", "asked", "method", "found"),
    [
        (RuleSpec(momentum=0.9), None, Method.ASYNCHRONOUS, MomentumAt.WORKERS),
        (RuleSpec(momentum=0.9), None, Method.SYNCHRONOUS, MomentumAt.SERVER),
        (RuleSpec(momentum=0.9), MomentumAt.SERVER, Method.ASYNCHRONOUS, MomentumAt.SERVER),
        (RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER), None, Method.ASYNCHRONOUS, MomentumAt.SERVER),
        (
            RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER),
            MomentumAt.WORKERS,
            Method.ASYNCHRONOUS,
            MomentumAt.WORKERS,
        ),
        (RuleSpec(), None, Method.ASYNCHRONOUS, None),
        (RuleSpec(kind=RuleKind.ADAM), None, Method.ASYNCHRONOUS, None),
    ],
)
def test_momentum_is_where_it_is_asked_for_else_where_the_method_wants_it(
    rule: RuleSpec, asked: MomentumAt | None, method: Method, found: MomentumAt | None
) -> None:
    assert _placed(rule, asked, method).momentum_at is found


def test_momentum_of_a_rule_that_has_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"adam: momentum_at=.* has no part in it"):
        _placed(RuleSpec(kind=RuleKind.ADAM), MomentumAt.WORKERS, Method.ASYNCHRONOUS)


@pytest.mark.parametrize("where", MomentumAt)
def test_a_job_keeps_its_momentum_where_it_is_asked_to(where: MomentumAt) -> None:
    """With two workers in turns it makes a difference where."""
    rule = RuleSpec(lr=0.5, momentum=0.5)
    with fabric() as running:
        workers = []
        for name in ("one", "two"):
            model = {"w": torch.zeros(2, requires_grad=True)}
            settings = running.settings(name)
            worker = mlfabric.register_as_worker(model, rule=rule, momentum_at=where, settings=settings)
            worker.get()
            workers.append((model, worker))
        for model, worker in workers * 2:
            worker.get()
            model["w"].grad = torch.ones(2)
            worker.push().result(10)
        model, worker = workers[0]
        worker.get(min_version=4)
        wanted = {MomentumAt.SERVER: -(0.5 + 0.75 + 0.875 + 0.9375), MomentumAt.WORKERS: -(0.5 + 0.5 + 0.75 + 0.75)}
        assert model["w"].tolist() == [wanted[where]] * 2
        for _, worker in workers:
            worker.leave()
