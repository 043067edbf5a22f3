"""What the scheduler says of samples to servers, and which it hands out to whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.model.samples import SampleAccount, SampleCounts, Samples
from mlfabric.protocol import (
    CommitsReported,
    DrawAnswer,
    NoteDropped,
    SamplesDropped,
    SamplesGranted,
    SamplesReported,
    SamplesWanted,
    Tick,
    WorkerHolds,
)
from mlfabric.scheduler.samples.sample_status import SHOWN_RANGES, describe_samples
from tests.scheduler.stage import SPEC, Stage, committed, holds, push, update

SILENCE_MS = 2000.0


def notes(*samples: tuple[int, int]) -> NoteDropped:
    return NoteDropped(to="s", model="net", samples=samples, reason="")


def dropped(worker: str, *samples: tuple[int, int]) -> SamplesDropped:
    return SamplesDropped(worker=worker, model="net", samples=samples)


def wants(worker: str, count: int = 4, limit: int = 100, serial: int = 0, **fields: object) -> SamplesWanted:
    return SamplesWanted(worker=worker, model="net", serial=serial, count=count, limit=limit, **fields)  # type: ignore[arg-type]


def grants(worker: str, *samples: tuple[int, int]) -> list[object]:
    granted = DrawAnswer.GRANTED
    return [SamplesGranted(to=worker, serial=0, samples=samples, answer=granted, reason="")]


def answers(worker: str, answer: DrawAnswer) -> list[object]:
    return [SamplesGranted(to=worker, serial=0, samples=(), answer=answer, reason="")]


def reported(*trained: tuple[int, int], lost: Samples = ()) -> SamplesReported:
    counts = SampleCounts(runs=tuple((start, stop, 1) for start, stop in trained), lost=lost)
    return SamplesReported(server="s", model="net", counts=counts)


def trains(worker: str, counter: int, *samples: tuple[int, int]) -> CommitsReported:
    return committed(update(worker, counter), counter + 1, samples=samples)


# What is told to the server


def test_what_a_worker_says_was_dropped_is_told_to_the_server_once() -> None:
    stage = Stage().trained("a", "b")
    assert stage.tell(dropped("a", (0, 8))) == [notes((0, 8))]
    assert stage.tell(dropped("b", (4, 12))) == [notes((8, 12))]
    assert stage.tell(dropped("a", (0, 8))) == []


def test_the_server_is_told_what_an_update_is_computed_from() -> None:
    stage = Stage().trained("a")
    _, expect = stage.ask(push("a", samples=((3, 9),)))
    assert [member.samples for member in expect.members] == [((3, 9),)]  # type: ignore[union-attr]


def test_what_a_worker_that_falls_silent_has_under_way_is_dropped() -> None:
    stage = Stage().trained("a", "b")
    stage.ask(push("a", samples=((0, 8),)))
    stage.ask(push("a", 1, samples=((8, 16),)))
    stage.ask(push("b", samples=((16, 24),)))
    stage.tell(committed(update("a"), 1))
    assert notes((8, 16)) in stage.silent("a")
    assert stage.state.models["net"].samples.under_way() == ((16, 24),)


def test_what_an_earlier_process_of_a_name_had_under_way_is_dropped() -> None:
    stage = Stage().trained("a")
    stage.ask(push("a", samples=((0, 8),)))
    assert notes((0, 8)) in stage.worker("a", incarnation=2)


def test_a_server_that_comes_back_is_told_what_it_does_not_know() -> None:
    stage = Stage().trained("a")
    stage.tell(dropped("a", (0, 8), (20, 30)))
    stage.server(incarnation=2, held=(SPEC,))
    told = stage.tell(holds(3, samples=SampleCounts(dropped=((0, 8),))))
    assert notes((20, 30)) in told
    assert notes((0, 8)) not in told


def test_a_scheduler_that_begins_anew_hears_of_drops_from_workers() -> None:
    stage = Stage(term=2)
    stage.server(held=(SPEC,))
    stage.tell(holds(3))
    stage.worker("a")
    assert stage.says("a", dropped=((0, 8),)) == [notes((0, 8))]


def test_what_only_its_own_worker_can_say_is_not_taken_from_strangers() -> None:
    stage = Stage().trained("a")
    assert stage.tell(dropped("nobody", (0, 8))) == []
    assert stage.tell(replace(reported((0, 8)), server="another")) == []
    assert stage.state.models["net"].samples.counts == SampleCounts()


# What is handed out


def test_each_worker_is_given_what_nobody_has() -> None:
    stage = Stage().trained("a", "b")
    assert stage.tell(wants("a")) == grants("a", (0, 4))
    assert stage.tell(wants("b")) == grants("b", (4, 8))
    assert stage.tell(wants("a", returned=((0, 2),))) == grants("a", (0, 2), (8, 10))


def test_what_is_committed_is_not_handed_out_before_the_account_says_so() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a"))
    stage.ask(push("a", samples=((0, 4),)))
    stage.tell(trains("a", 0, (0, 4)))
    assert stage.tell(wants("b", limit=4)) == answers("b", DrawAnswer.OVER)
    stage.tell(reported((0, 4)))
    assert stage.tell(wants("b", limit=4)) == answers("b", DrawAnswer.OVER)


def test_what_others_have_may_come_back_and_what_is_trained_on_does_not() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a", limit=4))
    assert stage.tell(wants("b", limit=4)) == answers("b", DrawAnswer.UNDER_WAY)
    stage.tell(reported((0, 4)))
    assert stage.tell(wants("b", limit=4)) == answers("b", DrawAnswer.OVER)


def test_what_was_dropped_is_handed_out_again_to_who_wants_that() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a"))
    stage.tell(dropped("a", (0, 4)))
    assert stage.tell(wants("b", again=False)) == grants("b", (4, 8))
    assert stage.tell(wants("b")) == grants("b", (0, 4))


def test_what_a_worker_had_that_left_is_handed_out_at_once() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a"))
    stage.left("a")
    assert stage.tell(wants("b")) == grants("b", (0, 4))


def test_a_worker_that_falls_silent_may_come_back_for_a_while() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a"))
    stage.silent("a")
    assert stage.tell(wants("b")) == grants("b", (4, 8))
    stage.wait(SILENCE_MS)
    assert stage.tell(wants("b")) == grants("b", (0, 4))


def test_a_worker_that_comes_back_keeps_what_it_says_it_has() -> None:
    stage = Stage().trained("a", "b")
    stage.tell(wants("a", count=8))
    stage.silent("a")
    stage.worker("a")
    stage.says("a", drawn=((0, 4),))
    stage.wait(SILENCE_MS)
    assert stage.tell(wants("b")) == grants("b", (4, 8))


def test_what_a_worker_has_drawn_since_it_joined_it_keeps_when_it_says_once_more_what_it_holds() -> None:
    stage = Stage().trained("a", "b")
    says = WorkerHolds(worker="a", pushes=(), gets=())
    stage.tell(says)
    stage.tell(wants("a"))
    stage.tell(says)  # it has not heard yet what it was granted
    assert stage.tell(wants("b")) == grants("b", (4, 8))


def test_a_scheduler_that_begins_anew_gives_workers_time_to_say_what_they_have() -> None:
    stage = Stage(term=2)
    stage.server(held=(SPEC,))
    stage.worker("b")
    assert stage.tell(wants("b")) == answers("b", DrawAnswer.NOT_YET)
    stage.tell(holds(3, samples=SampleCounts(runs=((0, 4, 1),))))
    assert stage.tell(wants("b")) == answers("b", DrawAnswer.NOT_YET)
    stage.worker("a")
    stage.says("a", drawn=((4, 8),))
    stage.wait(SILENCE_MS)
    assert stage.tell(wants("b")) == grants("b", (8, 12))


def test_what_a_server_has_lost_is_handed_out_again() -> None:
    stage = Stage().trained("a")
    stage.tell(wants("a"))
    stage.ask(push("a", samples=((0, 4),)))
    stage.tell(trains("a", 0, (0, 4)))
    stage.server(incarnation=2, held=(SPEC,))
    stage.tell(holds(0, samples=SampleCounts(lost=((0, 4),))))
    stage.wait(SILENCE_MS)
    assert stage.tell(wants("a")) == grants("a", (0, 4))


def test_a_wish_of_a_worker_that_is_not_here_has_no_answer() -> None:
    stage = Stage().trained("a")
    stage.left("a")
    assert stage.tell(wants("a")) == []


def test_a_grant_has_no_more_ranges_than_an_update_may_have() -> None:
    stage = Stage().trained("a")
    stage.tell(reported(*((2 * i, 2 * i + 1) for i in range(400))))
    (granted,) = stage.tell(wants("a", count=10_000, limit=800))
    assert len(granted.samples) == 256  # type: ignore[union-attr]


steps = st.lists(
    st.tuples(st.sampled_from(("draw", "train", "drop", "go", "tick")), st.sampled_from("abc"), st.integers(1, 7)),
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(steps)
def test_no_sample_is_with_two_workers_or_trained_on_twice(story: list[tuple[str, str, int]]) -> None:
    """Against a dumb twin that keeps a set of numbers for each worker."""
    stage, account = Stage().trained("a", "b", "c"), SampleAccount()
    has: dict[str, list[Samples]] = defaultdict(list)
    gone, counter = set[str](), 0
    for what, worker, number in story:
        if worker in gone:
            continue
        if what == "draw":
            (granted,) = stage.tell(wants(worker, count=number, limit=60))
            assert isinstance(granted, SamplesGranted)
            mine = {i for start, stop in granted.samples for i in range(start, stop)}
            others = {i for each in has.values() for one in each for start, stop in one for i in range(start, stop)}
            trained = {i for start, stop, _ in account.counts().runs for i in range(start, stop)}
            assert len(mine) <= number
            assert not mine & trained, f"{mine & trained} were trained on"
            assert not mine & others, f"{mine & others} are with two workers"
            if granted.samples:
                has[worker].append(granted.samples)
        elif what == "train" and has[worker]:
            samples = has[worker].pop(0)
            account.train(samples)
            stage.tell(replace(push(worker, counter), samples=samples))
            stage.tell(trains(worker, counter, *samples))
            counter += 1
        elif what == "drop" and has[worker]:
            stage.tell(dropped(worker, *has[worker].pop(0)))
        elif what == "go" and number == 1:
            gone.add(worker)
            has.pop(worker, None)
            stage.left(worker)
        elif what == "tick":
            stage.wait(number)
            stage.tell(SamplesReported(server="s", model="net", counts=account.counts()))
            stage.tell(Tick())
        assert all(times == 1 for _, _, times in account.counts().runs), account.counts()


# What the status says


def test_the_status_lists_the_last_ranges_and_counts_all() -> None:
    stage = Stage().trained("a")
    stage.tell(reported(*((10 * i, 10 * i + 5) for i in range(30))))
    model = stage.state.models["net"]
    short, full = describe_samples(model), describe_samples(model, all_ranges=True)
    assert short is not None
    assert full is not None
    assert short.trained == full.trained == 150
    assert short.missing == full.missing == 145
    assert [r.start for r in short.trained_ranges] == [10 * i for i in range(30 - SHOWN_RANGES, 30)]
    assert len(full.trained_ranges) == 30
    assert short.ranges_left_out == 10 + 9
    assert full.ranges_left_out == 0


def test_what_is_committed_is_in_flight_until_the_server_has_reported_it() -> None:
    stage = Stage().trained("a")
    for event, expected in (
        (push("a", samples=((0, 4),)), (0, 4, 0)),
        (trains("a", 0, (0, 4)), (0, 4, 0)),
        (reported((0, 4)), (4, 0, 0)),
    ):
        stage.ask(event)
        found = describe_samples(stage.state.models["net"])
        assert found is not None
        assert (found.trained, found.in_flight, found.missing) == expected


def test_nobody_who_says_nothing_has_an_account() -> None:
    stage = Stage().trained("a")
    stage.ask(push("a"))
    assert describe_samples(stage.state.models["net"]) is None
