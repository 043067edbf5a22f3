"""Gets at the server: when one is served, what it pins, and what a pin holds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import RuleKind
from mlfabric.protocol import CancelServe, TransferEnd
from mlfabric.server import actions as act
from mlfabric.transfer.offers import UNCLAIMED_NS
from tests.server.models import spec_of, step, store_of
from tests.server.stage import (
    SIZE,
    Stage,
    end_report,
    expect,
    get,
    refuse,
    serve,
    serving,
    update,
    want,
)

A, B = update("a"), update("b")
G, H = get("a"), get("b")


def test_a_get_is_served_when_it_is_wanted_and_reported_when_it_was_sent(stage):
    assert stage.tell(serve(G)) == []
    assert stage.tell(want(G)) == [serving(G, 0)]
    assert stage.tell(act.GetServed(get=G, connection=1)) == [end_report(G, TransferEnd.SERVED)]
    assert not stage.model.gets.gets


@pytest.mark.parametrize("plan", [serve(G, after_updates=(A,)), serve(G, min_version=1)])
def test_a_get_waits_for_the_update_that_it_follows_and_the_version_that_it_asks_for(stage, plan):
    stage.tell(expect(A, 1), plan)
    assert stage.tell(want(G, 2)) == []
    assert stage.commit(A, 1)[-1] == serving(G, 1, 2)


def test_nobody_is_served_without_weights():
    stage = Stage(initialised=False)
    stage.tell(serve(G))
    assert stage.tell(want(G)) == []


def test_nobody_is_served_while_a_step_is_made(stage):
    stage.bring(A, 1)
    stage.tell(serve(G))
    assert stage.tell(want(G, 2)) == []
    assert stage.step(A)[-1] == serving(G, 1, 2)


def test_a_get_waits_for_the_one_that_the_plan_puts_before_it(stage):
    stage.tell(serve(G), serve(H, after=(G,)))
    assert stage.tell(want(G, 1)) == [serving(G, 0, 1)]
    assert stage.tell(want(H, 2)) == []
    assert stage.tell(act.GetServed(get=G, connection=1))[-1] == serving(H, 0, 2)


def test_who_takes_much_longer_than_planned_keeps_nobody_waiting_any_more(stage):
    stage.tell(replace(serve(G), span_ns=400_000_000), serve(H, after=(G,)))
    assert stage.tell(want(G, 1)) == [serving(G, 0, 1)]
    assert stage.state.next_wakeup_ns() == UNCLAIMED_NS
    assert stage.tell(want(H, 2)) == []
    assert stage.state.next_wakeup_ns() == 510_000_000
    assert stage.tick(0.509) == []
    assert stage.tick(0.001) == [serving(H, 0, 2)]
    assert stage.state.next_wakeup_ns() is None


def test_two_gets_share_a_version(stage):
    for name, connection in ((G, 1), (H, 2)):
        stage.tell(serve(name))
        assert stage.tell(want(name, connection)) == [serving(name, 0, connection)]


def test_a_get_of_a_newer_version_waits_while_an_older_one_is_read(stage):
    stage.tell(serve(G), want(G, 9))
    stage.commit(A, 1)
    stage.tell(serve(H))
    assert stage.tell(want(H, 8)) == []
    assert stage.tell(act.GetServed(get=G, connection=9))[-1] == serving(H, 1, 8)


@pytest.mark.parametrize("copies", [0, 3])
@pytest.mark.parametrize(
    ("rule", "versions"),
    [({}, 1), ({"momentum": 0.9}, 2), ({"kind": RuleKind.ADAM}, 3)],
    ids=["plain", "momentum", "adam"],
)
def test_versions_are_pinned_until_all_copies_that_the_store_may_make_are_in_use(rule, versions, copies):
    stage, store, pinned = Stage(weight_copies=copies, **rule), store_of(spec_of(**rule)), 0
    for counter in range(10):
        name = get("g", counter)
        stage.tell(serve(name))
        assert not stage.state.lacking_bytes()
        if [type(a) for a in stage.tell(want(name, 10 + counter))] != [act.ServeModel]:
            break
        pinned += 1
        store.acquire()
        stage.bring(update("a", counter), counter, computed_from=counter)
        stage.step(update("a", counter))
        step(store, counter)
        memory = store.memory_bytes()
        assert memory["copies"] <= copies * store.spec.layout.size_bytes
    assert pinned == versions + copies
    assert memory["copies"] == copies * store.spec.layout.size_bytes
    assert stage.state.lacking_bytes() == SIZE
    stage.tell(act.GetServed(get=get("g"), connection=10))
    assert not stage.state.lacking_bytes()


def test_a_get_whose_connection_breaks_is_unpinned_and_reported(stage):
    stage.tell(serve(G), want(G))
    told = stage.tell(act.GetBroken(get=G, connection=1, detail="gone"))
    assert told == [end_report(G, TransferEnd.BROKEN, detail="gone")]
    assert not stage.model.gets.gets


def test_a_cancelled_get_is_refused_unless_it_is_being_served(stage):
    cancel = CancelServe(to="s", model="net", get=G, reason="")
    stage.tell(serve(G, min_version=5), want(G, 3))
    assert stage.tell(cancel) == [refuse(3)]
    stage.tell(serve(H), want(H, 4))
    assert stage.tell(CancelServe(to="s", model="net", get=H, reason="")) == []
    assert H in stage.model.gets.gets


def test_a_get_that_is_being_served_is_broken_off_if_its_worker_is_gone(stage):
    stage.tell(serve(G), want(G, 4))
    told = stage.tell(CancelServe(to="s", model="net", get=G, reason="", gone=True))
    assert told == [act.Abandon(connection=4)]
    assert stage.tell(act.GetBroken(get=G, connection=4, detail="closed")) == [
        end_report(G, TransferEnd.BROKEN, detail="closed")
    ]
    assert not stage.model.gets.gets


def test_a_second_want_takes_the_place_of_the_first(stage):
    stage.tell(serve(G, min_version=1), want(G, 1))
    assert stage.tell(want(G, 2)) == [refuse(1)]
    assert stage.commit(A, 1, 5)[-1] == serving(G, 1, 2)


def test_a_second_want_is_refused_while_the_first_is_served(stage):
    stage.tell(serve(G), want(G, 1))
    assert stage.tell(want(G, 2)) == [refuse(2)]


def test_a_new_ticket_makes_the_old_want_void(stage):
    stage.tell(serve(G, min_version=9), want(G, 1))
    assert stage.tell(serve(G, b"new")) == [refuse(1)]
    assert stage.tell(want(G, 2, b"new")) == [serving(G, 0, 2)]


def test_a_get_that_nobody_wants_is_given_up(stage):
    stage.tell(serve(G))
    assert stage.tick(10) == [end_report(G, TransferEnd.BROKEN, detail="it was never wanted")]
