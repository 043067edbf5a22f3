"""What ``wrap`` is given of rounds: which option belongs to which method, and which optimizers can be used."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from mlfabric.arguments import flag_of, integer_of, number_of
from mlfabric.errors import UsageError
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method

__all__ = ["check_steps_alone", "round_options"]

_INNER = tuple(method for method in Method if method.has_inner_steps)
_WITHOUT_WAITING = (Method.ELASTIC, Method.LOCAL_SGD, Method.DILOCO)
_GOSSIP = tuple(method for method in Method if method.is_gossip)
_BELONGS: Mapping[str, tuple[Method, ...]] = {
    "at_least": _WITHOUT_WAITING,
    "tau_max": (*_WITHOUT_WAITING, Method.ASYNCHRONOUS),
    "quorum": (Method.PARTIAL,),
    "full_every": (Method.PARTIAL,),
    "wait": (Method.PARTIAL, Method.LOCAL_SGD, Method.DILOCO),
    "average_every": _GOSSIP,
    "mixing": (Method.DPSGD,),
    "inner_steps": _INNER,
    "fragments": (Method.LOCAL_SGD, Method.DILOCO),
    "outer": (Method.DILOCO, Method.SMA),
}
"""Options that not all methods have."""
_WITH_SERVER: Mapping[str, Any] = {"momentum_at": None, "slack": 0, "servers": 1}
"""Options of methods with a server, and what they are if they are not given."""
_LEAST_OF_MOVEMENTS = 0.75
"""``at_least`` of local SGD and DiLoCo. An outer step counts in full however few are in its round, and DiLoCo's
momentum carries it on: models swing where rounds have half of the workers, who began before the last one."""


def round_options(method: Method, given: Mapping[str, Any]) -> RoundOptions | None:
    """Return the options of rounds without a server; None if the method has a server.

    Args:
        method: of the job.
        given: the options by name; those that not all methods have are None if they were not given.

    Raises:
        UsageError: an option was given that the method does not have.
        ConfigError: one is out of range.
    """
    for name, owners in _BELONGS.items():
        if given[name] is not None and method not in owners:
            allowed = " and ".join(filter(None, (", ".join(o.value for o in owners[:-1]), owners[-1].value)))
            raise UsageError(f"{name}={given[name]!r} with method {method.value}; allowed: with {allowed} only")
    if method.has_server:
        return None
    for name, absent in _WITH_SERVER.items():
        if given[name] != absent:
            raise UsageError(f"{name}={given[name]!r} with method {method.value}, which has no server; leave it out")
    chosen: dict[str, Any] = {} if given["tau_max"] is None else {"tau_max": given["tau_max"]}
    if given["at_least"] is not None:
        chosen["at_least"] = number_of("at_least", given["at_least"])
    elif method in (Method.LOCAL_SGD, Method.DILOCO):
        chosen["at_least"] = _LEAST_OF_MOVEMENTS
    if given["fragments"] is not None:
        chosen |= _fragments(given)
    if given["quorum"] is not None:
        chosen["quorum"] = str(given["quorum"])
    if given["wait"] is not None:
        flag_of("wait", given["wait"])
    if given["wait"] is False and given["overlap"]:
        raise UsageError(
            "wait=False with overlap=True; allowed: one of them; without waiting, rounds overlap with computing"
        )
    if (method.has_inner_steps or method.is_gossip) and given["overlap"]:
        raise UsageError(f"overlap=True with method {method.value}; allowed: with the other methods")
    if given["full_every"] is not None:
        chosen["full_every"] = integer_of("full_every", given["full_every"])
    if given["average_every"] is not None:
        chosen["average_every"] = integer_of("average_every", given["average_every"], least=1)
    if given["mixing"] is not None:
        chosen["mixing"] = str(given["mixing"])
    return RoundOptions(**chosen)


def _fragments(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the options of a model that is cut into fragments."""
    fragments = integer_of("fragments", given["fragments"], least=1)
    if fragments == 1:
        return {}
    if given["tau_max"]:
        raise UsageError(f"tau_max={given['tau_max']} with fragments={fragments}; allowed: 0, or leave it out")
    return {"fragments": fragments, "tau_max": 0}


def check_steps_alone(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that computes gradients by itself, as LBFGS does: a round has one gradient of each worker.

    Raises:
        UsageError: its ``step`` needs a closure.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        given = f"{type(optimizer).__name__}, whose step needs a closure"
        raise UsageError(f"wrap of {given}; allowed: optimizers that step without one, as SGD and AdamW do")
