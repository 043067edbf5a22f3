from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import choose
from benchmarks.testbed.campaign import Campaign, Choice
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cell import plan_of
from benchmarks.testbed.cells import CELLS, FOUR_CELL, Cell
from benchmarks.testbed.results import Results
from benchmarks.testbed.runs import Backup, BackupKind
from benchmarks.testbed.tuning import Effort, Setting
from mlfabric.errors import FabricError, UsageError
from tests.testbed.digits import needs_digits
from tests.testbed.made_up import result_for

EFFORT = Effort(grid=(Setting(learning_rate=0.1, momentum=0.5),), seeds=(7,), iterations=1)


def _choice(*, cells=("C1-N1",), systems=("ring", "ps-sync"), seeds=2, most_dilation=4.0):
    made = {cell.name: cell for cell in CELLS}
    return Choice(
        cells=tuple(made[name] for name in cells),
        systems=tuple(SYSTEMS[name] for name in systems),
        seeds=tuple(range(seeds)),
        accuracy_seeds=(),
        duration_s=10.0,
        dilation=2.0,
        most_dilation=most_dilation,
        workers=2,
        target=0.5,
        effort=EFFORT,
    )


class _Runs:
    """Stands for the testbed, which takes minutes: remembers what was run, fails or is saturated as told."""

    def __init__(self, *, saturated_below=0.0, saturated_model="", failing=(), interrupted_after=1000):
        self.specs = []
        self.saturated_model = saturated_model
        self.saturated_below = saturated_below
        self.failing = failing
        self.interrupted_after = interrupted_after

    def __call__(self, spec):
        if len(self.specs) == self.interrupted_after:
            raise KeyboardInterrupt
        self.specs.append(spec)
        if (spec.system, spec.seed) in self.failing:
            raise FabricError("the run broke\nat length")
        concerned = self.saturated_model in ("", spec.model)
        return result_for(spec, saturated=concerned and spec.dilation < self.saturated_below)


def _campaign(folder, runs, choice=None):
    return Campaign(choice=choice or _choice(), kept=Results(folder), told=lambda _: None, run_one=runs)


@needs_digits
def test_every_system_runs_with_every_seed_in_every_cell_that_it_is_measured_in(tmp_path: Path):
    runs = _Runs()
    _campaign(tmp_path, runs, _choice(cells=("C1-N1", "C2-N2"), systems=("ring", "tree"), seeds=2)).run()

    found = [(spec.cell.name, spec.system, spec.seed) for spec in runs.specs]
    assert found == [
        ("C1-N1", "ring", 0),
        ("C1-N1", "ring", 1),
        ("C2-N2", "ring", 0),
        ("C2-N2", "tree", 0),
        ("C2-N2", "ring", 1),
        ("C2-N2", "tree", 1),
    ]


@needs_digits
def test_all_systems_train_as_long_as_the_ring_of_their_seed_did(tmp_path: Path):
    runs = _Runs()
    choice = replace(_choice(systems=("ring", "synchronous", "ps-sync")), duration_s=None)
    campaign = _campaign(tmp_path, runs, choice)
    campaign.run()

    ring_s = 2 * campaign.results[0].elapsed_s
    assert [(spec.system, spec.least_steps, spec.accuracy) for spec in runs.specs[:3]] == [
        ("ring", 36, 0.92),
        ("synchronous", 0, 0.92),
        ("ps-sync", 0, 0.0),
    ]
    assert runs.specs[1].least_s == runs.specs[2].duration_s == pytest.approx(ring_s)
    again = _Runs()
    _campaign(tmp_path, again, choice).run()
    assert again.specs == [], "what is kept is found again by the same ring's time"


@needs_digits
def test_what_was_broken_off_goes_on_where_it_was(tmp_path: Path):
    first, second = _Runs(interrupted_after=3), _Runs()
    with pytest.raises(KeyboardInterrupt):
        _campaign(tmp_path, first).run()

    campaign = _campaign(tmp_path, second)
    campaign.run()

    assert (len(first.specs), len(second.specs)) == (3, 1)
    assert [result.spec for result in campaign.results] == first.specs + second.specs


