"""The judge of fault trials: nothing is said of a run in which all is well, and each thing that is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.faults.judging import Verdict, judge
from benchmarks.faults.ledger import Ledger
from benchmarks.faults.logs import Told, What
from mlfabric.protocol import ModelVersion

from .history import TAU_MAX, History


@pytest.fixture
def history() -> History:
    """A run of some steps of two workers."""
    found = History()
    for worker in "abaab":
        found.step(worker)
    return found


def broken(history: History) -> str:
    return "; ".join(judge(history.evidence()).broken)


def spoil_last_told(history: History, worker: str, **values: Any) -> None:
    place = max(i for i, line in enumerate(history.lines[worker]) if isinstance(line, Told))
    line = history.lines[worker][place]
    assert isinstance(line, Told)
    history.lines[worker][place] = replace(line, **values)


def test_a_run_in_which_all_is_well(history: History) -> None:
    assert judge(history.evidence()) == Verdict(committed=5, lost=0, twice=0, broken=())


def test_a_group_makes_a_version_for_each_of_its_updates(history: History) -> None:
    history.get("a")
    history.get("b")
    pushed = [(worker, history.push(worker)) for worker in "ab"]
    history.apply(*pushed)
    history.tell("b", pushed[1][1])
    assert judge(history.evidence()) == Verdict(committed=7, lost=0, twice=0, broken=())


def test_an_update_of_a_worker_that_died_may_be_applied_or_not(history: History) -> None:
    history.get("c")
    update = history.push("c")
    assert judge(history.evidence()).broken == ()
    history.apply(("c", update))
    assert judge(history.evidence()) == Verdict(committed=6, lost=0, twice=0, broken=())


def test_an_update_that_is_applied_twice_is_counted_though_the_log_is_silent(history: History) -> None:
    history.apply(("a", 0), logged=False)
    verdict = judge(history.evidence())
    assert verdict.twice == 1
    assert "a: the weights hold 4 updates of it, the log 3" in verdict.broken


def test_an_update_that_is_applied_twice_is_counted_though_the_log_agrees(history: History) -> None:
    history.apply(("a", 0))
    verdict = judge(history.evidence())
    assert verdict.twice == 1
    assert any("2 times" in text for text in verdict.broken)


def test_a_committed_update_that_is_not_in_the_weights_is_lost_and_no_bound_allows_it(history: History) -> None:
    history.model["marks"].data[history.ledger.slots] = 0.0  # all of b's
    history.model["ballast"].data -= 2.0
    verdict = judge(history.evidence())
    assert verdict.lost == 2
    assert "b: update 0 was committed as (1, 2), and is not in the final model" in verdict.broken


def test_what_a_checkpoint_missed_is_lost_and_allowed(history: History) -> None:
    history.checkpoint()
    history.step("a")
    history.resume()
    history.step("b")
    assert judge(history.evidence()) == Verdict(committed=6, lost=1, twice=0, broken=())


@pytest.mark.parametrize(("bound", "is_broken"), [(0, True), (1, False), (None, False)])
def test_no_more_is_lost_at_a_new_server_than_the_bound_of_its_replica(
    history: History, bound: int | None, is_broken: bool
) -> None:
    history.checkpoint()
    history.step("a")
    history.resume()
    history.step("b")
    found = judge(replace(history.evidence(), most_lost=bound)).broken
    assert found == (("1 updates of server epoch 1 were lost; the bound is 0",) if is_broken else ())


def test_what_is_in_the_checkpoint_may_not_be_lost(history: History) -> None:
    history.resume()  # from the beginning
    history.version = ModelVersion(2, 5)
    history.get("c")
    verdict = judge(history.evidence())
    assert verdict.lost == 5
    assert any("is not in the final model" in text for text in verdict.broken)


def test_an_update_that_its_worker_was_told_is_dropped_is_not_applied(history: History) -> None:
    spoil_last_told(history, "a", what=What.DROPPED)
    assert "a: update 2 was applied, and its worker was told that it was dropped" in broken(history)


def test_a_worker_whose_updates_must_be_committed(history: History) -> None:
    history.get("c")
    history.tell("c", history.push("c"), What.DROPPED)
    assert broken(history) == ""
    history.must_commit = {"c"}
    assert broken(history) == "c: update 0 was dropped: "


def test_a_delay_above_the_bound(history: History) -> None:
    history.get("c")
    for _ in range(TAU_MAX + 1):
        history.step("a")
    update = history.push("c")
    history.apply(("c", update))
    history.tell("c", update)
    assert f"c: update 0 was applied with delay {TAU_MAX + 1}; the bound is {TAU_MAX}" in broken(history)


def test_a_delay_that_is_not_what_it_is_said_to_be(history: History) -> None:
    spoil_last_told(history, "b", tau=1)
    assert "no delay of 1" in broken(history)


def test_a_version_that_goes_back_within_an_epoch(history: History) -> None:
    now, history.version = history.version, ModelVersion(1, 2)
    history.get("b")
    history.version = now
    assert "b: it got version (1, 2) after (1, 5)" in broken(history)


def test_a_version_that_goes_back_further_than_the_checkpoint(history: History) -> None:
    history.checkpoint()
    history.resume()
    now, history.version = history.version, ModelVersion(2, 3)
    history.get("b")
    history.version = now
    history.step("a")
    assert "b: it got version (2, 3), which is before what (1, 5) went on as" in broken(history)


def test_a_torn_model(history: History) -> None:
    history.model["ballast"].data[1] += 1.0
    history.get("c")
    assert "c: version 5 is torn" in broken(history)
    assert "the final model: version 5 is torn" in broken(history)


def test_marks_that_no_updates_make(history: History) -> None:
    history.model["marks"].data[0] += 0.5
    assert "the marks of writer 0 are no sums of its updates" in broken(history)


def test_an_update_that_nobody_pushed(history: History) -> None:
    history.apply(("c", 3))
    assert "c: update 3 was applied, and never pushed" in broken(history)


def test_a_log_with_a_hole_and_a_stranger(history: History) -> None:
    first = history.entries[0]
    history.entries[0] = replace(first, updates=(("x", 1, 0),))
    del history.entries[1]
    assert "the log: version 3 follows 1" in broken(history)
    assert "the log has updates of x, who has pushed none" in broken(history)


def test_versions_that_are_means() -> None:
    history = History(ledger=Ledger(writers=3, slots=4, ballast=4, is_mean=True))
    for workers in ("abc", "abc", "ac"):
        for worker in workers:
            history.get(worker)
        pushed = [(worker, history.push(worker)) for worker in workers]
        history.apply(*pushed)
        for worker, update in pushed[:-1]:
            history.tell(worker, update)
    assert judge(history.evidence()) == Verdict(committed=8, lost=0, twice=0, broken=())
    history.apply(("a", 0), ("c", 2))
    assert judge(history.evidence()).twice > 0
