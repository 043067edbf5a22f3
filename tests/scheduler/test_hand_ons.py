"""Models that aggregators hand on: who is told what, and that workers are served by the server when one fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    CancelHandOn,
    CancelServe,
    Fetch,
    GetId,
    HandOn,
    HandOnTo,
    MemberLeft,
    MemberSilent,
    ModelVersion,
    Serve,
    TransferEnd,
)
from mlfabric.scheduler.context import SEQ_BITS
from tests.scheduler.stage import GIGABIT, SPEC, Stage, committed, ended, get, holds, of, push, ticket, update
from tests.scheduler.test_gets import served

pytestmark = pytest.mark.usefixtures("compiled_planner")


def narrow(*workers: str, aggregators: tuple[str, ...] = ("g",)) -> Stage:
    """Let workers train behind a server with a tenth of their rate, so that handing on pays."""
    stage = Stage()
    stage.server(up_bps=GIGABIT // 10, down_bps=GIGABIT // 10)
    for name in aggregators:
        stage.aggregator(name)
    return stage.trained(*workers, spec=replace(SPEC, tau_max=40), server=False)


@pytest.fixture
def idle():
    stage = narrow("a", "b")
    yield stage
    stage.state.validate()


@pytest.fixture
def stage(idle):
    """Return one at which the model is on its way to two workers by an aggregator."""
    idle.ask_all(get("a"), get("b"))
    return idle


def own(number: int = 0, aggregator: str = "g", epoch: int = 1) -> GetId:
    return GetId(aggregator, 1, (epoch << SEQ_BITS) + number)


def gets(stage: Stage):
    return stage.state.models["net"].gets


def cancelled(name: GetId):
    return CancelHandOn(to=name.worker, model="net", get=name, reason="")


def unserved(name: GetId):
    return CancelServe(to="s", model="net", get=name, reason="")


def by_the_server(instructions) -> list[GetId]:
    assert not of(HandOn, instructions)
    assert all(f.source == "s" for f in of(Fetch, instructions))
    return [s.get for s in of(Serve, instructions)]


def busy(stage: Stage) -> bool:
    network = stage.state.context.network
    return any(network.busy_until(link, stage.now_ns) > stage.now_ns for link in network.links)


def test_who_has_the_model_is_told_before_those_who_come_for_it(idle):
    first, second = get("a"), replace(get("b"), min_version=ModelVersion(1, 0))
    told = idle.ask_all(first, second)
    serve = replace(served(second, 1)[0], get=own())
    rates = {t.get: t.rate_bps for t in of(HandOn, told)[0].targets}
    hand_on = HandOn(
        to="g",
        get=own(),
        model="net",
        source="s",
        address="s:1",
        ticket=ticket(1),
        targets=tuple(HandOnTo(g.get, ticket(n), rates[g.get]) for n, g in ((2, first), (3, second))),
        reason="",
    )
    fetches = [replace(served(g, n)[1], source="g", address="g:1") for n, g in ((2, first), (3, second))]
    assert told == [serve, hand_on, *fetches]


def test_the_served_version_has_the_updates_of_all():
    stage = narrow("a", "b")
    names = [update("a"), update("b")]
    for name in names:
        stage.tell(push(name.worker))
        stage.tell(get(name.worker, after=name))
    stage.tick()
    for place, name in enumerate(names, start=1):
        stage.tell(committed(name, place))
    (serve,) = of(Serve, stage.tick())
    assert serve.get == own()
    assert set(serve.after_updates) == set(names)


def test_gets_that_gather_while_the_server_sends_are_handed_on(idle):
    idle.worker("c", spec=idle.pushes.spec)
    assert by_the_server(idle.ask(get("c"))) == [get("c").get]
    for name in ("a", "b"):
        idle.wait(1)
        assert idle.ask(get(name)) == []
    idle.now_ns = idle.state.next_wakeup_ns(idle.now_ns)
    (hand_on,) = of(HandOn, idle.tick())
    assert {t.get for t in hand_on.targets} == {get("a").get, get("b").get}


def test_a_model_goes_down_a_tree_of_aggregators():
    stage = narrow("a", "b", "c", "d", "e", "f", aggregators=("g", "k"))
    told = stage.ask_all(*[get(w) for w in "abcdef"])
    top, below = of(HandOn, told)
    assert [s.get for s in of(Serve, told)] == [top.get]
    assert (below.source, below.address) == (top.to, f"{top.to}:1")
    assert HandOnTo(below.get, below.ticket, 0) in [t._replace(rate_bps=0) for t in top.targets]
    sources = {f.get: f.source for f in of(Fetch, told)}
    for order in (top, below):
        assert {t.get for t in order.targets if t.get in sources} == {g for g, s in sources.items() if s == order.to}


def test_what_was_handed_on_frees_its_links_and_is_forgotten_with_the_last_target(stage):
    assert stage.tell(ended(own(), TransferEnd.SERVED)) == []
    assert stage.tell(ended(get("a").get, TransferEnd.SERVED, by="g")) == []
    assert gets(stage).hand_ons.planned
    assert stage.tell(ended(get("b").get, TransferEnd.SERVED, by="g")) == []
    assert not gets(stage).hand_ons.planned
    assert not gets(stage).planned
    assert not busy(stage)


def test_a_get_that_was_not_answered_is_served_by_the_server_when_it_is_asked_for_again(stage):
    assert stage.tell(ended(get("a").get, TransferEnd.BROKEN, by="g")) == []
    assert by_the_server(stage.ask(get("a"))) == [get("a").get]
    assert stage.tell(ended(get("b").get, TransferEnd.SERVED, by="g")) == [cancelled(own()), unserved(own())]
    stage.tell(ended(get("a").get, TransferEnd.SERVED))
    assert not gets(stage).apart


def test_asking_again_while_it_is_handed_on_means_that_this_failed(stage):
    assert by_the_server(stage.ask(get("b"))) == [get("b").get]
    assert list(gets(stage).hand_ons.planned[own()].targets) == [get("a").get]


@pytest.mark.parametrize("event", [MemberSilent(name="g", incarnation=1), MemberLeft(name="g", incarnation=1)])
def test_without_its_aggregator_everything_is_served_by_the_server(stage, event):
    assert stage.tell(event) == [unserved(own())]
    assert not gets(stage).planned
    assert not busy(stage)
    stage.aggregator("g", incarnation=2)
    assert sorted(by_the_server(stage.ask_all(get("a"), get("b")))) == [get("a").get, get("b").get]


@pytest.mark.parametrize("place", ["in the middle", "at the end"])
def test_an_aggregator_takes_those_below_it_along_and_leaves_the_others_as_they_are(place):
    stage = narrow("a", "b", "c", "d", "e", "f", aggregators=("g", "k"))
    top, below = of(HandOn, stage.ask_all(*map(get, "abcdef")))
    if place == "in the middle":
        assert stage.silent(top.to) == [unserved(top.get), cancelled(below.get)]
        assert not gets(stage).planned
    else:
        assert stage.silent(below.to) == []
        assert gets(stage).hand_ons.planned.keys() == {top.get}
        assert {p.source for p in gets(stage).planned.values()} == {top.to}


@pytest.mark.parametrize("by", ["s", "g"])
def test_a_model_that_never_came_to_the_aggregator_is_not_handed_on(stage, by):
    assert stage.tell(ended(own(), TransferEnd.BROKEN, by=by)) == [cancelled(own()), unserved(own())]
    assert stage.tell(ended(get("a").get, TransferEnd.BROKEN, by="g")) == []
    assert by_the_server(stage.ask(get("a"))) == [get("a").get]


def test_a_worker_that_is_gone_is_no_longer_waited_for(stage):
    assert stage.silent("a") == []
    assert stage.silent("b") == [cancelled(own()), unserved(own())]
    assert not busy(stage)


def test_a_server_that_comes_back_serves_everything_itself(idle):
    spec = idle.pushes.spec
    idle.ask_all(get("a"), get("b"))
    idle.server(up_bps=GIGABIT // 10, held=(spec,))
    assert idle.tell(holds(0, spec=spec)) == [cancelled(own()), unserved(own())]
    assert sorted(by_the_server(idle.ask_all(get("a"), get("b")))) == [get("a").get, get("b").get]
