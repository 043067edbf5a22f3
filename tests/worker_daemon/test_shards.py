"""A worker whose model is on several servers: parts that go their own ways, one outcome, one version."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.protocol import (
    Committed,
    Drop,
    Dropped,
    DropReason,
    Fetch,
    GetId,
    GetRequested,
    Initialise,
    ModelVersion,
    PushRequested,
    Resolve,
    Send,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    WorkerHolds,
)
from mlfabric.specs import Layout, ModelSpec, TensorSpec
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.sending import Parcel
from mlfabric.worker_daemon.shards import Shards
from mlfabric.worker_daemon.state import FIRST_PAUSE_NS, DaemonState
from tests.bare import bare

DONE = Committed(version=ModelVersion(1, 7), tau=0)
LATE = Dropped(cause=DropReason.DELAY_BOUND)


class Stage:
    """One daemon whose model is on two servers, and the clock."""

    def __init__(self) -> None:
        self.state = DaemonState("a", shards=2)
        self.now_ns = 0

    def tell(self, *events: act.DaemonEvent) -> list[act.Action]:
        """Hand over events, check the invariants, return what follows without reasons."""
        actions: list[act.Action] = []
        for event in events:
            actions += self.state.handle(event, self.now_ns)
            self.state.validate()
        return bare(actions)

    def push(self, *counters: int, kind: UpdateKind = UpdateKind.GRADIENT) -> list[act.Action]:
        return self.tell(*(act.PushCalled(request=replace(push(c), kind=kind)) for c in counters))

    def get(self, *counters: int, after: int | None = None) -> list[act.Action]:
        first = counters[0]
        afters = [None if after is None else after + c - first for c in counters]
        return self.tell(*(act.GetCalled(request=get(c, a)) for c, a in zip(counters, afters, strict=True)))


@pytest.fixture
def stage():
    return Stage()


def update(counter: int) -> UpdateId:
    return UpdateId("a", 1, counter)


def push(counter: int, resolved_below: int = 0) -> PushRequested:
    return PushRequested(
        update=update(counter),
        model=f"net.shard{counter % 2}",
        size_bytes=16,
        computed_from=ModelVersion(1, 0),
        norm=1.0,
        resolved_below=resolved_below,
    )


def get(counter: int, after: int | None = None, min_version: int = 0) -> GetRequested:
    return GetRequested(
        get=GetId("a", 1, counter),
        model=f"net.shard{counter % 2}",
        min_version=ModelVersion(1, min_version) if min_version else ModelVersion(0, 0),
        after_update=None if after is None else update(after),
    )


def send(counter: int, ticket: bytes = b"1") -> Send:
    return Send(
        to="a", update=update(counter), receiver="s", address="s:1", seq=1, ticket=ticket, rate_bps=0, reason=""
    )


def fetch(counter: int, ticket: bytes = b"1") -> Fetch:
    return Fetch(to="a", get=GetId("a", 1, counter), source="s", address="s:1", ticket=ticket, reason="")


def asks(*requests) -> list[act.Action]:
    return [act.Request(event=request) for request in requests]


def starts(*plans) -> list[act.Action]:
    return [act.StartSend(plan=p) if isinstance(p, Send) else act.StartFetch(plan=p) for p in plans]


def settles(counter: int, outcome) -> act.Settle:
    return act.Settle(update=update(counter), outcome=outcome, reason="")


def delivers(counter: int, number: int) -> act.Deliver:
    return act.Deliver(get=GetId("a", 1, counter), version=ModelVersion(1, number))


def arrived(counter: int, number: int) -> act.ModelReceived:
    return act.ModelReceived(get=GetId("a", 1, counter), version=ModelVersion(1, number))


def broken(counter: int, ticket: bytes = b"1") -> act.FetchBroken:
    return act.FetchBroken(get=GetId("a", 1, counter), ticket=ticket)


def answered(counter: int, outcome) -> act.OutcomeReceived:
    return act.OutcomeReceived(update=update(counter), outcome=outcome)


def drop(counter: int) -> Drop:
    return Drop(to="a", model="net", update=update(counter), cause=LATE.cause, reason="")


def discarded(counter: int) -> TransferEnded:
    return TransferEnded(
        member="a",
        model=f"net.shard{counter % 2}",
        transfer=update(counter),
        end=TransferEnd.DISCARDED,
        cause=LATE.cause,
    )


# Pushes


def test_every_part_of_a_push_goes_its_own_way_and_the_last_outcome_settles_it(stage):
    assert stage.push(0, 1) == asks(push(0), push(1))
    assert stage.tell(send(1), send(0)) == starts(send(1), send(0))
    assert stage.tell(answered(1, DONE)) == []
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE)]
    assert stage.state.next_wakeup_ns() is None


def test_counters_are_resolved_by_whole_pushes(stage):
    stage.push(0, 1)
    stage.tell(answered(0, DONE))
    assert stage.push(2, 3) == asks(push(2, resolved_below=0), push(3, resolved_below=0))
    stage.tell(answered(1, DONE))
    assert stage.push(4, 5) == asks(push(4, resolved_below=2), push(5, resolved_below=2))


def test_a_push_that_is_dropped_is_settled_when_all_its_parts_are(stage):
    stage.push(0, 1)
    assert stage.tell(drop(0)) == []
    assert stage.tell(drop(1)) == [settles(0, LATE)]


def test_a_drop_that_a_server_tells_is_reported_for_its_part(stage):
    stage.push(0, 1)
    assert stage.tell(answered(1, LATE)) == asks(discarded(1))


def asked_for(told: list[act.Action]) -> list[UpdateId]:
    """Return which updates a scheduler is told of that has just admitted the worker."""
    [request] = told
    assert isinstance(request, act.Request)
    assert isinstance(request.event, WorkerHolds)
    return sorted(r.update for r in request.event.pushes)


@pytest.mark.parametrize("outcome", [DONE, LATE], ids=["committed", "dropped"])
def test_a_part_that_has_its_outcome_is_asked_for_again_by_a_new_scheduler_while_another_is_open(stage, outcome):
    stage.push(0, 1)
    stage.tell(answered(0, outcome))
    assert asked_for(stage.tell(act.EpochBegan(epoch=2))) == [update(0), update(1)]
    assert stage.tell(answered(0, DONE), answered(1, DONE)) == [settles(0, DONE)]


def test_a_push_of_which_a_commit_was_lost_may_be_dropped_as_a_whole(stage):
    gone = Dropped(cause=DropReason.ROLLED_BACK)
    stage.push(0, 1)
    stage.tell(answered(0, DONE), act.EpochBegan(epoch=2))
    stage.tell(answered(0, gone))
    assert settles(0, gone) in stage.tell(answered(1, gone))


def test_a_part_whose_initial_weights_were_taken_is_brought_again_as_its_server_may_have_lost_it(stage):
    wanted = Initialise(to="a", model="net", reason="lost")
    asked = stage.push(0, 1, kind=UpdateKind.INITIAL)
    stage.tell(answered(0, DONE))
    assert stage.tell(wanted) == asked[:1]
    stage.tell(answered(0, DONE))
    assert asked_for(stage.tell(act.EpochBegan(epoch=2))) == [update(0), update(1)]


def test_initial_weights_that_are_wanted_while_no_part_has_an_outcome_are_on_their_way_already(stage):
    stage.push(0, 1, kind=UpdateKind.INITIAL)
    assert stage.tell(Initialise(to="a", model="net", reason="wanted")) == []


def test_a_part_whose_attempt_was_answered_is_sent_anew_when_it_is_asked_for_again(stage):
    stage.push(0, 1)
    stage.tell(send(0))
    stage.tell(answered(0, DONE), act.EpochBegan(epoch=2))
    assert [type(action) for action in stage.tell(send(0))] == [act.StartSend]


def test_an_attempt_that_still_runs_when_its_part_is_asked_for_again_is_the_only_one(stage):
    stage.push(0, 1)
    stage.tell(send(0))
    stage.tell(Resolve(to="a", update=update(0), outcome=DONE, reason="it was settled before"))
    stage.tell(act.EpochBegan(epoch=2))
    assert not [a for a in stage.tell(send(0)) if isinstance(a, act.StartSend)]


def test_a_push_that_has_its_outcome_is_not_asked_for_again(stage):
    stage.push(0, 1)
    stage.tell(answered(0, DONE), answered(1, DONE))
    assert asked_for(stage.tell(act.EpochBegan(epoch=2))) == []


@pytest.mark.parametrize("other", [LATE, Committed(version=ModelVersion(1, 8), tau=0)])
def test_parts_that_end_in_different_ways_fail_the_push(stage, other):
    stage.push(0, 1)
    stage.tell(answered(0, DONE))
    assert act.FailPush(update=update(0), reason="") in stage.tell(answered(1, other))


@pytest.mark.parametrize("late", [0, 1])
def test_a_part_that_was_committed_under_a_later_server_epoch_gives_the_push_its_version(stage, late):
    newest = Committed(version=ModelVersion(2, 7), tau=0)
    stage.push(0, 1)
    stage.tell(answered(1 - late, DONE))
    assert stage.tell(answered(late, newest)) == [settles(0, newest)]


def test_a_part_that_is_rolled_back_after_others_were_committed_was_lost_with_them(stage):
    stage.push(0, 1)
    stage.tell(answered(0, DONE))
    [settled, report] = stage.tell(answered(1, Dropped(cause=DropReason.ROLLED_BACK)))
    assert settled == settles(0, DONE)
    assert isinstance(report, act.Request)


def test_initial_weights_may_have_come_from_another_worker_to_some_shards(stage):
    stage.push(0, 1, kind=UpdateKind.INITIAL)
    stage.tell(answered(0, Dropped(cause=DropReason.DUPLICATE)))
    assert stage.tell(answered(1, DONE)) == [settles(0, DONE)]


# Gets


def test_a_model_is_delivered_when_all_its_parts_are_here(stage):
    assert stage.get(0, 1) == asks(get(0), get(1))
    assert stage.tell(fetch(0), fetch(1)) == starts(fetch(0), fetch(1))
    assert stage.tell(arrived(1, 3)) == []
    assert stage.tell(arrived(0, 3)) == [delivers(0, 3)]


def test_parts_of_different_versions_are_asked_for_again_as_a_whole(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), fetch(1), arrived(0, 3))
    assert stage.tell(arrived(1, 4)) == asks(get(0, min_version=4), get(1, min_version=4))
    assert stage.tell(fetch(0, b"2"), fetch(1, b"3")) == starts(fetch(0, b"2"), fetch(1, b"3"))
    assert stage.tell(arrived(0, 4), arrived(1, 4)) == [delivers(0, 4)]


def test_when_a_part_breaks_all_are_asked_for_again_once_none_is_on_its_way(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), fetch(1))
    assert stage.tell(broken(0)) == []
    assert stage.state.next_wakeup_ns() is None
    assert stage.tell(arrived(1, 3)) == []
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.state.next_wakeup_ns() == stage.now_ns
    assert stage.tell(Tick()) == asks(get(0), get(1))


def test_a_part_that_is_planned_while_another_waits_to_be_asked_for_again_is_fetched_first(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), broken(0))
    assert stage.tell(fetch(1)) == starts(fetch(1))
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == []
    stage.tell(broken(1))
    stage.now_ns += 2 * FIRST_PAUSE_NS
    assert stage.tell(Tick()) == asks(get(0), get(1))


def test_a_newer_plan_of_a_part_that_is_here_is_carried_out_instead_of_asking_again(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), fetch(1), fetch(0, b"2"), broken(1))
    assert stage.tell(arrived(0, 3)) == starts(fetch(0, b"2"))
    assert stage.state.next_wakeup_ns() is None
    assert stage.tell(fetch(1, b"2"), arrived(0, 4), arrived(1, 4)) == [*starts(fetch(1, b"2")), delivers(0, 4)]


def test_a_model_that_follows_a_push_waits_for_the_outcome_of_all_its_parts(stage):
    stage.push(0, 1)
    stage.get(0, 1, after=0)
    stage.tell(fetch(0), fetch(1), arrived(0, 7), arrived(1, 7), answered(0, DONE))
    assert stage.tell(answered(1, DONE)) == [settles(0, DONE), delivers(0, 7)]


def test_a_model_that_is_older_than_the_push_it_follows_is_asked_for_again(stage):
    stage.push(0, 1)
    stage.get(0, 1, after=0)
    stage.tell(fetch(0), fetch(1), arrived(0, 6), arrived(1, 6), answered(0, DONE))
    again = asks(get(0, 0, min_version=7), get(1, 1, min_version=7))
    assert stage.tell(answered(1, DONE)) == [settles(0, DONE), *again]


def test_a_new_scheduler_is_asked_for_all_parts_once_what_an_older_one_planned_has_ended(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), fetch(1), arrived(0, 3))
    [request] = stage.tell(act.EpochBegan(epoch=2))
    assert isinstance(request, act.Request)
    assert isinstance(request.event, WorkerHolds)
    assert request.event.gets == ()
    assert stage.tell(arrived(1, 3)) == []
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == asks(get(0), get(1))


def test_a_new_scheduler_hears_of_all_parts_of_a_get_if_none_is_on_its_way(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), arrived(0, 3))
    [request] = stage.tell(act.EpochBegan(epoch=2))
    assert isinstance(request, act.Request)
    assert isinstance(request.event, WorkerHolds)
    assert request.event.gets == (get(0), get(1))
    assert stage.tell(fetch(0, b"2"), fetch(1, b"2"), arrived(0, 5), arrived(1, 5)) == [
        *starts(fetch(0, b"2"), fetch(1, b"2")),
        delivers(0, 5),
    ]


class World:
    """A scheduler and servers that do anything that they may, and the daemon between them."""

    def __init__(self, data: st.DataObject) -> None:
        self.stage = Stage()
        self.data = data
        self.asked: set[int] = set()
        self.running: dict[int, tuple[bytes, int]] = {}
        self.here: dict[int, int] = {}
        self.version = 0
        self.tickets = 0
        self.delivered = False

    def tell(self, event: act.DaemonEvent) -> None:
        """Hand over an event and play what follows."""
        for action in self.stage.tell(event):
            match action:
                case act.Request(event=GetRequested() as request):
                    self.asked.add(request.get.counter)
                case act.Request(event=WorkerHolds() as holds):
                    self.asked = {request.get.counter for request in holds.gets}
                case act.StartFetch():
                    assert action.plan.get.counter not in self.running, "two attempts into one buffer"
                    self.running[action.plan.get.counter] = (action.plan.ticket, self.version)
                case act.Deliver():
                    self.delivered = True
                    assert set(self.here.values()) == {action.version.number}, "torn"

    def step(self) -> None:
        """Let something happen."""
        self.version += self.data.draw(st.integers(0, 1))
        choices = ["tick", "epoch"] + ["arrive", "break"] * bool(self.running) + ["plan"] * bool(self.asked == {0, 1})
        choices += ["anew"] * bool(self.tickets)
        match self.data.draw(st.sampled_from(choices)):
            case "tick":
                self.stage.now_ns += FIRST_PAUSE_NS
                self.tell(Tick())
            case "epoch":
                self.tell(act.EpochBegan(epoch=1))
            case "plan" | "anew":
                self.plan()
            case what:
                counter = self.data.draw(st.sampled_from(sorted(self.running)))
                self.end(counter, what == "arrive")

    def plan(self) -> None:
        """Serve all parts."""
        self.asked = set()
        self.tickets += 1
        for counter in (0, 1):
            self.tell(fetch(counter, b"%d" % self.tickets))

    def end(self, counter: int, whole: bool) -> None:
        """End an attempt."""
        ticket, number = self.running.pop(counter)
        if whole:
            self.here[counter] = number
        self.tell(arrived(counter, number) if whole else broken(counter, ticket))


@given(st.data())
def test_whatever_happens_no_model_is_torn_and_every_get_ends(data):
    world = World(data)
    world.stage.get(0, 1)
    world.asked = {0, 1}
    for _ in range(data.draw(st.integers(0, 20))):
        if not world.delivered:
            world.step()
    for _ in range(100):
        if world.delivered:
            return
        world.stage.now_ns += 1 << 31
        world.tell(Tick())
        if world.asked == {0, 1}:
            world.plan()
        for counter in sorted(world.running):
            world.end(counter, whole=True)
    raise AssertionError("the get never ends")


# Bytes


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(1, 8))
def test_the_parcels_of_the_parts_are_the_parcel(lengths, count):
    numbers = iter(range(1 << 20))
    pieces = [bytes(next(numbers) % 256 for _ in range(length)) for length in lengths]
    size_bytes = sum(lengths)
    parcel = Parcel(pieces=[memoryview(p) for p in pieces], digest=1, is_unchanged=lambda: True)
    ends = [size_bytes * i // count for i in range(count + 1)]

    parts = [parcel.within(start, end, 2) for start, end in itertools.pairwise(ends)]

    assert b"".join(bytes(piece) for part in parts for piece in part.pieces) == b"".join(pieces)
    assert {part.digest for part in parts} == {2}
    assert all(any(piece.obj is p for p in pieces) for part in parts for piece in part.pieces)


def test_parts_are_named_and_cut_as_the_model_is():
    layout = Layout((TensorSpec(name="w", shape=(10,), dtype="float64"),))
    spec = ModelSpec(name="net", layout=layout, shards=2)
    shards = Shards(spec)
    image = memoryview(bytearray(layout.size_bytes))

    assert shards.names == ("net.shard0", "net.shard1")
    assert shards.digests == tuple(spec.of_shard(i).layout.digest for i in range(2))
    assert shards.whole(update(5)) == (update(4), 1)
    assert [[piece.nbytes for piece in part] for part in shards.buffers(image)] == [[32], [48]]
