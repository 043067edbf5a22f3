"""Which optimizers can be taken over, and as which rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.rules import RuleKind, RuleSpec
from mlfabric.worker_daemon.optimizer import rule_of
from mlfabric.worker_daemon.register import wrap


def parameters(count: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2)) for _ in range(count)]


def test_sgd_becomes_the_rule_that_does_the_same() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.3, momentum=0.8, weight_decay=0.02)
    assert rule_of(optimizer) == RuleSpec(lr=0.3, momentum=0.8, weight_decay=0.02)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"momentum": 0.9, "dampening": 0.1}, "SGD with dampening=0.1; allowed: 0"),
        ({"momentum": 0.9, "nesterov": True}, "SGD with nesterov=True; allowed: False"),
        ({"maximize": True}, "SGD with maximize=True; allowed: False"),
    ],
)
def test_what_the_server_cannot_do_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rule_of(torch.optim.SGD(parameters(), lr=0.1, **settings))


@pytest.mark.parametrize(("kind", "decay"), [(torch.optim.Adam, 0.02), (torch.optim.AdamW, 0.0)])
def test_adam_becomes_the_rule_that_does_the_same(kind: type[torch.optim.Optimizer], decay: float) -> None:
    optimizer = kind(parameters(), lr=0.3, betas=(0.8, 0.9), eps=1e-6, weight_decay=decay)  # type: ignore[call-arg]
    wanted = RuleSpec(kind=RuleKind.ADAM, lr=0.3, beta1=0.8, beta2=0.9, epsilon=1e-6, weight_decay=decay)
    assert rule_of(optimizer) == wanted


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (torch.optim.Adam(parameters(), amsgrad=True), "Adam with amsgrad=True; allowed: False"),
        (torch.optim.Adam(parameters(), maximize=True), "Adam with maximize=True; allowed: False"),
        (torch.optim.AdamW(parameters()), r"AdamW with weight_decay=0\.01; allowed: 0"),
    ],
)
def test_what_the_rule_of_adam_lacks_is_refused(optimizer: torch.optim.Optimizer, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rule_of(optimizer)


def test_other_optimizers_are_refused() -> None:
    said = r"cannot take over Adagrad; allowed: torch\.optim\.SGD, torch\.optim\.Adam, torch\.optim\.AdamW"
    with pytest.raises(UsageError, match=said):
        rule_of(torch.optim.Adagrad(parameters()))


def test_groups_of_adam_that_differ_are_refused() -> None:
    one, two = parameters(2)
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [two], "betas": (0.5, 0.999)}]
    with pytest.raises(UsageError, match=r"differ in beta1: \[0\.9, 0\.5\]"):
        rule_of(torch.optim.Adam(groups))


def test_groups_that_differ_are_refused() -> None:
    one, two = parameters(2)
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [two], "lr": 0.5}]
    with pytest.raises(UsageError, match=r"differ in lr: \[0\.1, 0\.5\]; the server keeps one rule per model"):
        rule_of(torch.optim.SGD(groups, lr=0.1))


def test_an_optimizer_that_does_not_hold_all_parameters_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="does not hold bias; freeze them"):
        wrap(torch.optim.SGD([model.weight], lr=0.1), model)
