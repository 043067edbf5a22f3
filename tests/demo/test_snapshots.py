"""Snapshots are evaluated in order, each at the time when it was taken, until one is good enough."""

from __future__ import annotations

from dataclasses import replace

import torch

from mlfabric.demo import digits
from mlfabric.demo.demo_events import Accuracy, EventTail, log_path
from mlfabric.demo.judge import train_alone
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.snapshots import evaluate, save_snapshot

SCENARIO = Scenario(hidden=16, lr=0.05, warmup_updates=1, updates=60)


def always(digit: int) -> torch.nn.Module:
    """Return a model that is right for a tenth of the images."""
    model = digits.make_model(SCENARIO)
    with torch.no_grad():
        list(model.parameters())[-1][digit] = 1e6
    return model


def test_evaluation_ends_with_the_first_snapshot_that_is_good_enough(tmp_path):
    data = digits.load(SCENARIO.seed)
    trained = train_alone(SCENARIO, data, SCENARIO.updates)
    accuracy = digits.accuracy(trained, data)
    assert accuracy > 0.3
    for version, model in ((10, always(5)), (2, always(3)), (11, trained), (12, always(1))):
        save_snapshot(tmp_path, version, 1000 + version, model)
    evaluate(replace(SCENARIO, compared_accuracy=accuracy), tmp_path)
    found = [event for event in EventTail(log_path(tmp_path, 0)).read() if isinstance(event, Accuracy)]
    assert [(event.version, event.at_ns) for event in found] == [(2, 1002), (10, 1010), (11, 1011)]
    assert found[2].accuracy == accuracy
    assert [path.name for path in tmp_path.glob("*.snapshot")] == ["000012.snapshot"]
