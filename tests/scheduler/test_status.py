"""What the scheduler says of sums: on the status, and as figures for Prometheus."""

from __future__ import annotations

import pytest

from mlfabric.protocol import TransferEnd
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.status import describe
from mlfabric.telemetry import SchedulerMetrics
from tests.scheduler.stage import Stage, committed_together, ended, get, push, update
from tests.scheduler.test_hand_ons import narrow as behind_a_slow_server
from tests.scheduler.test_sums import ALL, SUM, narrow

pytestmark = pytest.mark.usefixtures("compiled_planner")


def activity(stage: Stage, name: str) -> str:
    status = describe(stage.state, Meter(SchedulerMetrics(), "0"), stage.now_ns)
    (found,) = [m.activity for m in status.members if m.name == name]
    return found


def test_an_aggregator_is_shown_with_what_it_sums():
    stage = narrow("a", "b", "c")
    assert activity(stage, "g") == "waits for updates to sum"
    stage.ask_all(*map(push, "abc"))
    assert activity(stage, "g") == "sums 3 updates of net"
    stage.tell(committed_together(*ALL, number=3))
    assert activity(stage, "g") == "waits for updates to sum"


def test_an_aggregator_is_shown_with_what_it_hands_on():
    stage = behind_a_slow_server("a", "b")
    stage.ask_all(get("a"), get("b"))
    assert activity(stage, "g") == "hands net on to 2"


def test_groups_and_torn_sums_are_counted_once():
    stage, metrics = narrow("a", "b", "c"), SchedulerMetrics()
    meter = Meter(metrics, "0")

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    stage.ask_all(*map(push, "abc"))
    stage.tell(ended(SUM, TransferEnd.TORN, by="g"))
    for _ in range(2):
        meter.survey(stage.state)
        assert sample("mlfabric_group_updates_sum", shape="tree") == 3
        assert sample("mlfabric_group_updates_count", shape="tree") == 1
        assert sample("mlfabric_sums_torn_total", cause="aggregator") == 1
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    stage.ask_all(*map(push, "abc"))
    meter.survey(stage.state)
    assert sample("mlfabric_group_updates_count", shape="direct") == 3
    assert update("a") in stage.pushes.planned
