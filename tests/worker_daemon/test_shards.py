"""A worker whose model is on several servers: parts that go their own ways, one outcome, one version."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import Layout, ModelSpec, TensorSpec
from mlfabric.protocol import (
    Committed,
    Drop,
    Dropped,
    DropReason,
    Initialise,
    ModelVersion,
    Resolve,
    Send,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.data_attempts import Parcel
from mlfabric.worker_daemon.model_cuts import Shards
from mlfabric.worker_daemon.state import FIRST_PAUSE_NS
from tests.worker_daemon import stage as stages
from tests.worker_daemon.stage import (
    DONE,
    LATE,
    Stage,
    answered,
    arrived,
    broken,
    delivers,
    fetch,
    send,
    settles,
    update,
)

push, get = partial(stages.push, shards=2), partial(stages.get, shards=2)


@pytest.fixture
def stage():
    return Stage(shards=2)


def asks(*requests) -> list[act.Action]:
    return [stages.asks(request) for request in requests]


def starts(*plans) -> list[act.Action]:
    return [act.StartSend(plan=p) if isinstance(p, Send) else act.StartFetch(plan=p) for p in plans]


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


def asked_for(stage: Stage) -> list[UpdateId]:
    """Return which updates a scheduler that begins anew is told of."""
    assert stage.tell(act.TermBegan(term=2)) == []
    return sorted(push.update for push in stage.state.holds().pushes)


@pytest.mark.parametrize("outcome", [DONE, LATE], ids=["committed", "dropped"])
def test_a_part_that_has_its_outcome_is_asked_for_again_by_a_new_scheduler_while_another_is_open(stage, outcome):
    stage.push(0, 1)
    stage.tell(answered(0, outcome))
    assert asked_for(stage) == [update(0), update(1)]
    assert stage.tell(answered(0, DONE), answered(1, DONE)) == [settles(0, DONE)]


def test_a_push_of_which_a_commit_was_lost_may_be_dropped_as_a_whole(stage):
    gone = Dropped(cause=DropReason.ROLLED_BACK)
    stage.push(0, 1)
    stage.tell(answered(0, DONE), act.TermBegan(term=2), answered(0, gone))
    assert settles(0, gone) in stage.tell(answered(1, gone))


def test_a_part_whose_initial_weights_were_taken_is_brought_again_as_its_server_may_have_lost_it(stage):
    wanted = Initialise(to="a", model="net", reason="lost")
    asked = stage.push(0, 1, kind=UpdateKind.INITIAL)
    stage.tell(answered(0, DONE))
    assert stage.tell(wanted) == asked[:1]
    stage.tell(answered(0, DONE))
    assert asked_for(stage) == [update(0), update(1)]


def test_initial_weights_that_are_wanted_while_no_part_has_an_outcome_are_on_their_way_already(stage):
    stage.push(0, 1, kind=UpdateKind.INITIAL)
    assert stage.tell(Initialise(to="a", model="net", reason="wanted")) == []


def test_a_part_whose_attempt_was_answered_is_sent_anew_when_it_is_asked_for_again(stage):
    stage.push(0, 1)
    stage.tell(send(0), answered(0, DONE), act.TermBegan(term=2))
    assert [type(action) for action in stage.tell(send(0))] == [act.StartSend]


def test_an_attempt_that_still_runs_when_its_part_is_asked_for_again_is_the_only_one(stage):
    stage.push(0, 1)
    stage.tell(send(0))
    stage.tell(Resolve(to="a", update=update(0), outcome=DONE, reason="it was settled before"))
    stage.tell(act.TermBegan(term=2))
    assert not [a for a in stage.tell(send(0)) if isinstance(a, act.StartSend)]


def test_a_push_that_has_its_outcome_is_not_asked_for_again(stage):
    stage.push(0, 1)
    stage.tell(answered(0, DONE), answered(1, DONE))
    assert asked_for(stage) == []


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
    assert stage.tell(act.TermBegan(term=2)) == []
    assert stage.state.holds().gets == ()
    assert stage.tell(arrived(1, 3)) == []
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == asks(get(0), get(1))


def test_a_new_scheduler_hears_of_all_parts_of_a_get_if_none_is_on_its_way(stage):
    stage.get(0, 1)
    stage.tell(fetch(0), arrived(0, 3))
    assert stage.tell(act.TermBegan(term=2)) == []
    assert stage.state.holds().gets == (get(0), get(1))
    assert stage.tell(fetch(0, b"2"), fetch(1, b"2"), arrived(0, 5), arrived(1, 5)) == [
        *starts(fetch(0, b"2"), fetch(1, b"2")),
        delivers(0, 5),
    ]


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
