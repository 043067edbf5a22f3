"""How many times as fast elastic rounds are, said in one line; also where somebody did not get there."""

from __future__ import annotations

import pytest

from mlfabric.demo.comparison import Comparison, Training
from mlfabric.demo.demo_events import Accuracy
from mlfabric.demo.scenario import Scenario


def training(*accuracies: float, every_s: float) -> Training:
    events = [
        Accuracy(worker="worker-0", version=version, accuracy=accuracy, at_ns=int((100 + version * every_s) * 1e9))
        for version, accuracy in enumerate(accuracies)
    ]
    return Training(accuracies=events, wanted=0.9)


def compared(elastic: Training, ring: Training) -> Comparison:
    return Comparison(scenario=Scenario(compared_accuracy=0.9), elastic=elastic, ring=ring)


@pytest.mark.parametrize(
    ("elastic", "ring", "said"),
    [
        ((0.1, 0.92), (0.1, 0.5, 0.91), "8.0 times as fast as a plain ring to 90 % accuracy: 1.0 s against 8.0 s"),
        (
            (0.1, 0.92),
            (0.1, 0.6, 0.5),
            "at least 8.0 times as fast as a plain ring to 90 % accuracy: 1.0 s; the ring had 0.600 after 8.0 s",
        ),
        (
            (0.1, 0.2, 0.3),
            (0.1, 0.9),
            "elastic rounds did not reach 90 % accuracy within 2.0 s; the plain ring took 4.0 s",
        ),
        (
            (0.1, 0.2),
            (0.1, 0.2),
            "elastic rounds did not reach 90 % accuracy within 1.0 s; the plain ring did not, either",
        ),
    ],
)
def test_the_verdict_says_what_was_measured(elastic, ring, said):
    assert compared(training(*elastic, every_s=1), training(*ring, every_s=4)).verdict() == said


def test_the_setting_says_who_is_slow_and_that_both_have_the_same_rate():
    said = compared(training(0.1, every_s=1), training(0.1, every_s=1)).setting()
    assert "steps of 100, 100, 250, 100 ms" in said
    assert "links of 500M, 500M, 500M, 125M bit/s" in said
    assert "both with SGD, learning rate 0.1" in said


def test_the_summary_has_both_trainings():
    found = compared(training(0.1, 0.95, every_s=2), training(0.1, 0.8, every_s=2)).as_json()
    assert found["elastic"] == {"reached": True, "seconds": 2.0, "rounds": 1, "best_accuracy": 0.95}
    assert found["ring"]["reached"] is False
