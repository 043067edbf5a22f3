"""Which optimizers can be taken over, and as which rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.specs import RuleSpec
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


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot take over Adam; allowed: torch\.optim\.SGD"):
        rule_of(torch.optim.Adam(parameters()))


def test_groups_that_differ_are_refused() -> None:
    one, two = parameters(2)
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [two], "lr": 0.5}]
    with pytest.raises(UsageError, match=r"differ in lr: \[0\.1, 0\.5\]; the server keeps one rule per model"):
        rule_of(torch.optim.SGD(groups, lr=0.1))


def test_an_optimizer_that_does_not_hold_all_parameters_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="does not hold bias; freeze them"):
        wrap(torch.optim.SGD([model.weight], lr=0.1), model)
