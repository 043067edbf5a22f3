"""The gate that keeps a primary within the bound over its replica."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import Layout, ModelSpec, MomentumAt, TensorKind, TensorSpec
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import (
    Drop,
    DropReason,
    HeldBack,
    Unfollowed,
)
from mlfabric.server import actions as act
from mlfabric.server.gate_lead import LeadGate
from tests.server.stage import SPEC, Stage, commit, followed, member, update


def steps(actions: list[act.Action]) -> list[act.ApplyStep]:
    return [a for a in actions if isinstance(a, act.ApplyStep)]


def held_back(actions: list[act.Action]) -> list[HeldBack]:
    return [a.event for a in actions if isinstance(a, act.Report) and isinstance(a.event, HeldBack)]


def test_a_commit_beyond_the_bound_waits_until_the_replica_has_come_closer():
    stage = Stage().seeded()
    stage.tell(followed(updates=1))
    assert steps(stage.bring(update("a"), 1, 1))
    stage.step(update("a"))
    (event,) = held_back(stage.bring(update("b"), 2, 2))
    assert (event.transfers, event.alone) == ((update("b"),), False)
    assert steps(stage.tell(followed(1, updates=1)))


def test_the_exact_step_norm_counts_once_it_is_known():
    stage = Stage(lr=0.5).seeded()
    stage.tell(followed(norm=1.6))
    assert steps(stage.bring(update("a"), 1, 1, norm=2.0))
    stage.tell(act.StepDone(model="net", transfers=(update("a"),), step_norm=0.5))
    assert steps(stage.bring(update("b"), 2, 2, norm=2.0))
    stage.tell(act.StepDone(model="net", transfers=(update("b"),), step_norm=0.7))
    assert held_back(stage.bring(update("c"), 3, 3, norm=1.0))


def test_without_any_lead_only_what_the_replica_holds_is_committed():
    stage = Stage().seeded()
    stage.tell(followed(norm=0.0))
    (event,) = held_back(stage.bring(update("a"), 1, 1))
    assert event.alone
    assert not steps(stage.tell(followed(0, update("b"), norm=0.0)))
    assert steps(stage.tell(followed(0, update("a"), norm=0.0)))


def test_what_the_replica_holds_behind_a_gap_is_a_lead_all_the_same():
    stage = Stage().seeded()
    stage.tell(followed(updates=1))
    stage.commit(update("a"), 1, 1)
    stage.tell(followed(0, update("b"), updates=1))
    assert held_back(stage.bring(update("b"), 2, 2))


def test_it_says_once_what_it_holds_back():
    stage = Stage().seeded()
    stage.tell(followed(norm=0.0))
    assert held_back(stage.bring(update("a"), 1, 1))
    assert not held_back(stage.bring(update("b"), 2, 2))


def test_a_step_that_no_lead_allows_waits_for_its_own_bytes():
    stage = Stage(lr=1.0).seeded()
    stage.tell(followed(norm=0.5))
    assert held_back(stage.bring(update("a"), 1, 1, norm=2.0))[0].alone
    assert steps(stage.tell(followed(0, update("a"), norm=0.5)))


def test_the_bound_is_lifted_when_there_is_no_replica_any_more():
    stage = Stage().seeded()
    stage.tell(followed(norm=0.0))
    stage.bring(update("a"), 1, 1)
    assert steps(stage.tell(Unfollowed(to="s", model="net", reason="")))


def test_what_can_never_be_replicated_is_dropped_and_the_next_may_go():
    stage = Stage().seeded()
    stage.tell(followed(0, update("b"), norm=0.0))
    stage.bring(update("a"), 1, 1)
    stage.bring(update("b"), 2, 2)
    order = Drop(to="s", model="net", update=update("a"), cause=DropReason.NOT_REPLICATED, reason="gone")
    assert steps(stage.tell(order))[0].transfers == (update("b"),)


def test_a_server_says_over_whom_its_lead_is_bounded():
    stage = Stage().seeded()
    assert stage.model.holds().replica == ""
    stage.tell(followed(updates=1))
    assert stage.model.holds().replica == "r"


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.floats(0.01, 20),
)
def test_what_passes_is_within_the_bound_whatever_the_directions(norms: list[float], gamma: float, limit: float):
    gate = gate_of(RuleSpec(lr=0.5, momentum=gamma, momentum_at=MomentumAt.SERVER))
    gate.follow(followed(norm=limit))
    members = [member(update("a", n), norm=norm) for n, norm in enumerate(norms)]
    passed = not gate.refusal(0, members, [0.5] * len(members))
    history = lead = 0.0
    for norm in norms:
        history = gamma * history + 0.5 * norm
        lead += history
    if passed:
        assert lead <= limit * (1 + 1e-6)
    else:
        assert lead * (1 + 1e-6) >= limit


def test_a_sum_is_held_back_as_a_whole():
    gate = gate_of()
    gate.follow(followed(updates=1))
    members = [member(update(name)) for name in "ab"]
    assert gate.refusal(0, members[:1], [0.1]) == ""
    assert gate.refusal(0, members, [0.1, 0.1])
    assert gate.is_too_large(0, members, [0.1, 0.1])


def gate_of(rule: RuleSpec | None = None, layout: Layout = SPEC.layout, weights_norm: float = 0.0) -> LeadGate:
    gate = LeadGate(ModelSpec(name="net", layout=layout, rule=rule or RuleSpec()))
    gate.seeded(0.0, weights_norm, 0)
    return gate


def under_adam() -> LeadGate:
    """Return a gate whose groups make one step each, which a replica cannot make in part."""
    return gate_of(RuleSpec(lr=0.5, kind=RuleKind.ADAM))


@pytest.mark.parametrize("bound", [{"updates": 1}, {"norm": 0.01}, {"norm": 0.0}])
@pytest.mark.parametrize("there", ["", "a", "b"])
def test_what_the_replica_holds_of_a_sum_that_makes_one_step_helps_only_whole(bound, there):
    gate, members = under_adam(), [member(update(name)) for name in "ab"]
    gate.follow(followed(0, *map(update, there), **bound))
    assert gate.refusal(0, members, [0.5, 0.5])
    assert gate.is_too_large(0, members, [0.5, 0.5])
    gate.follow(followed(0, update("a"), update("b"), **bound))
    assert gate.refusal(0, members, [0.5, 0.5]) == ""


@pytest.mark.parametrize("there", ["", "a", "b"])
def test_a_sum_that_made_one_step_is_a_lead_until_the_replica_has_all_of_it(there):
    gate, members = under_adam(), [member(update(name)) for name in "abc"]
    gate.follow(followed(updates=2))
    made = [commit(m.update, n, lr=0.5, step_norm=0.5) for n, m in enumerate(members[:2], 1)]
    gate.committed(members[:2], made)
    gate.follow(followed(0, *map(update, there), updates=2))
    assert "3 updates" in gate.refusal(2, members[2:], [0.5])
    gate.follow(followed(0, update("a"), update("b"), updates=2))
    assert gate.refusal(2, members[2:], [0.5]) == ""
    gate.follow(followed(2, updates=2))
    assert gate.refusal(2, members[2:], [0.5]) == ""


@pytest.mark.parametrize("updates", [0, 2])
def test_it_says_in_figures_what_would_be_too_much(updates: int):
    gate = gate_of()
    gate.follow(followed(updates=updates))
    members = [member(update("a", n)) for n in range(3)]
    assert "3 updates" in gate.refusal(0, members, [0.1] * 3)


@pytest.mark.parametrize(("rates", "fits"), [((0.5, 0.25), True), ((0.5, 0.75), False)])
def test_updates_that_bring_rates_are_bounded_by_the_greatest(rates, fits):
    """It is told in place of their norms; the weights, of norm 2, decay by a tenth of it."""
    tensors = (
        TensorSpec(name="w", shape=(4,), dtype="float32"),
        TensorSpec(name="(rates)", shape=(1, 2), dtype="float64", kind=TensorKind.RATES),
    )
    rule = RuleSpec(lr=1.0, kind=RuleKind.ADAM, decoupled=True, weight_decay=0.1)
    gate = gate_of(rule, Layout(tensors), weights_norm=2.0)
    first_step = math.sqrt(4)  # each element moves by the rate at most
    gate.follow(followed(norm=0.5 * (first_step + 0.1 * 2) * 1.0001))
    members = [member(update(name), norm=rate) for name, rate in zip("ab", rates, strict=True)]
    assert (gate.refusal(0, members, [1.0, 1.0]) == "") == fits