@needs_digits
def test_a_cell_in_which_the_cpu_decided_is_measured_again_with_a_greater_dilation(tmp_path: Path):
    runs = _Runs(saturated_below=4.0)
    campaign = _campaign(tmp_path, runs)
    campaign.run()

    assert [spec.dilation for spec in runs.specs] == [2.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert {spec.duration_s for spec in runs.specs if spec.dilation == 4.0} == {40.0}
    assert sum(not result.machine.saturated for result in campaign.results) == 4


@needs_digits
def test_only_runs_that_are_compared_with_one_that_does_not_count_are_made_again(tmp_path: Path):
    runs = _Runs(saturated_below=3.0, saturated_model="lda-12")
    campaign = _campaign(tmp_path, runs, _choice(systems=("ring", "ps-sync", "lda-ring"), seeds=1))
    campaign.run()

    assert [(spec.system, spec.dilation) for spec in runs.specs] == [
        ("ring", 2.0),
        ("ps-sync", 2.0),
        ("lda-ring", 2.0),
        ("lda-ring", 3.0),
    ]


@needs_digits
def test_a_run_that_does_not_count_is_made_again_the_next_time(tmp_path: Path):
    _campaign(tmp_path, _Runs(saturated_below=100.0), _choice(most_dilation=2.0)).run()

    again = _Runs()
    _campaign(tmp_path, again, _choice(most_dilation=2.0)).run()
    assert len(again.specs) == 4


@needs_digits
def test_a_system_that_cannot_be_tuned_is_told_and_the_others_go_on(tmp_path: Path):
    runs = _Runs(failing=[("ps-async", 1000)])
    campaign = _campaign(tmp_path, runs, _choice(systems=("ring", "ps-async")))
    campaign.run()

    assert campaign.failed == ["tuning of ps-async: the run broke"]
    assert [result.spec.system for result in campaign.results] == ["ring", "ring"]


@needs_digits
def test_dilation_has_an_end_and_there_every_run_is_made(tmp_path: Path):
    runs = _Runs(saturated_below=100.0)
    _campaign(tmp_path, runs, _choice(most_dilation=3.0)).run()

    assert [spec.dilation for spec in runs.specs] == [2.0, 3.0, 3.0, 3.0, 3.0]


@needs_digits
def test_a_failed_run_is_told_and_made_again_the_next_time(tmp_path: Path):
    campaign = _campaign(tmp_path, _Runs(failing=[("ps-sync", 0)]))
    campaign.run()
    assert campaign.failed == ["C1-N1 ps-sync seed 0: the run broke"]

    again = _Runs()
    _campaign(tmp_path, again).run()
    assert [(spec.system, spec.seed) for spec in again.specs] == [("ps-sync", 0)]


@needs_digits
def test_when_the_first_run_fails_there_is_no_use_in_going_on(tmp_path: Path):
    runs = _Runs(failing=[("ring", 0)])

    with pytest.raises(FabricError, match="the run broke"):
        _campaign(tmp_path, runs).run()
    assert len(runs.specs) == 1


@needs_digits
def test_an_asynchronous_system_is_tuned_on_delays_that_were_recorded_from_it(tmp_path: Path):
    runs = _Runs()
    campaign = _campaign(tmp_path, runs, _choice(systems=("ps-async",), seeds=1))
    campaign.run()

    assert [spec.cell.name for spec in runs.specs] == ["C2-N2", "C1-N1"]
    assert list(campaign.tunings) == ["ps-async"]
    again = _Runs()
    _campaign(tmp_path, again, _choice(systems=("ps-async",), seeds=1)).run()
    assert again.specs == []


def test_systems_that_find_topics_add_up_changes_and_need_no_tuning(tmp_path: Path):
    runs = _Runs()
    campaign = _campaign(tmp_path, runs, _choice(systems=("lda-ring", "lda-async"), seeds=1))
    campaign.run()

    assert campaign.tunings == {}
    assert {(spec.model, spec.learning_rate, spec.momentum) for spec in runs.specs} == {("lda-12", 2, 0.0)}
    assert [spec.delay_bound for spec in runs.specs] == [None, 2]


@needs_digits
def test_late_reports_and_backups_reach_the_run_as_the_catalogue_has_them(tmp_path: Path):
    runs = _Runs()
    systems = ("fabric-lag", "replica-20", "chain", "checkpoint-1")
    _campaign(tmp_path, runs, _choice(cells=("C1-N1", "C1-N2"), systems=systems, seeds=1)).run()

    made = {spec.system: spec for spec in runs.specs if spec.seed == 0}
    assert {name: spec.cell.name for name, spec in made.items()} == {
        "replica-20": "C1-N1",
        "chain": "C1-N1",
        "checkpoint-1": "C1-N1",
        "fabric-lag": "C1-N2",
    }
    assert {name: spec.report_every_s for name, spec in made.items() if spec.report_every_s != 0.2} == {"fabric-lag": 2}
    plans = {name: plan_of(spec, 10**7).backup for name, spec in made.items()}
    assert plans == {
        "fabric-lag": Backup(),
        "replica-20": Backup(kind=BackupKind.REPLICA, lead_updates=40),
        "chain": Backup(kind=BackupKind.CHAIN),
        "checkpoint-1": Backup(kind=BackupKind.CHECKPOINT, lead_updates=2),
    }
    assert plan_of(made["fabric-lag"], 10**7).report_every_s == 2.0


CHOSEN: dict[str, Any] = {
    "cells": "",
    "systems": "",
    "seeds": 3,
    "accuracy_seeds": None,
    "duration_s": None,
    "dilation": 2.0,
    "workers": None,
    "target": 0.88,
    "server_weather": False,
    "quick": False,
    "afresh": False,
}


def test_accuracies_are_compared_with_more_seeds_in_three_cells():
    choice = choose(**CHOSEN)

    diagonal = choice.runs_in(Cell(compute="C2", network="N2"))
    other = choice.runs_in(Cell(compute="C2", network="N1"))

    assert [system.name for seed, system in diagonal if seed == 4] == ["ring", "fabric-async", "fabric-advised"]
    assert {seed for seed, _ in other} == {0, 1, 2}
    assert all(system.name != "tree" for _, system in other)


def test_about_how_long_a_run_lasts_is_known_by_the_rings_measured_beforehand():
    choice = choose(**CHOSEN)

    assert choice.duration_of(Cell(compute="C2", network="N3"), SYSTEMS["ring"]) == pytest.approx(46 * 1.91)
    assert choice.duration_of(Cell(compute="C1", network="N1"), SYSTEMS["lda-ring"]) == pytest.approx(80 * 0.51)
    assert choice.duration_of(FOUR_CELL, SYSTEMS["elastic"]) == 180.0 / choice.dilation


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cells": "C9-N1"}, "cell C9-N1; allowed"),
        ({"cells": "C1"}, "cell C1-; allowed"),
        ({"systems": "ring,star"}, "system 'star'; allowed: ring, tree"),
        ({"seeds": 0}, "--seeds 0; allowed: 1 to 10"),
        ({"accuracy_seeds": 11}, "--accuracy-seeds 11"),
        ({"dilation": 0.5}, "--dilation 0.5; allowed: 1 or more"),
        ({"duration_s": 0.0}, "--duration 0.0"),
        ({"workers": 1}, "--workers 1; allowed: 2 to 200"),
        ({"target": 88.0}, "--target 88.0; allowed: between 0 and 1"),
    ],
)
def test_what_cannot_be_chosen_is_an_error_that_says_what_can(given, words):
    with pytest.raises(UsageError) as error:
        choose(**{**CHOSEN, **given})
    assert words in str(error.value)
