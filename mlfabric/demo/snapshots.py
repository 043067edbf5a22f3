"""Evaluates the models of the comparison while they are trained: ``python -m mlfabric.demo.snapshots FOLDER``.

Worker 0 saves a snapshot of each version. Here they are evaluated in order and removed, by a process of its own at low
priority: a worker that evaluated would compute for longer than its pace. The time of an accuracy is when worker 0 had
that version, however much later it is evaluated. The process ends when the accuracy of the scenario is reached.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from mlfabric.demo import digits
from mlfabric.demo.demo_events import Accuracy, EventLog, log_path
from mlfabric.demo.scenario import Scenario

__all__ = ["evaluate", "main", "save_snapshot"]

LOOK_S = 0.02
LOW_PRIORITY = 5


def save_snapshot(folder: Path, version: int, at_ns: int, model: torch.nn.Module) -> None:
    """Save the weights for an evaluation.

    Args:
        folder: of the training.
        version: of the model.
        at_ns: of the monotonic clock: since when worker 0 has that version.
        model: is not changed.
    """
    partial = folder / "snapshot.new"
    torch.save((version, at_ns, model.state_dict()), partial)
    partial.rename(folder / f"{version:06d}.snapshot")


def evaluate(scenario: Scenario, folder: Path) -> None:
    """Evaluate snapshots until one is good enough, and write each accuracy into the log of rank 0."""
    data = digits.load(scenario.seed)
    model = digits.make_model(scenario)
    found = 0.0
    with EventLog(log_path(folder, 0)) as log:
        while found < scenario.compared_accuracy:
            for path in sorted(folder.glob("*.snapshot")):
                version, at_ns, weights = torch.load(path, weights_only=True)
                path.unlink()
                model.load_state_dict(weights)
                found = digits.accuracy(model, data)
                log.write(Accuracy(worker="worker-0", version=version, accuracy=found, at_ns=at_ns))
                if found >= scenario.compared_accuracy:
                    break
            else:
                time.sleep(LOOK_S)


def main(arguments: list[str]) -> None:
    """Evaluate the training in the given folder."""
    folder = Path(arguments[0])
    os.nice(LOW_PRIORITY)
    torch.set_num_threads(1)
    evaluate(Scenario.load(folder), folder)


if __name__ == "__main__":
    main(sys.argv[1:])
