"""What a step does while it waits for the outcome of its gradient. The daemon is played: it tells when tests want."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from typing import Any

import pytest
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

    def settle(self, of: RoundResult) -> None:
        """Settle the round that what is offered is in."""
        assert self.outcome is not None
        self.inbox.settled(of)
        self.outcome.set_result(of)

    def applied(self, version: int) -> None:
        self.applied_versions.append(version)

    def leave(self, detail: str, drain_s: float) -> None:
        pass


@pytest.fixture
def played() -> Any:
    """An optimizer that makes steps of length 1 from 0, its model, and its daemon."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    daemons: list[Daemon] = []

    def start(inbox: RoundInbox) -> Any:
        daemons.append(Daemon(inbox))
        return daemons[0]

    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = RoundOptimizer(sgd, model, start, together=2, passes_late=False, waits=True)
    yield optimizer, model, daemons[0]
    optimizer.leave()


def result(optimizer: RoundOptimizer, version: int, gradient: float) -> RoundResult:
    flat = FlatGradients([torch.nn.Parameter(torch.zeros(1, 1))], torch.nn.Module())
    flat.parameters[0].grad = torch.full((1, 1), gradient)
    total = flat.empty()
    flat.add_into(total, fresh=True)
    data = memoryview(bytearray(total.numpy().tobytes()))
    rates = rates_of(optimizer)
    return RoundResult(version=version, workers=1, weight=1, rates=rates, total=data, ranges=((0, len(data)),))


def stepping(optimizer: RoundOptimizer, model: torch.nn.Linear, daemon: Daemon) -> threading.Thread:
    """Make a step in a thread; return once its gradient is offered."""
    daemon.outcome, model.weight.grad = None, torch.ones(1, 1)
    thread = threading.Thread(target=optimizer.step, daemon=True)
    thread.start()
    wait_until(lambda: daemon.outcome is not None, "the gradient is offered")
    return thread


def test_a_step_that_waits_applies_the_rounds_that_are_settled_meanwhile(played: Any) -> None:
    """Another worker may fetch that version from here, and the next round may wait for it."""
    optimizer, model, daemon = played
    thread = stepping(optimizer, model, daemon)
    daemon.inbox.settled(result(optimizer, 1, 2.0))
    wait_until(lambda: daemon.applied_versions[-1] == 1, "the first round is applied")
    assert thread.is_alive()
    assert model.weight.item() == -2.0

    daemon.settle(result(optimizer, 2, 3.0))
    thread.join(10.0)
    assert not thread.is_alive()
    assert model.weight.item() == -5.0
    assert (optimizer.version, optimizer.last.included, optimizer.last.delay) == (2, True, 1)


def test_a_wait_that_was_interrupted_is_made_up_for_before_the_next_gradient_takes_its_memory(played: Any) -> None:
    optimizer, model, daemon = played
    model.weight.grad, me = torch.ones(1, 1), threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: daemon.outcome is not None, "the gradient is offered")
        signal.pthread_kill(me, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert (optimizer.waiting, optimizer.tally.included) == (1, 0)

    daemon.settle(result(optimizer, 1, 2.0))
    thread = stepping(optimizer, model, daemon)
    assert (optimizer.version, optimizer.tally.included, model.weight.item()) == (1, 1, -2.0)
    daemon.settle(result(optimizer, 2, 3.0))
    thread.join(10.0)
    assert (optimizer.waiting, optimizer.tally.included, model.weight.item()) == (0, 2, -5.0)
