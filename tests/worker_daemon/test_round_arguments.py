"""What ``wrap`` refuses before it joins: options that the method does not have, optimizers that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.model.specs import Method
from mlfabric.worker_daemon.round_arguments import round_options

GIVEN = dict.fromkeys(
    (
        "at_least",
        "tau_max",
        "quorum",
        "full_every",
        "wait",
        "average_every",
        "mixing",
        "inner_steps",
        "fragments",
        "outer",
        "momentum_at",
        "overlap",
    )
) | {"slack": 0, "servers": 1}
"""What ``wrap`` has of rounds if nothing is said."""


def wrapped(optimizer: Any = torch.optim.SGD, **options: Any) -> Any:
    model = torch.nn.Linear(2, 1)
    return mlfabric.wrap(optimizer(model.parameters(), lr=0.1), model, **options)


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"method": "elastic", "quorum": "solo"}, "quorum='solo' with method elastic; allowed: with partial only"),
        (
            {"method": "partial", "at_least": 0.5},
            "at_least=0.5 with method partial; allowed: with elastic, local-sgd and diloco only",
        ),
        ({"full_every": 4}, "full_every=4 with method asynchronous; allowed: with partial only"),
        (
            {"method": "partial", "tau_max": 3},
            "tau_max=3 with method partial; allowed: with elastic, local-sgd, diloco and asynchronous only",
        ),
        (
            {"method": "elastic", "inner_steps": 4},
            "inner_steps=4 with method elastic; allowed: with local-sgd, diloco and sma only",
        ),
        ({"method": "diloco", "inner_steps": 0}, "inner_steps=0; allowed"),
        ({"method": "elastic", "fragments": 2}, "fragments=2 with method elastic; allowed: with local-sgd and diloco"),
        ({"method": "diloco", "fragments": 3}, "inner_steps=32 with fragments=3; allowed: a multiple of that"),
        ({"method": "diloco", "fragments": 4}, "fragments=4 of 2 parameters; allowed for this model: 1 to 2"),
        ({"method": "diloco", "fragments": 2, "tau_max": 1}, "tau_max=1 with fragments=2; allowed: 0, or leave it out"),
        ({"method": "local-sgd", "outer": torch.optim.SGD}, "method local-sgd; allowed: with diloco and sma only"),
        ({"method": "diloco", "outer": 0.7}, "outer=0.7; allowed: a function that makes the optimizer"),
        ({"method": "diloco", "outer": lambda p: 3}, "allowed: a torch.optim.Optimizer"),
        ({"method": "diloco", "outer": torch.optim.LBFGS}, "LBFGS, whose step needs a closure"),
        ({"method": "diloco", "overlap": True}, "overlap=True with method diloco; allowed: with the other methods"),
        ({"method": "rand", "overlap": True}, "overlap=True with method rand; allowed: with the other methods"),
        (
            {"method": "rand", "wait": False},
            "wait=False with method rand; allowed: with partial, local-sgd and diloco only",
        ),
        ({"method": "rand", "mixing": "ring"}, "mixing='ring' with method rand; allowed: with dpsgd only"),
        ({"method": "dpsgd", "mixing": "star"}, "mixing='star'; allowed: ring, exponential"),
        ({"method": "d1d", "average_every": 0}, "average_every=0; allowed"),
        (
            {"method": "elastic", "average_every": 2},
            "average_every=2 with method elastic; allowed: with dpsgd, rand, rand-aware, d1d and adpsgd only",
        ),
        ({"method": "elastic", "servers": 2}, "servers=2 with method elastic, which has no server"),
        ({"method": "elastic", "slack": 2}, "slack=2 with method elastic, which has no server"),
        ({"method": "all-reduce", "momentum_at": "server"}, "momentum_at='server' with method all-reduce"),
        ({"method": "elastic", "at_least": 2.0}, "at_least=2.0; allowed: above 0, at most 1"),
        (
            {"method": "partial", "wait": False, "overlap": True},
            "wait=False with overlap=True; allowed: one of them",
        ),
    ],
)
def test_an_option_that_the_method_does_not_have_is_refused(options: dict[str, Any], story: str) -> None:
    with pytest.raises(mlfabric.FabricError, match=story):
        wrapped(**options)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(mlfabric.UsageError, match="LBFGS, whose step needs a closure"):
        wrapped(torch.optim.LBFGS, method="elastic")


@pytest.mark.parametrize("method", ["elastic", "partial", "local-sgd", "diloco"])
def test_these_methods_are_wrapped_and_not_registered(method: str) -> None:
    with pytest.raises(mlfabric.UsageError, match=f"register_as_worker with method {method}; allowed: .*wrap"):
        mlfabric.register_as_worker(torch.nn.Linear(2, 1), method=method)


def test_a_round_of_movements_has_three_quarters_of_the_workers_unless_another_share_is_given():
    shares = {method: round_options(method, GIVEN) for method in (Method.ELASTIC, Method.LOCAL_SGD, Method.DILOCO)}
    assert [options.at_least for options in shares.values() if options] == [0.5, 0.75, 0.75]
    given = round_options(Method.DILOCO, GIVEN | {"at_least": 0.4})
    assert given is not None
    assert given.at_least == 0.4
