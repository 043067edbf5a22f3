"""Synchronous iterations that are sent in sums: one seq, and as many parts as there are transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Expect,
    ModelVersion,
    SumId,
    TransferEnd,
)
from tests.scheduler.stage import GIGABIT, SPEC, Stage, committed_together, ended, holds, of, push, seq, update
from tests.scheduler.test_sums import directly, void

pytestmark = pytest.mark.usefixtures("compiled_planner")


SYNCHRONOUS = replace(SPEC, tau_max=None, method=Method.SYNCHRONOUS)


@pytest.fixture
def iteration():
    stage = Stage()
    stage.server(down_bps=GIGABIT)
    stage.aggregator("g")
    stage.trained("a", "b", "c", "d", spec=SYNCHRONOUS, server=False)
    yield stage
    stage.state.validate()


def test_all_transfers_of_an_iteration_share_one_seq_and_are_counted(iteration):
    expects = of(Expect, iteration.ask_all(*map(push, "abcd")))
    assert {e.seq for e in expects} == {seq(1)}
    assert {e.parts for e in expects} == {len(expects)}
    assert sum(len(e.members) for e in expects) == 4


def test_a_torn_sum_of_an_iteration_is_waited_for_in_parts_of_the_same_seq(iteration):
    expects = of(Expect, iteration.ask_all(*map(push, "abcd")))
    (summed,) = [e for e in expects if isinstance(e.transfer, SumId)]
    alone = [e.transfer for e in expects if e is not summed]
    members = [m.update for m in summed.members]
    iteration.tell(ended(summed.transfer, TransferEnd.TORN, by="g"))
    again = of(Expect, iteration.tell(ended(summed.transfer, TransferEnd.VOIDED)))
    assert [(e.transfer, e.parts, e.seq) for e in again] == [(name, 4, seq(1)) for name in alone]
    told = iteration.ask_all(*(push(m.worker) for m in members))
    assert {(e.transfer, e.parts, e.seq) for e in of(Expect, told)} == {(m, 4, seq(1)) for m in members}
    assert sorted(directly(told)) == sorted(members)


def test_an_iteration_goes_on_without_a_worker_that_is_gone(iteration):
    expects = of(Expect, iteration.ask_all(*map(push, "abcd")))
    (summed,) = [e for e in expects if isinstance(e.transfer, SumId)]
    members = [m.update for m in summed.members]
    iteration.left(members[0].worker)
    iteration.tell(ended(summed.transfer, TransferEnd.VOIDED))
    told = iteration.ask_all(*(push(m.worker) for m in members[1:]))
    assert {(e.parts, e.seq) for e in of(Expect, told)} == {(3, seq(1))}
    told = iteration.left("a")
    assert void(update("a")) in told
    (last,) = {e.parts for e in of(Expect, iteration.tell(ended(update("a"), TransferEnd.VOIDED)))}
    assert last == 2


def test_a_server_that_comes_back_hears_of_the_parts_that_are_left(iteration):
    (kept, *others) = of(Expect, iteration.ask_all(*map(push, "abcd")))
    held = tuple(m.update for m in kept.members)
    iteration.tell(ended(kept.transfer, TransferEnd.RECEIVED))
    iteration.silent("s")
    for worker in (m.update.worker for e in others for m in e.members):
        iteration.left(worker)
    for expect in others:
        iteration.tell(ended(expect.transfer, TransferEnd.VOIDED))  # the last thing that it says, and it hears nothing
    iteration.server(held=(SYNCHRONOUS,))
    told = of(Expect, iteration.tell(holds(0, spec=SYNCHRONOUS, received=held)))
    assert {(e.transfer, e.parts, e.seq) for e in told} == {(kept.transfer, 1, seq(1))}


def test_an_iteration_ends_with_its_commit(iteration):
    iteration.ask_all(*map(push, "abcd"))
    names = [update(w) for w in "abcd"]
    report = committed_together(*names, number=4)
    version = ModelVersion(1, 1)
    together = tuple(replace(c, version=version, tau=0) for c in report.commits)
    iteration.tell(replace(report, commits=together))
    assert iteration.pushes.iteration is None
    for worker in "abcd":
        iteration.tell(push(worker, 1, 1))
    iteration.wait(1000)
    assert {e.seq for e in of(Expect, iteration.tick())} == {seq(2)}
