"""Workers that come and go under ever new names: the scheduler's memory of them has an end, which costs nothing."""

from __future__ import annotations

from mlfabric.protocol import (
    Committed,
    LinkRate,
    LinksReported,
    ModelVersion,
    Resolve,
    Send,
    Tick,
    TransferEnd,
)
from mlfabric.scheduler.limits import Limits
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.records import MemberState
from mlfabric.telemetry import SchedulerMetrics
from tests.scheduler.stage import GIGABIT, Stage, committed, ended, holds, push, update

MOST = 3
FEW = Limits(departed=MOST)


def train_once(stage: Stage, worker: str, version: int) -> None:
    stage.ask(push(worker, computed_from=version))
    stage.tell(committed(update(worker), version + 1))


def test_only_the_last_workers_that_left_are_remembered():
    stage, meter = Stage(limits=FEW).trained("steady"), Meter(SchedulerMetrics(), "0")
    names = [f"w{i}" for i in range(20)]
    for version, name in enumerate(names):
        stage.worker(name)
        stage.ask(push(name, computed_from=version))
        meter.handle(stage.state, committed(update(name), version + 1), stage.now_ns)
        stage.left(name)
        link = LinkRate(host=f"h-{name}", up=True, bps=GIGABIT, age_ns=0)
        meter.handle(stage.state, LinksReported(monitor="m", rates=(link,)), stage.now_ns)
        stage.wait(1000)
        stage.tell(Tick())
        meter.survey(stage.state)

    kept = {"s", "steady", *names[-MOST:]}
    assert stage.state.context.members.keys() == kept
    assert stage.state.context.steps._workers.keys() <= kept
    shown = {s.labels["worker"] for m in meter.metrics.registry.collect() for s in m.samples if "worker" in s.labels}
    assert shown == set(names[-MOST:])
    assert not dict(stage.pushes.settled.items())
    assert len(stage.state.context.network.hosts) <= len(kept) + 1
    assert len(stage.state.context.network._seen_ns) <= 2 * len(kept) + 2
    hosts = {s.labels["host"] for m in meter.metrics.registry.collect() for s in m.samples if "host" in s.labels}
    assert hosts <= stage.state.context.network.hosts


def test_outcomes_are_kept_for_who_fell_silent_until_it_is_forgotten():
    stage = Stage(silence_ns=1000, limits=FEW).trained("steady")
    for version, name in enumerate(("lost", "a", "b", "c")):
        stage.worker(name)
        train_once(stage, name, version)
        stage.silent(name)
        stage.wait(1)
        stage.tick()
        assert stage.state.context.members[name].state is MemberState.LEFT
    assert update("a") in stage.pushes.settled
    assert update("lost") not in stage.pushes.settled


def test_who_comes_back_after_it_was_forgotten_hears_what_the_server_knows_of_its_update():
    stage = Stage(limits=FEW).trained("steady", "lost")
    train_once(stage, "lost", 0)
    stage.left("lost")
    for name in ("a", "b", "c"):
        stage.worker(name)
        stage.left(name)
    assert "lost" not in stage.state.context.members
    stage.worker("lost")
    asked = stage.ask(push("lost", computed_from=0))
    assert [type(i) for i in asked if i.to == "lost"] == [Send], "it is asked for again; the server has it, and says so"
    answered = stage.tell(committed(update("lost"), 1))
    assert not [i for i in answered if isinstance(i, Resolve)]
    assert stage.pushes.settled.get(update("lost")) == Committed(version=ModelVersion(1, 1), tau=0)


def test_nobody_is_forgotten_whose_update_is_with_the_server():
    stage = Stage(limits=FEW).trained("steady", "lost")
    stage.ask(push("lost"))
    stage.pushes.planned[update("lost")].received = True
    stage.left("lost")
    for name in ("a", "b", "c"):
        stage.worker(name)
        stage.left(name)
    assert "lost" in stage.state.context.members
    stage.tell(holds(0, received=(update("lost"),)))
    stage.tell(committed(update("lost"), 1))
    stage.worker("d")
    stage.left("d")
    assert "lost" not in stage.state.context.members


def test_who_is_back_counts_as_departed_no_more():
    stage = Stage(limits=FEW).trained("steady")
    for name in "abc":
        stage.worker(name)
        stage.left(name)
    for name, kept in (("a", "abc"), ("d", "abcd"), ("e", "acde")):
        stage.worker(name)
        if name != "a":
            stage.left(name)
        assert stage.state.context.members.keys() == {"s", "steady", *kept}


def test_a_commit_that_is_told_again_after_its_worker_has_left_counts_once() -> None:
    stage = Stage().trained("a", "b")
    for worker, number in (("a", 1), ("b", 2)):
        stage.ask(push(worker))
        stage.tell(committed(update(worker), number, tau=number - 1))
    stage.left("a")
    stage.tell(committed(update("a"), 1))
    assert stage.state.models["net"].delays.total() == 2


def test_what_is_committed_after_its_worker_has_left_counts() -> None:
    stage = Stage().trained("a", "b")
    stage.ask(push("a"))
    stage.tell(ended(update("a"), TransferEnd.RECEIVED))
    stage.left("a")
    stage.tell(committed(update("a"), 1))
    assert stage.state.models["net"].delays.total() == 1
