"""Wrapped optimizers: their steps are torch's, at the settings of that very step; what cannot be is refused."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import ParameterDict

from mlfabric.errors import UsageError
from mlfabric.model.specs import TensorKind
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.worker_daemon.optimizer_steps import steps_of
from mlfabric.worker_daemon.register import wrap
from mlfabric.worker_daemon.tensors import ModelTensors
from tests.worker_daemon.conftest import pushed, three_vectors

SGD, ADAM, ADAMW, ADAGRAD = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad
AT_SERVER = MomentumAt.SERVER


def groups_of(model: ParameterDict) -> list[dict[str, Any]]:
    return [{"params": [model["a"], model["c"]]}, {"params": [model["b"]], "lr": 0.02, "weight_decay": 0.3}]


def two_groups(model: ParameterDict, **of_the_second: Any) -> list[dict[str, Any]]:
    return [{"params": [model["a"], model["b"]]}, {"params": [model["c"]], **of_the_second}]


def set_gradients(model: ParameterDict, seed: int, *, skip: str = "") -> None:
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(3, generator=draw, dtype=torch.float64)
        parameter.grad = None if name == skip else gradient


SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 0.2},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
    {"lr": 0.1, "momentum": 0.5, "maximize": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_a_lone_worker_pushes_is_the_step_of_torch_sgd_at_every_rate(settings: dict[str, Any]) -> None:
    mine, plain = three_vectors(), three_vectors()
    optimizer, reference = SGD(groups_of(mine), **settings), SGD(groups_of(plain), **settings)
    rule, shaping = steps_of(optimizer, mine, None)
    assert rule == RuleSpec(lr=1.0)
    tensors = ModelTensors(mine, shaping)
    for seed in range(8):
        for group, other in zip(optimizer.param_groups, reference.param_groups, strict=True):
            group["lr"] = other["lr"] = 0.0 if seed == 4 else other["lr"] * 0.8
            if settings.get("momentum"):
                group["momentum"] = other["momentum"] = 0.5 + 0.05 * seed
        for model in (mine, plain):
            set_gradients(model, seed, skip="c" if seed in (0, 3) else "")
        reference.step()
        step, norm = pushed(tensors)
        assert norm == pytest.approx(math.sqrt(sum(float(s.square().sum()) for s in step.values())), rel=1e-12)
        with torch.no_grad():
            for name, parameter in mine.named_parameters():
                parameter.sub_(step[name])
                assert torch.allclose(parameter, plain.get_parameter(name), rtol=1e-13, atol=1e-15)


def test_with_the_momentum_at_the_server_the_worker_makes_the_rest() -> None:
    model = three_vectors()
    optimizer = SGD(groups_of(model), lr=0.1, momentum=0.9, weight_decay=0.2)
    rule, shaping = steps_of(optimizer, model, MomentumAt.SERVER)
    assert rule == RuleSpec(lr=1.0, momentum=0.9, momentum_at=MomentumAt.SERVER)
    tensors = ModelTensors(model, shaping)
    set_gradients(model, 1)
    assert model["b"].grad is not None
    wanted = 0.02 * (model["b"].grad + 0.3 * model["b"].detach())
    assert torch.allclose(pushed(tensors)[0]["b"], wanted, rtol=1e-14)
    optimizer.param_groups[1]["momentum"] = 0.8
    set_gradients(model, 2)
    with pytest.raises(UsageError, match=r"momentum=0\.8 with the momentum at the server; allowed: 0\.9"):
        tensors.take_update()
    assert model["b"].grad is not None


@pytest.mark.parametrize(("kind", "decoupled"), [(ADAM, False), (ADAMW, True)])
def test_adam_s_rates_travel_with_its_gradients(kind: type[torch.optim.Adam], decoupled: bool) -> None:
    model = three_vectors()
    optimizer = kind(groups_of(model), lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    rule, shaping = steps_of(optimizer, model, None)
    assert (rule.kind, rule.lr, rule.beta1, rule.beta2, rule.epsilon) == (RuleKind.ADAM, 1.0, 0.8, 0.9, 1e-6)
    assert (rule.decoupled, rule.weight_decay) == (decoupled, 0.3 if decoupled else 0.0)
    tensors = ModelTensors(model, shaping)
    assert [(t.name, t.group) for t in tensors.layout.tensors] == [("a", 0), ("b", 1), ("c", 0), ("(rates)", 0)]
    assert tensors.layout.tensors[-1].kind is TensorKind.RATES
    optimizer.param_groups[1].update(lr=0.7, weight_decay=0.05)
    set_gradients(model, 1)
    gradient = model["a"].grad
    found, norm = pushed(tensors)
    assert gradient is not None
    assert torch.equal(found["a"], gradient)
    assert found["(rates)"].tolist() == [[0.1, 0.1], [0.7, 0.05]]
    assert norm == 0.7
    model["a"].grad = torch.full((3,), torch.nan, dtype=torch.float64)
    assert not math.isfinite(pushed(tensors)[1])


def test_another_model_of_the_same_kind_can_be_given_to_push_and_get() -> None:
    model, other = three_vectors(), three_vectors()
    shaping = steps_of(ADAM(groups_of(model)), model, None)[1]
    assert ModelTensors(other, shaping).layout == ModelTensors(model, shaping).layout


def stepped(model: ParameterDict) -> torch.optim.Optimizer:
    optimizer = ADAM(model.parameters())
    set_gradients(model, 1)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "where", "said"),
    [
        (lambda m: ADAM(m.parameters(), amsgrad=True), None, "amsgrad=True; allowed: False"),
        (lambda m: ADAM(m.parameters(), maximize=True), None, "maximize=True; allowed: False"),
        (lambda m: ADAM(two_groups(m, betas=(0.5, 0.9))), None, "groups differ in betas"),
        (lambda m: SGD([m["a"], m["b"]], lr=0.1), None, "the optimizer does not hold c; freeze them"),
        (lambda m: ADAGRAD(m.parameters()), None, r"cannot take over Adagrad; allowed.*SGD.*Method\.ALL_REDUCE"),
        (
            lambda m: SGD(m.parameters(), momentum=0.9, nesterov=True),
            AT_SERVER,
            "nesterov=True with the momentum at",
        ),
        (lambda m: SGD(two_groups(m, momentum=0.5)), AT_SERVER, "groups differ in momentum"),
        (lambda m: ADAM(m.parameters()), AT_SERVER, "momentum_at=.* with Adam, whose averages are the server's"),
        (stepped, None, "has made steps already"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(
    make: Callable[[ParameterDict], torch.optim.Optimizer], where: MomentumAt | None, said: str
) -> None:
    model = three_vectors()
    with pytest.raises(UsageError, match=said):
        wrap(make(model), model, momentum_at=where)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("betas", (0.85, 0.999), r"betas=\(0\.85, 0\.999\); allowed: \(0\.9, 0\.999\).*cycle_momentum=False"),
        ("eps", 1e-3, r"eps=0\.001; allowed: 1e-08"),
        ("lr", -0.1, r"lr=-0\.1; allowed: finite and >= 0"),
        ("weight_decay", 0.02, r"weight_decay=0\.02; allowed: up to 0\.01"),
    ],
)
def test_a_setting_that_adam_got_later_is_refused_at_the_step(setting: str, value: object, said: str) -> None:
    model = three_vectors()
    optimizer = ADAMW(model.parameters())
    tensors = ModelTensors(model, steps_of(optimizer, model, None)[1])
    optimizer.param_groups[0][setting] = value
    with pytest.raises(UsageError, match=said):
        tensors.take_update()


def test_the_state_dict_is_torch_s_own() -> None:
    """What a worker saves, a plain optimizer goes on from."""
    model = three_vectors()
    optimizer = SGD(groups_of(model), lr=0.1, momentum=0.9)
    tensors = ModelTensors(model, steps_of(optimizer, model, None)[1])
    set_gradients(model, 1)
    pushed(tensors)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    plain = SGD(groups_of(three_vectors()), lr=1.0, momentum=0.1)
    plain.load_state_dict(torch.load(file, weights_only=True))
    assert [len(plain.state), plain.param_groups[0]["lr"]] == [3, 0.1]
