"""What a step does while it waits for the outcome of its gradient. The daemon is played: it tells when tests want."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import torch

from mlfabric.worker_daemon.flat_gradients import FlatGradients
from mlfabric.worker_daemon.group_rates import rates_of
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage
from mlfabric.worker_daemon.round_optimizer import RoundOptimizer
from tests.fabric.harness import wait_until


class Daemon:
    """Takes what an optimizer offers, and notes how far it has come."""

    def __init__(self, inbox: RoundInbox) -> None:
        self.inbox, self.applied_versions = inbox, list[int]()
        self.outcome: Future[Any] | None = None

    def join(self) -> None:
        self.inbox.state_came(StateImage(version=0, image=None))

    def offer(self, *_: object) -> Future[Any]:
        self.outcome = Future()
        return self.outcome

    def applied(self, version: int) -> None:
        self.applied_versions.append(version)

    def leave(self, detail: str, drain_s: float) -> None:
        pass


def test_a_step_that_waits_applies_the_rounds_that_are_settled_meanwhile() -> None:
    """Another worker may fetch that version from here, and the next round may wait for it."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    daemons: list[Daemon] = []

    def start(inbox: RoundInbox) -> Any:
        daemons.append(Daemon(inbox))
        return daemons[0]

    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    flags = {"passes_late": False, "waits": True, "overlap": False, "measures": False}
    optimizer = RoundOptimizer(sgd, model, start, together=2, **flags)
    daemon = daemons[0]

    def result(version: int, gradient: float) -> RoundResult:
        flat = FlatGradients([torch.nn.Parameter(torch.zeros(1, 1))], torch.nn.Module())
        flat.parameters[0].grad = torch.full((1, 1), gradient)
        total = flat.empty()
        flat.add_into(total, fresh=True)
        data = memoryview(bytearray(total.numpy().tobytes()))
        return RoundResult(
            version=version, workers=1, updates=1, rates=rates_of(sgd), total=data, ranges=((0, len(data)),)
        )

    model.weight.grad = torch.ones(1, 1)
    stepping = threading.Thread(target=optimizer.step, daemon=True)
    stepping.start()
    wait_until(lambda: daemon.outcome is not None, "the gradient is offered")
    daemon.inbox.settled(result(1, 2.0))
    wait_until(lambda: daemon.applied_versions[-1] == 1, "the first round is applied")
    assert stepping.is_alive()
    assert model.weight.item() == -2.0

    own = result(2, 3.0)
    daemon.inbox.settled(own)
    assert daemon.outcome is not None
    daemon.outcome.set_result(own)
    stepping.join(10.0)
    assert not stepping.is_alive()
    assert model.weight.item() == -5.0
    assert optimizer.last is not None
    assert (optimizer.version, optimizer.last.included, optimizer.last.delay) == (2, True, 1)
    optimizer.leave()
