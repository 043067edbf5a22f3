"""What workers make of gradients: clipping and velocities as in torch, without ever touching what the script keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mlfabric
from mlfabric.errors import ConfigError
from mlfabric.model.specs import Mode
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.worker_daemon.gradient_rules import Shaping
from mlfabric.worker_daemon.register import _placed
from mlfabric.worker_daemon.tensors import ModelTensors
from tests.fabric.harness import fabric


def a_model() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {n: torch.randn(3, generator=draw, dtype=torch.float64).requires_grad_() for n in ("a", "b", "c")}


def pushed(tensors: ModelTensors) -> tuple[list[float], float]:
    parcel, norm = tensors.take_update()
    numbers = [np.frombuffer(piece, dtype=np.float64) for piece in parcel.pieces]
    return np.concatenate([n[:3] for n in numbers if len(n) == 3]).tolist(), norm


@pytest.mark.parametrize("clip_norm", [0.5, 2.0, 100.0])
def test_gradients_are_clipped_as_torch_does_it(clip_norm: float) -> None:
    model, twin = a_model(), a_model()
    tensors = ModelTensors(model, Shaping(RuleSpec(clip_norm=clip_norm)))
    draw = torch.Generator().manual_seed(1)
    for name in ("a", "c"):
        model[name].grad = kept = torch.randn(3, generator=draw, dtype=torch.float64)
        twin[name].grad = kept.clone()
    before = [model[name].grad for name in ("a", "c")]
    torch.nn.utils.clip_grad_norm_(twin.values(), clip_norm)
    found, norm = pushed(tensors)
    wanted = [
        0.0 if t.grad is None else x for t in twin.values() for x in (t.grad if t.grad is not None else [0.0] * 3)
    ]
    assert found == pytest.approx([float(x) for x in wanted], rel=1e-14)
    assert norm == pytest.approx(math.sqrt(sum(x * x for x in found)), rel=1e-14)
    assert norm <= clip_norm
    assert [g is not None and float(g.sum()) != 0 for g in before] == [True, True]


def test_only_parameters_count_for_clipping_and_only_they_are_clipped() -> None:
    model = torch.nn.BatchNorm1d(1, affine=True)
    tensors = ModelTensors(model, Shaping(RuleSpec(clip_norm=1.0)))
    assert model.running_mean is not None
    model.running_mean.fill_(100.0)
    model.weight.grad, model.bias.grad = torch.tensor([0.6]), torch.tensor([0.8 - 1e-6])
    parcel, norm = tensors.take_update()
    first = [float(np.frombuffer(p, dtype=np.float32)[0]) for p in parcel.pieces if p.nbytes == 4]
    assert first == pytest.approx([0.6, 0.8, 100.0, 1.0], rel=1e-4)
    assert norm == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("clip_norm", [0.0, 1.5])
def test_a_lone_worker_with_its_own_momentum_makes_the_steps_of_torch_sgd(clip_norm: float) -> None:
    rule = RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=MomentumAt.WORKERS, clip_norm=clip_norm)
    model, plain = a_model(), a_model()
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
            for i, name in enumerate(model):
                model[name].sub_(torch.tensor(velocities[3 * i : 3 * i + 3], dtype=torch.float64), alpha=0.1)
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-12, atol=1e-12)


def test_what_the_script_does_with_its_gradients_changes_no_velocity() -> None:
    model = a_model()
    tensors = ModelTensors(model, Shaping(RuleSpec(momentum=0.5, momentum_at=MomentumAt.WORKERS)))
    bucket = torch.ones(3, dtype=torch.float64)
    model["a"].grad = bucket
    parcel, _ = tensors.take_update()
    bucket.fill_(7.0)
    assert parcel.is_unchanged()
    model["a"].grad = torch.zeros(3, dtype=torch.float64)
    assert pushed(tensors)[0][:3] == [0.5] * 3
    assert pushed(tensors)[0][:3] == [0.25] * 3


def test_an_update_that_is_not_finite_leaves_the_velocity_as_it_was() -> None:
    model = a_model()
    tensors = ModelTensors(model, Shaping(RuleSpec(momentum=0.5, momentum_at=MomentumAt.WORKERS, clip_norm=10.0)))
    for value, finite in ((1.0, True), (math.nan, False), (math.inf, False), (0.0, True)):
        model["a"].grad = torch.full((3,), value, dtype=torch.float64)
        found, norm = pushed(tensors)
        assert math.isfinite(norm) == finite
    assert found[:3] == [0.5] * 3


@pytest.mark.parametrize(
    ("rule", "asked", "mode", "found"),
    [
        (RuleSpec(momentum=0.9), None, Mode.ASYNCHRONOUS, MomentumAt.WORKERS),
        (RuleSpec(momentum=0.9), None, Mode.SYNCHRONOUS, MomentumAt.SERVER),
        (RuleSpec(momentum=0.9), MomentumAt.SERVER, Mode.ASYNCHRONOUS, MomentumAt.SERVER),
        (RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER), None, Mode.ASYNCHRONOUS, MomentumAt.SERVER),
        (
            RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER),
            MomentumAt.WORKERS,
            Mode.ASYNCHRONOUS,
            MomentumAt.WORKERS,
        ),
        (RuleSpec(), None, Mode.ASYNCHRONOUS, None),
        (RuleSpec(kind=RuleKind.ADAM), None, Mode.ASYNCHRONOUS, None),
    ],
)
def test_momentum_is_where_it_is_asked_for_else_where_the_mode_wants_it(
    rule: RuleSpec, asked: MomentumAt | None, mode: Mode, found: MomentumAt | None
) -> None:
    assert _placed(rule, asked, mode).momentum_at is found


def test_momentum_of_a_rule_that_has_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"adam: momentum_at=.* has no part in it"):
        _placed(RuleSpec(kind=RuleKind.ADAM), MomentumAt.WORKERS, Mode.ASYNCHRONOUS)


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
