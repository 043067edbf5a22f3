"""What requests wait for that no plan holds yet: on the status, and as a metric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import TransferEnd
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.status import describe
from mlfabric.scheduler.waits import Wait
from mlfabric.telemetry import SchedulerMetrics

from .shard_stage import ShardStage, spec_of
from .stage import SPEC, Stage, committed, ended, get, initial, push, update
from .test_rounds import JOB, asks


def waits(stage: Stage) -> dict[str, dict[str, int]]:
    """Return by model what requests wait for, which status and metric must agree on."""
    metrics = SchedulerMetrics()
    meter = Meter(metrics, "0")
    meter.survey(stage.state)
    status = describe(stage.state, meter, stage.now_ns)
    found = {model.name: dict(model.waits_by_cause) for model in status.models}
    for name, causes in found.items():
        for wait in Wait:
            shown = metrics.registry.get_sample_value("mlfabric_waiting_requests", {"model": name, "cause": wait.value})
            assert shown == causes.get(wait.value, 0), (name, wait)
    return found


def test_who_waits_for_nothing_else_waits_for_its_turn_until_it_is_planned():
    stage = Stage().trained("a", "b")
    assert waits(stage) == {"net": {}}
    stage.tell(push("a"))
    stage.tell(get("b"))
    assert waits(stage) == {"net": {"turn": 2}}
    stage.tick()
    assert waits(stage) == {"net": {}}


def test_a_gradient_waits_for_weights_which_wait_for_their_turn():
    stage = Stage()
    stage.server()
    stage.worker("a")
    stage.worker("b")
    stage.tell(initial("a"))
    stage.tell(push("b"))
    assert waits(stage) == {"net": {"turn": 1, "weights": 1}}


def test_a_get_waits_for_the_update_that_it_follows():
    stage = Stage().trained("a")
    stage.tell(push("a"))
    stage.tell(get("a", after=update("a")))
    assert waits(stage) == {"net": {"turn": 1, "update": 1}}


def test_what_its_server_is_to_let_go_of_waits_for_that():
    stage = Stage().trained("a")
    stage.ask(push("a"))
    stage.tell(ended(update("a"), TransferEnd.BROKEN))
    stage.tell(push("a"))
    assert waits(stage) == {"net": {"server": 1}}


def test_everything_waits_for_a_server_that_is_away():
    stage = Stage().trained("a", "b")
    stage.silent("s")
    stage.tell(push("a"))
    stage.tell(get("b"))
    assert waits(stage) == {"net": {"server": 2}}


@pytest.mark.parametrize("missing", [0, 3])
def test_in_step_an_update_waits_for_the_other_workers(missing: int):
    spec = replace(SPEC, method=Method.SYNCHRONOUS, tau_max=None, workers=missing)
    stage = Stage().trained("a", "b", spec=spec)
    stage.ask(push("a"))
    assert waits(stage) == {"net": {"workers": 1}}
    stage.tell(push("b"))
    assert waits(stage) == {"net": {"workers": 2} if missing else {"turn": 2}}


def test_a_get_beyond_the_slack_waits_for_the_other_workers():
    stage = Stage().trained("a", "b", spec=replace(SPEC, method=Method.STALE_SYNCHRONOUS, tau_max=None, slack=0))
    stage.ask(push("a"))
    stage.tell(committed(update("a"), 1))
    stage.tell(get("a", after=update("a")))
    assert waits(stage) == {"net": {"workers": 1}}


def test_a_round_waits_for_those_who_have_not_asked():
    stage = Stage()
    stage.worker("a", spec=JOB)
    stage.worker("b", spec=JOB)
    stage.ask(asks("a"))
    assert waits(stage) == {"net": {"workers": 1}}
    stage.ask(asks("b"))
    assert waits(stage) == {"net": {}}


def test_a_part_waits_as_the_whole_model_does():
    stage = ShardStage().begin("a", "b", spec=spec_of(Method.SYNCHRONOUS))
    stage.asks("a")
    assert waits(stage) == {"net.shard0": {"workers": 1}, "net.shard1": {"workers": 1}}
    stage.gets("a", after=0)
    assert waits(stage) == {"net.shard0": {"update": 1, "workers": 1}, "net.shard1": {"update": 1, "workers": 1}}
    stage.lost("s1")
    assert waits(stage) == {"net.shard0": {"server": 2}, "net.shard1": {"server": 2}}
