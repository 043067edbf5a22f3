"""Evaluates what the fabric has trained, and trains the same model alone: ``python -m mlfabric.demo.judge FOLDER``.

A process of its own, so that it has a process' memory and random state to itself, and Ctrl-C ends it like any other.
The model is read from the server's last checkpoint, as plain PyTorch reads it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from mlfabric.demo import digits
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import CHECKPOINTS, Verdict

__all__ = ["judge", "main", "train_alone"]


def judge(scenario: Scenario, folder: Path) -> Verdict:
    """Evaluate the run in ``folder``."""
    data = digits.load(scenario.seed)
    newest = max((folder / CHECKPOINTS).glob("*.pt"))
    checkpoint = torch.load(newest, weights_only=True)
    model = digits.make_model(scenario)
    model.load_state_dict(checkpoint["model"])
    updates = int(checkpoint["version"])
    alone = train_alone(scenario, data, updates)
    return Verdict(
        accuracy=digits.accuracy(model, data), single_process_accuracy=digits.accuracy(alone, data), version=updates
    )


def train_alone(scenario: Scenario, data: digits.Digits, updates: int) -> torch.nn.Module:
    """Return the model after so many updates by one process, with the same rule, batch size and initial weights."""
    model = digits.make_model(scenario)
    optimizer = torch.optim.SGD(model.parameters(), lr=scenario.lr, momentum=scenario.momentum)
    for version, (images, labels) in zip(range(updates), digits.batches(scenario, data, rank=0), strict=False):
        optimizer.param_groups[0]["lr"] = scenario.rule.lr_at(version)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def main(arguments: list[str]) -> None:
    """Judge the run in the given folder and write the verdict there."""
    folder = Path(arguments[0])
    torch.set_num_threads(1)
    judge(Scenario.load(folder), folder).save(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
