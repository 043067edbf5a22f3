"""A worker process of the demonstration: ``python -m mlfabric.demo.trainer FOLDER``, with torchrun's variables."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import mlfabric
from mlfabric.demo import digits
from mlfabric.demo.demo_events import Accuracy, Applied, Event, EventLog, Moved, NotApplied, log_path
from mlfabric.demo.pace import Pace
from mlfabric.demo.scenario import Scenario
from mlfabric.protocol import Committed, Dropped, UpdateId
from mlfabric.worker_daemon.observations import Settled, Transferred

__all__ = ["main"]


def event_of(seen: Transferred | Settled) -> Event:
    """Return what a worker's daemon observed, as it is written to a log."""
    if isinstance(seen, Transferred):
        return Moved(
            worker=seen.transfer.worker,
            server=seen.peer,
            is_push=isinstance(seen.transfer, UpdateId),
            size_bytes=seen.size_bytes,
            started_ns=seen.started_ns,
            ended_ns=seen.ended_ns,
        )
    worker, outcome = seen.update.worker, seen.outcome
    if isinstance(outcome, Committed):
        return Applied(
            worker=worker,
            version=outcome.version.number,
            tau=outcome.tau,
            pushed_ns=seen.pushed_ns,
            at_ns=seen.settled_ns,
        )
    return NotApplied(
        worker=worker,
        is_lost=not isinstance(outcome, Dropped),
        cause=outcome.cause.name if isinstance(outcome, Dropped) else "LOST",
        detail=outcome.detail,
        pushed_ns=seen.pushed_ns,
        at_ns=seen.settled_ns,
    )


class Evaluation:
    """Now and then worker 0 says how good the model is that it has got."""

    def __init__(self, scenario: Scenario, data: digits.Digits, log: EventLog) -> None:
        self._every_s = scenario.evaluate_every_s
        self._data = data
        self._log = log
        self._next_s = 0.0

    def maybe(self, worker: mlfabric.Worker, model: torch.nn.Module) -> None:
        """Evaluate if it is time."""
        if time.monotonic() < self._next_s:
            return
        found = digits.accuracy(model, self._data)
        self._log.write(
            Accuracy(worker=worker.name, version=worker.version.number, accuracy=found, at_ns=time.monotonic_ns())
        )
        self._next_s = time.monotonic() + self._every_s


def train(scenario: Scenario, rank: int, log: EventLog) -> None:
    """Train until the model has the scenario's version."""
    data = digits.load(scenario.seed)
    model = digits.make_model(scenario)
    pace, evaluation = Pace(scenario, rank, scenario.pace_s), Evaluation(scenario, data, log)

    def observe(seen: Transferred | Settled) -> None:
        log.write(event_of(seen))

    with mlfabric.register_as_worker(model, rule=scenario.rule, tau_max=scenario.tau_max, observer=observe) as worker:
        until_s = time.monotonic() + scenario.longest_s
        for images, labels in digits.batches(scenario, data, rank):
            if worker.get().number >= scenario.updates or time.monotonic() > until_s:
                break
            with pace.step():
                if rank == 0:
                    evaluation.maybe(worker, model)
                cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            worker.push()


def main(arguments: list[str]) -> None:
    """Be one rank of the run in the given folder."""
    folder, rank = Path(arguments[0]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    with EventLog(log_path(folder, rank)) as log:
        train(Scenario.load(folder), rank, log)


if __name__ == "__main__":
    main(sys.argv[1:])
