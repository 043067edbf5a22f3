"""Sums of updates: who is told what, what tears them, and that nothing is planned twice meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Method, ModelSpec
from mlfabric.model.stepping import member_coefficients
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.planning import Shape
from mlfabric.protocol import (
    CancelSum,
    Expect,
    Expected,
    HostModel,
    Send,
    Sum,
    SumId,
    UpdateId,
    Void,
)
from mlfabric.scheduler.records import TornBy
from tests.scheduler.stage import GIGABIT, LAYOUT, SPEC, Stage, committed, expected, of, push, sent, seq, ticket, update

WIDE = replace(SPEC, tau_max=40)
ALL = (update("a"), update("b"), update("c"))
SUM = SumId(1, 0)

pytestmark = pytest.mark.usefixtures("compiled_planner")


def narrow(*workers: str, spec: ModelSpec = WIDE, aggregators: tuple[str, ...] = ("g",)) -> Stage:
    """Let workers train behind a server with a tenth of their rate, so that sums pay."""
    stage = Stage()
    stage.server(down_bps=GIGABIT // 10)
    for name in aggregators:
        stage.aggregator(name)
    return stage.trained(*workers, spec=spec, server=False)


@pytest.fixture
def stage():
    stage = narrow("a", "b", "c")
    yield stage
    stage.state.validate()


def void(name):
    return Void(to="s", model="net", transfer=name, reason="")


def cancel(number: int = 0, to: str = "g"):
    return CancelSum(to=to, model="net", sum=SumId(1, number), reason="")


def directly(instructions) -> list[UpdateId]:
    """Return which updates the instructions send to the server by themselves."""
    sends = of(Send, instructions)
    assert all(s.receiver == "s" and s.address == "s:1" for s in sends)
    assert not of(Sum, instructions)
    return [s.update for s in sends]


def torn(stage: Stage) -> dict[TornBy, int]:
    return dict(stage.state.count.torn)


# Planned


def test_receivers_are_told_of_a_sum_before_senders(stage):
    requests = [push(w) for w in "abc"]
    told = stage.ask_all(*map(push, "abc"))
    inputs = {i.transfer: i for i in of(Sum, told)[0].inputs}
    plain = Sum(
        to="g",
        sum=SUM,
        model="net",
        inputs=of(Sum, told)[0].inputs,
        members=ALL,
        images=1,
        cut_through=True,
        receiver="s",
        address="s:1",
        ticket=ticket(1),
        rate_bps=0,
        seq=seq(1),
        reason="",
    )
    expects = replace(
        expected(requests[0], 1, 1, tau_max=40),
        transfer=SUM,
        members=tuple(Expected(r.update, r.computed_from, 0, r.norm) for r in requests),
        lrs=(0.1, 0.1, 0.1),
    )
    sends = [replace(sent(r, 1, n), receiver="g", address="g:1") for n, r in enumerate(requests, start=2)]
    assert told == [expects, plain, *sends]
    assert {u: i.ticket for u, i in inputs.items()} == {u: ticket(n) for n, u in enumerate(ALL, start=2)}
    assert {(i.first, i.second, i.size_bytes) for i in inputs.values()} == {(-0.1, 0.0, LAYOUT.size_bytes)}
    assert stage.state.count.groups == {(Shape.TREE, 3): 1}


def test_inputs_that_share_the_aggregator_s_link_are_granted_in_the_order_of_the_plan(stage):
    inputs = of(Sum, stage.ask_all(*map(push, "abc")))[0].inputs
    first = [i for i in inputs if not i.after]
    assert len(first) == 1
    assert all(i.after in [(j.transfer,) for j in inputs] for i in inputs if i.after)


def test_momentum_at_the_server_makes_two_images_with_the_coefficients_of_all_steps():
    rule = RuleSpec(lr=0.5, momentum=0.9, weight_decay=0.01)
    stage = narrow("a", "b", "c", "d", "e", spec=replace(WIDE, rule=rule))
    told = stage.ask_all(*map(push, "abcde"))
    expect, order = of(Expect, told)[0], of(Sum, told)[0]
    own = dict(zip(order.members, member_coefficients(rule, expect.lrs), strict=True))
    assert order.images == 2
    assert expect.size_bytes == 2 * LAYOUT.size_bytes
    assert expect.lrs == (0.5,) * 5
    assert {i.transfer: (i.first, i.second) for i in order.inputs} == own


def test_learning_rates_are_those_of_the_versions_that_the_plan_gives():
    rule = RuleSpec(lr=1.0, warmup_versions=9)
    stage = narrow("a", "b", "c", spec=replace(WIDE, rule=rule))
    stage.tell(committed(update("a"), 1))
    stage.tell(push("a", 1))
    told = stage.ask_all(*map(push, "bc"))
    assert of(Expect, told)[0].lrs == tuple(rule.lr_at(v) for v in (1, 2, 3))


def test_updates_of_a_version_that_the_server_has_not_told_of_yet_are_rated_as_fresh():
    rule = RuleSpec(kind=RuleKind.ADADELAY, smoothness=2.0, delay_scale=0.5)
    stage = narrow("a", "b", "c", "d", spec=replace(WIDE, rule=rule))
    stage.ask_all(*map(push, "a"))
    stage.silent("a")
    for worker in "bcd":
        stage.tell(push(worker, computed_from=1))
    assert of(Expect, stage.tick())[0].lrs == (rule.lr_at(1), rule.lr_at(1), rule.lr_at(2, 1))


@pytest.mark.parametrize(
    "spec",
    [replace(WIDE, rule=RuleSpec(kind=RuleKind.ADAM, lr=0.1)), replace(WIDE, tau_max=None, method=Method.SYNCHRONOUS)],
    ids=["adam", "synchronous"],
)
def test_a_sum_that_makes_one_step_is_plain(spec):
    stage = narrow("a", "b", "c", spec=spec)
    told = stage.ask_all(*map(push, "abc"))
    assert of(Expect, told)[0].lrs == ()
    assert {(i.first, i.second) for i in of(Sum, told)[0].inputs} == {(1.0, 0.0)}
    assert of(Sum, told)[0].images == 1


def test_a_tree_goes_from_the_root_outwards():
    stage = narrow("a", "b", "c", "d", aggregators=("g", "k"))
    told = stage.ask_all(*map(push, "abcd"))
    root, leaf = of(Sum, told)
    assert root.receiver == "s"
    assert (leaf.receiver, leaf.address) == (root.to, f"{root.to}:1")
    (child,) = [i for i in root.inputs if isinstance(i.transfer, SumId)]
    assert (child.transfer, child.ticket, child.first, child.second) == (leaf.sum, leaf.ticket, 1.0, 1.0)
    assert of(Expect, told)[0].transfer == root.sum
    senders = {s.update: s.receiver for s in of(Send, told)}
    for order in (root, leaf):
        assert {i.transfer for i in order.inputs if isinstance(i.transfer, UpdateId)} == {
            u for u, receiver in senders.items() if receiver == order.to
        }


def test_an_aggregator_takes_no_more_updates_than_it_said():
    stage = Stage()
    stage.server(down_bps=GIGABIT // 10)
    stage.aggregator("g", most_updates=2)
    stage.trained("a", "b", "c", spec=WIDE, server=False)
    assert all(len(s.members) <= 2 for s in of(Sum, stage.ask_all(*map(push, "abc"))))


def test_an_aggregator_that_is_silent_is_not_planned_with(stage):
    stage.silent("g")
    assert directly(stage.ask_all(*map(push, "abc"))) == list(ALL)


def test_models_are_told_to_aggregators_that_join_and_new_models_to_those_that_are_here():
    stage = Stage()
    stage.aggregator("g")
    stage.server()
    told = stage.worker("a")
    assert [i.to for i in of(HostModel, told)] == ["s", "g"]
    assert of(HostModel, stage.aggregator("k")) == [HostModel(to="k", spec=SPEC, reason="")]


def test_an_update_on_its_way_keeps_its_seq_before_a_sum_and_is_counted(stage):
    stage.ask(push("a", 1))
    stage.tell(push("b"))
    stage.tell(push("c"))
    stage.wait(100)
    told = stage.tick()
    assert of(Expect, told)[0].members[0].update in (update("b"), update("c"))
    assert of(Expect, told)[0].seq == seq(2)
    assert not [e for e in of(Expect, told) if e.transfer == update("a", 1)]


def test_what_is_planned_after_a_sum_counts_its_members(stage):
    stage.ask_all(*map(push, "abc"))
    stage.tell(push("a", 1))
    stage.wait(200)
    stage.tick()
    assert stage.pushes.commit_ns.keys() >= {update("a", 1)}
    assert [p.seq for p in stage.pushes.planned.values()] == [seq(1)] * 3 + [seq(2)]


def test_the_busiest_aggregator_is_the_last_choice():
    stage = narrow("a", "b", "c", "d", "e", "f", aggregators=("g", "k"))
    stage.state.context.members["g"].most_updates = 3
    stage.state.context.members["k"].most_updates = 3
    (first,) = {s.to for s in of(Sum, stage.ask_all(*map(push, "ab")))}
    assert list(stage.state.context.aggregators(stage.pushes.sums.load(), set()))[-1] == f"h-{first}"
