"""What ``wrap`` refuses before it joins: options that the mode does not have, optimizers that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlfabric


def wrapped(optimizer: Any = torch.optim.SGD, **options: Any) -> Any:
    model = torch.nn.Linear(2, 1)
    return mlfabric.wrap(optimizer(model.parameters(), lr=0.1), model, **options)


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"mode": "elastic", "quorum": "solo"}, "quorum='solo' in mode elastic; allowed: in mode partial only"),
        ({"mode": "partial", "at_least": 0.5}, "at_least=0.5 in mode partial; allowed: in mode elastic only"),
        ({"full_every": 4}, "full_every=4 in mode asynchronous; allowed: in mode partial only"),
        ({"mode": "partial", "tau_max": 3}, "tau_max=3 in mode partial; allowed: in modes elastic and asynchronous"),
        ({"mode": "elastic", "overlap": True}, "overlap=True in mode elastic, which has no server"),
        ({"mode": "elastic", "servers": 2}, "servers=2 in mode elastic, which has no server"),
        ({"mode": "elastic", "slack": 2}, "slack=2 in mode elastic, which has no server"),
        ({"mode": "all-reduce", "momentum_at": "server"}, "momentum_at='server' in mode all-reduce"),
        ({"mode": "elastic", "at_least": 2.0}, "at_least=2.0; allowed: above 0, at most 1"),
        ({"mode": "elastic", "members": "some"}, "members='some'; allowed: all, chosen"),
        ({"mode": "partial", "members": "all"}, "members='all' in mode partial; allowed: in mode elastic only"),
    ],
)
def test_an_option_that_the_mode_does_not_have_is_refused(options: dict[str, Any], story: str) -> None:
    with pytest.raises(mlfabric.FabricError, match=story):
        wrapped(**options)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(mlfabric.UsageError, match="LBFGS, whose step needs a closure"):
        wrapped(torch.optim.LBFGS, mode="elastic")


@pytest.mark.parametrize("mode", ["elastic", "partial"])
def test_these_modes_are_wrapped_and_not_registered(mode: str) -> None:
    with pytest.raises(mlfabric.UsageError, match=f"register_as_worker in mode {mode}; allowed: .*wrap"):
        mlfabric.register_as_worker(torch.nn.Linear(2, 1), mode=mode)
