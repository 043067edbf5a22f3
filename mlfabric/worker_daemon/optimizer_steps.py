"""What wrapped optimizers make of gradients, with the settings that their parameter groups have at that very step.

Of ``torch.optim.SGD`` the worker makes all: weight decay, momentum, Nesterov's too, and the product with the learning
rate. What travels is the step, and the rule on the server is SGD with learning rate 1: so each step has its own rate,
and the sum of steps is exact. The velocity is where torch has it, in ``optimizer.state``, which makes the state dict
torch's own. If the server is to keep the momentum, the worker makes the rest.

Of ``torch.optim.Adam`` and ``AdamW`` the server keeps the averages. Learning rate and weight decay of each parameter
group travel with the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mlfabric.errors import UsageError
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.worker_daemon.gradient_rules import Given, Rates, Shaped, Shaping

__all__ = ["AdamSteps", "SgdSteps", "steps_of"]

Group = dict[str, Any]


def steps_of(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, momentum_at: MomentumAt | None
) -> tuple[RuleSpec, Shaping]:
    """Return the update rule that a job of this optimizer has, and what its worker makes of gradients.

    Args:
        optimizer: over at least the trainable parameters of ``model``.
        momentum_at: who keeps the momentum of SGD; the workers unless given.

    Raises:
        UsageError: it is none of SGD, Adam and AdamW, has settings that cannot be taken over, or lacks parameters.
        ConfigError: a setting is out of a rule's range.
    """
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        rule = _sgd_rule(optimizer.param_groups, momentum_at)
        return rule, SgdSteps(rule, optimizer, model)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        if momentum_at is not None:
            raise UsageError(
                f"momentum_at={momentum_at} with {kind.__name__}, whose averages are the server's; leave it"
            )
        if optimizer.state:
            raise UsageError(
                f"{kind.__name__} has made steps already, and the server's averages would begin anew; wrap a new one"
            )
        rule = _adam_rule(optimizer.param_groups)
        return rule, AdamSteps(rule, optimizer, model)
    raise UsageError(
        f"cannot take over {kind.__name__}; allowed: torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW. With others "
        "use Method.ALL_REDUCE: all_reduce the gradients and step by yourself"
    )


def _sgd_rule(groups: Iterable[Group], momentum_at: MomentumAt | None) -> RuleSpec:
    if momentum_at is not MomentumAt.SERVER:
        return RuleSpec(lr=1.0)
    momentum, *others = {float(group["momentum"]) for group in groups}
    if others:
        raise UsageError(
            f"parameter groups differ in momentum: {momentum} and {others[0]}; the server keeps one, workers keep any"
        )
    return RuleSpec(lr=1.0, momentum=momentum, momentum_at=momentum_at if momentum else None)


def _adam_rule(groups: Iterable[Group]) -> RuleSpec:
    first, *others = groups
    for key in ("betas", "eps", "decoupled_weight_decay"):
        for other in others:
            if other[key] != first[key]:
                given = f"{first[key]} and {other[key]}"
                raise UsageError(f"parameter groups differ in {key}: {given}; allowed: one value, the server's")
    beta1, beta2 = map(float, first["betas"])
    decoupled = bool(first["decoupled_weight_decay"])
    return RuleSpec(
        kind=RuleKind.ADAM,
        lr=1.0,
        beta1=beta1,
        beta2=beta2,
        epsilon=float(first["eps"]),
        decoupled=decoupled,
        weight_decay=max(float(group["weight_decay"]) for group in (first, *others)) if decoupled else 0.0,
    )


def _plain(setting: object) -> object:
    return float(setting) if isinstance(setting, torch.Tensor) else setting


class _OptimizerSteps(Shaping):
    """The parameters of an optimizer, by their names in the model.

    Args:
        rule: of the job.
        optimizer: its parameter groups and state are looked up at each step, for they may be loaded.
        model: whose trainable parameters it has.

    Raises:
        UsageError: a parameter is missing, or a setting of a group cannot be taken over.
    """

    def __init__(self, rule: RuleSpec, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        super().__init__(rule)
        self._optimizer = optimizer
        held = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        missing = [name for name, parameter in wanted.items() if id(parameter) not in held]
        if missing:
            raise UsageError(f"the optimizer does not hold {', '.join(missing)}; freeze them, or give them to it")
        self._parameters: Mapping[str, torch.nn.Parameter] = wanted
        self._groups = {name: held[id(parameter)] for name, parameter in wanted.items()}
        for group in optimizer.param_groups:
            self._check(group)

    def _group(self, number: int) -> Group:
        """Return a group as it is now.

        Raises:
            UsageError: it has got a setting that cannot be taken over.
        """
        group: Group = self._optimizer.param_groups[number]
        self._check(group)
        return group

    def settings(self) -> object:
        """Return all settings of all groups."""
        return [{key: _plain(group[key]) for key in group if key != "params"} for group in self._optimizer.param_groups]

    def _check(self, group: Group) -> None:
        for key in ("lr", "weight_decay"):
            if not (math.isfinite(float(group[key])) and float(group[key]) >= 0):
                raise UsageError(f"a parameter group has {key}={group[key]}; allowed: finite and >= 0")


class SgdSteps(_OptimizerSteps):
    """The steps of ``torch.optim.SGD``, or what is to become steps if the server keeps the momentum."""

    def shape_one(self, one: Given) -> Shaped:
        """Return the step of one parameter; as in torch, one without a gradient makes none.

        Raises:
            UsageError: its group has got a setting that cannot be taken over.
        """
        if one.gradient is None:
            return Shaped(one.name, None)
        group = self._group(self._groups[one.name])
        direction = -one.gradient if group["maximize"] else one.gradient
        if group["weight_decay"]:
            direction = direction.add(one.weights, alpha=float(group["weight_decay"]))
        velocity = None
        if group["momentum"] and not self._rule.momentum:
            past = self._optimizer.state[self._parameters[one.name]].get("momentum_buffer")
            velocity = self._continued(past, direction, group)
            direction = direction.add(velocity, alpha=float(group["momentum"])) if group["nesterov"] else velocity
        return Shaped(one.name, direction * float(group["lr"]), velocity)

    @staticmethod
    def _continued(past: torch.Tensor | None, direction: torch.Tensor, group: Group) -> torch.Tensor:
        if past is None:
            return direction.clone()
        return past.mul(float(group["momentum"])).add_(direction, alpha=1 - float(group["dampening"]))

    def keep(self, shaped: Iterable[Shaped]) -> None:
        """Go on from these velocities."""
        for one in shaped:
            if one.velocity is not None:
                self._optimizer.state[self._parameters[one.name]]["momentum_buffer"] = one.velocity

    def _check(self, group: Group) -> None:
        super()._check(group)
        if not self._rule.momentum:
            return
        for key, wanted in (("momentum", self._rule.momentum), ("nesterov", False), ("dampening", 0)):
            if group[key] != wanted:
                raise UsageError(
                    f"a parameter group has {key}={group[key]} with the momentum at the server; allowed: {wanted}, or "
                    "momentum at the workers, where SGD may have any"
                )


class AdamSteps(_OptimizerSteps):
    """Gradients as they are, and the groups' rates with them."""

    def group_of(self, name: str) -> int:
        """Return which of the optimizer's groups a parameter is in."""
        return self._groups[name]

    def rates(self) -> Rates:
        """Return each group's present learning rate and weight decay.

        Raises:
            UsageError: a group has got a setting that cannot be taken over.
        """
        groups = map(self._group, range(len(self._optimizer.param_groups)))
        return tuple((float(group["lr"]), float(group["weight_decay"])) for group in groups)

    def _check(self, group: Group) -> None:
        super()._check(group)
        rule = self._rule
        fixed = {
            "betas": (rule.beta1, rule.beta2),
            "eps": rule.epsilon,
            "decoupled_weight_decay": rule.decoupled,
            "amsgrad": False,
            "maximize": False,
        }
        for key, wanted in fixed.items():
            given = tuple(map(float, group[key])) if key == "betas" else group[key]
            if given != wanted:
                raise UsageError(
                    f"a parameter group has {key}={given}; allowed: {wanted}, for the server keeps Adam's averages. "
                    "A scheduler that cycles betas must not: OneCycleLR(..., cycle_momentum=False)"
                )
        if rule.decoupled and float(group["weight_decay"]) > rule.weight_decay:
            raise UsageError(
                f"a parameter group has weight_decay={group['weight_decay']}; allowed: up to {rule.weight_decay}, the "
                "greatest when it was wrapped, which bounds how far steps go; wrap with the greatest, then lower it"
            )
