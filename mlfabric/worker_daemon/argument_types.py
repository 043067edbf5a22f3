"""What a training script gives when it registers: of which types it must be, before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from mlfabric.arguments import flag_of, instance_of, integer_of, shown, text_of
from mlfabric.config import WorkerSettings
from mlfabric.errors import UsageError
from mlfabric.model.specs import RuleSpec

__all__ = ["check_arguments"]

MOST_COUNTED = 2**31 - 1
_Check = Callable[[str, object], object]


def check_arguments(**given: object) -> None:
    """Check the arguments of ``register_as_worker`` and ``wrap``, by their names.

    Raises:
        UsageError: one is of another type; says which are allowed, and what to do.
    """
    for name, value in given.items():
        _CHECKS[name](name, value)


def _check_model(name: str, given: object) -> None:
    if isinstance(given, torch.nn.Module):
        return
    if not isinstance(given, Mapping):
        advice = "; make one of the layers: torch.nn.Sequential(*layers)" if isinstance(given, list | tuple) else ""
        raise UsageError(f"{shown(name, given)}; allowed: a torch.nn.Module, or a mapping of names to tensors{advice}")
    for key, tensor in given.items():
        text_of(f"a name in {name}", key)
        instance_of(torch.Tensor, f"{name}[{key!r}]", tensor, "a tensor")


def _check_rule(name: str, given: object) -> None:
    if given is None or isinstance(given, RuleSpec):
        return
    is_optimizer = isinstance(given, torch.optim.Optimizer)
    advice = "; an optimizer's rule is taken over by mlfabric.wrap(optimizer, model)" if is_optimizer else ""
    raise UsageError(f"{shown(name, given)}; allowed: a mlfabric.RuleSpec, as in {name}=RuleSpec(lr=0.1){advice}")


def _check_init(name: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, str | Path | int):
        raise UsageError(f"{shown(name, given)}; allowed: 'first', an integer as seed, or the path of a state dict")


def _check_observer(name: str, given: object) -> None:
    if not callable(given):
        raise UsageError(f"{shown(name, given)}; allowed: a function that takes what happened")


def _check_outer(name: str, given: object) -> None:
    if not callable(given):
        allowed = "a function that makes the optimizer of a list of parameters"
        raise UsageError(f"{shown(name, given)}; allowed: {allowed}, as in {name}=lambda p: torch.optim.SGD(p, lr=0.7)")


def _or_none(check: _Check) -> _Check:
    return lambda name, given: None if given is None else check(name, given)


_CHECKS: Mapping[str, _Check] = {
    "optimizer": partial(
        instance_of, torch.optim.Optimizer, allowed="a torch.optim.Optimizer, as in wrap(optimizer, model)"
    ),
    "module": lambda _, given: instance_of(torch.nn.Module, "model", given, "a torch.nn.Module"),
    "model": _check_model,
    "rule": _check_rule,
    "tau_max": _or_none(partial(integer_of, most=MOST_COUNTED, instead="None for twice the workers")),
    "slack": partial(integer_of, most=MOST_COUNTED),
    "workers": _or_none(partial(integer_of, most=MOST_COUNTED, instead="None for as many as the job has")),
    "servers": partial(integer_of, least=1, most=MOST_COUNTED),
    "inner_steps": _or_none(partial(integer_of, least=1, most=MOST_COUNTED)),
    "outer": _or_none(_check_outer),
    "overlap": flag_of,
    "keep": flag_of,
    "resume": _or_none(flag_of),
    "init": _check_init,
    "model_name": text_of,
    "name": text_of,
    "scheduler": text_of,
    "settings": _or_none(partial(instance_of, WorkerSettings, allowed="a WorkerSettings, or None")),
    "observer": _check_observer,
}
