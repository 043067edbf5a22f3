"""What live plans know of a replica: nothing is sent or reserved twice, and each plan keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlfabric import planning
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.network import Network, down_link
from mlfabric.planning import Batch, FabricState, Plan
from mlfabric.planning.problem import PlannerConfig
from mlfabric.protocol import Replicate, Serve, TransferEnd
from mlfabric.scheduler.updates import pushes
from tests.scheduler.stage import GIGABIT, LAYOUT, MS, SPEC, Stage, committed, ended, get, of, push, update
from tests.scheduler.test_replicas import commit, seeded

pytestmark = pytest.mark.usefixtures("compiled_planner")

UPDATE_NS = 8 * LAYOUT.size_bytes * 10**9 // GIGABIT
A, B = update("a"), update("b")
WIDE = replace(SPEC, tau_max=40)


@dataclass
class Planned:
    """A plan and what it was made for."""

    batch: Batch
    network: Network
    state: FabricState
    plan: Plan


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Planned]]:
    """The plans of updates that are made, with the network as it was then."""
    found: list[Planned] = []
    planner = planning.plan

    def plan(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Any:
        before = network.copy()
        made = planner(batch, network, state, config)
        made.validate(before)
        found.append(Planned(batch, before, state, made))
        return made

    monkeypatch.setattr(pushes, "plan", plan)
    yield found
    assert found


def busy_ns(stage: Stage, link: Any) -> int:
    return stage.state.context.network.busy_until(link, stage.now_ns) - stage.now_ns


def test_a_window_on_its_way_is_neither_pending_nor_reserved_again(made: list[Planned]):
    stage = seeded(Stage().trained("a", "b", spec=WIDE), updates=4)
    commit(stage, "a", 1)
    assert of(Replicate, commit(stage, "b", 2))
    taken_ns = busy_ns(stage, down_link("h-r"))
    assert taken_ns == 2 * UPDATE_NS
    stage.ask(push("a", 1, computed_from=2))
    replica = made[-1].state.replica
    assert replica is not None
    assert replica.pending == ()
    assert busy_ns(stage, down_link("h-r")) == taken_ns


def test_what_a_plan_sends_of_the_lead_is_reserved_as_planned(made: list[Planned]):
    stage = seeded(Stage().trained("a", "b", spec=WIDE), updates=5)
    commit(stage, "a", 1)
    for counter in range(1, 4):
        stage.tell(push("a", counter, computed_from=1))
    stage.tell(push("b", 0, computed_from=1))
    found = stage.tick()
    replica = made[-1].state.replica
    assert replica is not None
    assert [pending.update for pending in replica.pending] == [A]
    assert [order.to for order in of(Replicate, found)] == ["a"]
    arrive_ns = made[-1].plan.replica_steps[0].arrive_ns
    assert stage.state.context.network.busy_until(down_link("h-r"), arrive_ns - 1) == arrive_ns


def test_without_any_lead_each_update_is_reserved_once_on_its_way_to_the_replica(made: list[Planned]):
    stage = seeded(Stage().trained("a", "b", spec=WIDE), updates=0)
    stage.ask_all(push("a"), push("b"))
    assert made[-1].state.replica is None
    assert busy_ns(stage, down_link("h-r")) == 2 * UPDATE_NS
    stage.wait(8)
    stage.tell(ended(A, TransferEnd.RECEIVED))
    stage.wait(6)
    stage.ask(push("a", 1))
    later = made[-1]
    assert {candidate.update for candidate in later.batch.updates} == {B, update("a", 1)}
    assert not later.plan.replica_steps
    assert later.network.busy_until(down_link("h-r"), stage.now_ns) == stage.now_ns + 2 * UPDATE_NS - 14 * MS


def test_a_get_is_planned_for_when_the_replica_has_what_it_follows(made: list[Planned]):
    stage = seeded(Stage().trained("a", spec=WIDE), updates=0)
    stage.ask(push("a"))
    there_ns = stage.now_ns + 2 * UPDATE_NS
    assert not of(Serve, stage.ask(get("a", after=A)))
    stage.now_ns = there_ns - 2 * MS
    assert of(Serve, stage.tick())
    (planned,) = stage.state.models["net"].gets.planned.values()
    assert planned.profile.start_ns >= there_ns


@pytest.mark.parametrize(
    ("rule", "given", "planned"),
    [
        (RuleSpec(lr=0.5), 2.0, 1.0),
        (RuleSpec(kind=RuleKind.ADAM, lr=0.01), 2.0, 0.01 * 500),
        (RuleSpec(kind=RuleKind.ADAM, lr=0.01), 2e-9, 0.01 * 500),
        (RuleSpec(kind=RuleKind.ADADELAY, smoothness=4.0, delay_scale=1.0), 2.0, 0.5),
    ],
)
def test_plans_know_how_far_a_step_of_each_rule_may_go(
    made: list[Planned], rule: RuleSpec, given: float, planned: float
):
    stage = seeded(Stage().trained("a", spec=replace(WIDE, rule=rule)), norm=100.0)
    stage.ask(push("a", norm=given))
    (candidate,) = made[-1].batch.updates
    assert candidate.norm == pytest.approx(planned, rel=1e-6)


def test_plans_know_the_momentum_that_the_server_keeps(made: list[Planned]):
    rule = RuleSpec(lr=0.1, momentum=0.9, momentum_at=MomentumAt.SERVER)
    stage = seeded(Stage().trained("a", spec=replace(WIDE, rule=rule)), norm=100.0)
    stage.ask(push("a"))
    report = committed(A, 1)
    stage.tell(replace(report, commits=tuple(replace(c, step_norm=7.0) for c in report.commits)))
    stage.ask(push("a", 1, computed_from=1))
    replica = made[-1].state.replica
    assert replica is not None
    assert replica.history_norm == 7.0
