"""What is written down of decisions and what came of them: whole entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlfabric.protocol import (
    DropReason,
    Instruction,
    MemberEvent,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundsHeld,
    TransferEnd,
)
from mlfabric.scheduler.journal import Journal
from mlfabric.telemetry.history import Entry, History

from .stage import LAYOUT, MS, SPEC, Stage, committed, ended, get, push, update
from .test_rounds import asks
from .test_step_rounds import JOB

PLANNED_MS = LAYOUT.size_bytes * 8 / 1e6


class Journaled(Stage):
    """A scheduler of which everything is written down; its clock shows the same as the wall's."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.history = History()
        self.journal = Journal(self.history)
        self.journal._offset_ns = 0

    def tell(self, event: MemberEvent) -> list[Instruction]:
        instructions = self.state.handle(event, self.now_ns)
        self.state.validate()
        self.journal.observe(self.state, event, instructions, self.now_ns)
        return instructions

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self.history.since(0)[1] if entry["kind"] == kind]

    def open(self) -> list[Entry]:
        return self.journal.open(self.now_ns)

    def notes(self, about: str) -> list[str]:
        return [entry["text"] for entry in self.entries("note") if entry["about"] == about]


@pytest.fixture
def stage() -> Journaled:
    stage = Journaled()
    stage.trained("a", "b")
    return stage


def test_a_committed_update_has_its_plan_its_way_and_its_delay(stage) -> None:
    stage.ask(push("a"))
    stage.wait(10)
    stage.tell(ended(update("a"), TransferEnd.RECEIVED))
    stage.wait(1)
    stage.tell(committed(update("a"), 1, tau=0))
    assert stage.entries("update") == [
        {
            "kind": "update",
            "id": "a#0",
            "worker": "a",
            "model": "net",
            "asked": 1000,
            "planned": [1000, pytest.approx(1000 + PLANNED_MS, abs=0.1)],
            "received": 1010,
            "ended": 1011,
            "outcome": "committed",
            "sum": "",
            "reason": "shortest transfer first: 8.0 ms",
            "delay": 0,
            "version": 1,
        }
    ]
    assert stage.open() == []


def test_what_is_on_its_way_is_open_and_has_no_end(stage) -> None:
    stage.ask(push("a"))
    (entry,) = stage.open()
    assert (entry["id"], entry["ended"], entry["received"], entry["outcome"]) == ("a#0", 0, 0, "")
    assert stage.entries("update") == []


def test_a_discarded_update_says_why(stage) -> None:
    stage.ask(push("a"))
    stage.tell(ended(update("a"), TransferEnd.DISCARDED, cause=DropReason.NOT_FINITE))
    (entry,) = stage.entries("update")
    assert (entry["outcome"], entry["cause"]) == ("dropped", DropReason.NOT_FINITE.value)


def test_an_update_that_is_too_old_is_dropped_with_its_reason(stage) -> None:
    stage.weights(9)
    for number in range(10, 16):
        stage.ask(push("b", number, computed_from=number - 1))
        stage.tell(committed(update("b", number), number))
    stage.ask(push("a", computed_from=0))
    (entry,) = [entry for entry in stage.entries("update") if entry["worker"] == "a"]
    assert (entry["outcome"], entry["cause"]) == ("dropped", DropReason.DEADLINE_PAST.value)


def test_a_get_is_written_down_once_it_is_served(stage) -> None:
    stage.ask(get("a"))
    assert [entry["id"] for entry in stage.open()] == ["a?0"]
    stage.wait(9)
    stage.tell(ended(get("a").get, TransferEnd.SERVED))
    (entry,) = stage.entries("get")
    assert (entry["worker"], entry["ended"], entry["outcome"]) == ("a", 1009, "served")


def test_what_will_not_end_any_more_is_forgotten(stage) -> None:
    stage.ask(push("a"))
    stage.left("a")
    stage.tell(ended(update("a"), TransferEnd.VOIDED))
    stage.journal.survey(stage.state, 0.0)
    assert stage.open() == []


class Rounds(Journaled):
    """Workers that make rounds."""

    def __init__(self, *names: str) -> None:
        super().__init__(silence_ns=10_000 * MS)
        for name in names:
            self.worker(name, spec=JOB, address=f"{name}:1")
            self.says(name, rounds=RoundsHeld(version=0, applied=0, has_state=True, together=len(names)))


@pytest.fixture
def rounds() -> Rounds:
    return Rounds("a", "b")


def _make(rounds: Rounds, *names: str, counter: int = 0, computed_from: int = 0) -> RoundId:
    for name in names:
        rounds.ask(asks(name, counter, computed_from=computed_from))
    rounds.wait(300)  # links are probed before the first round
    rounds.tick()
    running = rounds.state.reductions["net"]._running
    assert running is not None
    return running.id


def test_a_settled_round_says_who_was_in_it_when_each_had_it_and_how_late_gradients_are(rounds) -> None:
    made = _make(rounds, "a", "b")
    (entry,) = rounds.open()
    began = entry["began"]
    rounds.now_ns = round(began * MS)
    assert (entry["ended"], entry["members"]) == (0, ["a", "b"])
    for name in "ab":
        rounds.wait(5)
        rounds.tell(RoundArrived(worker=name, model="net", round=made))
    (entry,) = rounds.entries("round")
    shown = {name: entry[name] for name in ("version", "began", "ended", "outcome", "members", "receivers", "arrived")}
    assert shown == {
        "version": 1,
        "began": began,
        "ended": began + 10,
        "outcome": "settled",
        "members": ["a", "b"],
        "receivers": [],
        "arrived": {"a": began + 5, "b": began + 10},
    }
    assert entry["delays"] == {"a": 0, "b": 0}
    assert rounds.open() == []


def test_a_round_that_breaks_is_void_with_its_reason(rounds) -> None:
    made = _make(rounds, "a", "b")
    rounds.tell(RoundBroken(worker="a", model="net", round=made, detail="its connection broke"))
    (entry,) = rounds.entries("round")
    assert (entry["outcome"], entry["cause"]) == ("void", "a: its connection broke")


def test_a_model_of_the_same_name_in_another_job_begins_anew(rounds) -> None:
    for name in "ab":
        rounds.left(name)
    assert rounds.notes("net") == []
    rounds.worker("c", spec=JOB, address="c:1")
    (entry,) = (entry for entry in rounds.entries("note") if "begins" in entry)
    assert (entry["begins"], entry["about"]) == (["net"], "net")


def test_members_that_come_fall_silent_and_go_are_noted(stage) -> None:
    stage.silent("a")
    stage.left("b")
    assert stage.notes("a") == ["joined as worker", "is silent: its connection broke"]
    assert stage.notes("b") == ["joined as worker", "left: done"]
    assert [entry["warning"] for entry in stage.entries("note") if entry["about"] == "a"] == [False, True]
    assert [entry.get("here") for entry in stage.entries("note") if entry["about"] == "b"] == [True, False]


def test_who_is_refused_has_not_joined(stage) -> None:
    stage.worker("c", spec=replace(SPEC, tau_max=9))
    assert stage.notes("c") == []


def test_old_entries_are_forgotten_and_readers_get_what_is_new_to_them() -> None:
    history = History(keep_s=600)
    for number in range(3):
        history.add({"kind": "note", "number": number})
    after, entries = history.since(0)
    assert (after, [entry["number"] for entry in entries]) == (3, [0, 1, 2])
    assert history.since(2) == (3, [{"kind": "note", "number": 2}])
    assert history.since(after) == (3, [])
    assert history.since(99) == (3, [])
