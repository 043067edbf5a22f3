from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.testbed import reference, summary
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import CELLS, Cell
from benchmarks.testbed.comparing import Measured, estimate
from benchmarks.testbed.report import markdown, verdicts
from benchmarks.testbed.summary import row_values
from benchmarks.testbed.tuning import Setting, Tried, Tuning
from tests.testbed.made_up import SPEC, result_for

pytestmark = pytest.mark.usefixtures("_ideal_at_once")

CELL = Cell(compute="C1", network="N1")


@pytest.fixture
def _ideal_at_once(monkeypatch):
    """Spare each test the seconds that an event simulation takes; it has tests of its own."""
    monkeypatch.setattr(summary, "ideal_ratio", lambda *cell: 2.0)


def _run(system, seconds_per_iteration, *, seed=0, dilation=2.0, cell=CELL, saturated=False, accuracy=0.9, workers=30):
    spec = replace(
        SPEC,
        system=system,
        seed=seed,
        dilation=dilation,
        compute=cell.compute,
        network=cell.network,
        workers=workers,
        delay_bound=workers if system.startswith("fabric") else None,
    )
    return result_for(spec, seconds_per_iteration=seconds_per_iteration, saturated=saturated, accuracy=accuracy)


def test_pairs_are_of_one_seed_and_one_dilation():
    measured = Measured(
        [
            _run("ring", 1.0, seed=0),
            _run("ring", 2.0, seed=1, dilation=3.0),
            _run("fabric-async", 0.5, seed=0),
            _run("fabric-async", 0.5, seed=1, dilation=2.0),
            _run("fabric-async", 0.5, seed=2),
        ]
    )

    assert [pair.baseline.spec.seed for pair in measured.pairs(CELL, "fabric-async")] == [0]


def test_of_two_dilations_the_greater_one_counts():
    measured = Measured(
        [_run("ring", s, dilation=d) for d, s in ((3.0, 0.9), (2.0, 0.8))]
        + [_run("fabric-sync", s, dilation=d) for d, s in ((3.0, 0.3), (2.0, 0.2))]
    )

    (pair,) = measured.pairs(CELL, "fabric-sync")
    assert (pair.baseline.seconds_per_iteration, pair.other.seconds_per_iteration) == (0.9, 0.3)


def test_a_run_in_which_the_cpu_was_saturated_does_not_count():
    measured = Measured([_run("ring", 1.0), _run("fabric-async", 0.1, saturated=True)])

    assert measured.pairs(CELL, "fabric-async") == ()
    assert len(measured.void) == 1


def test_a_mean_has_an_interval_by_students_t():
    found = estimate([1.0, 2.0, 3.0])

    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    single = estimate([1.0])
    assert single is not None
    assert single.low is None
    assert estimate([]) is None


def test_ratios_are_the_rings_time_over_ours():
    measured = Measured([_run("ring", 1.0), _run("fabric-async", 0.5), _run("fabric-sync", 0.8)])
    rows = row_values(measured, 0.8)

    assert rows["asynchronous_vs_ring"]["cells"]["C1-N1"]["ratio"]["mean"] == pytest.approx(2.0)
    assert rows["synchronous_vs_ring"]["cells"]["C1-N1"]["ratio"]["mean"] == pytest.approx(1.25)


@pytest.mark.parametrize(("seconds", "reached"), [(0.72, True), (0.74, False)])
def test_a_cell_reaches_85_percent_of_the_ideal_or_not(seconds, reached):
    """1.37 is required in C1-N1: 1 / 0.73."""
    rows = row_values(Measured([_run("ring", 1.0), _run("fabric-async", seconds)]), 0.8)

    assert rows["asynchronous_vs_ring"]["cells"]["C1-N1"]["reached"] is reached
    assert rows["asynchronous_vs_ring"]["reached"] is (None if reached else False)


def test_all_nine_cells_together_reach_what_each_does():
    results = [_run(name, s, cell=cell) for cell in CELLS for name, s in (("ring", 1.0), ("fabric-sync", 0.9))]
    assert row_values(Measured(results), 0.8)["synchronous_vs_ring"]["reached"] is True

    results[-1] = _run("fabric-sync", 0.95, cell=CELLS[-1])
    assert row_values(Measured(results), 0.8)["synchronous_vs_ring"]["reached"] is False


def test_the_advised_bounds_are_judged_by_the_mean_of_all_nine_cells():
    results = [_run(name, s, cell=cell) for cell in CELLS for name, s in (("ring", 1.0), ("fabric-advised", 0.43))]
    found = row_values(Measured(results), 0.8)["advised_vs_ring"]
    assert found["mean"] == pytest.approx(1 / 0.43)
    assert found["reached"] is True

    assert row_values(Measured(results[2:]), 0.8)["advised_vs_ring"]["reached"] is None


def test_accuracy_is_judged_by_its_confidence_interval():
    def found(difference):
        results = [
            _run(name, 0.5, seed=seed, accuracy=0.9 + (difference + 0.001 * seed if name != "ring" else 0))
            for name in ("ring", "fabric-async", "fabric-advised")
            for seed in range(3)
        ]
        return row_values(Measured(results), 0.8)["accuracy_at_the_end"]

    assert found(0.0)["reached"] is True
    assert found(-0.006)["reached"] is False
    assert found(0.0)["systems"]["fabric-async"]["difference"]["mean"] == pytest.approx(0.001)


def test_the_saved_communication_time_does_not_count_computation():
    """Of 0.15 s of computation in each, the tree communicates for 0.85 s and ours for 0.6 s."""
    cell = Cell(compute="C2", network="N2")
    found = row_values(Measured([_run("tree", 1.0, cell=cell), _run("fabric-sync", 0.75, cell=cell)]), 0.8)

    assert found["synchronous_vs_tree"]["communication_saved_share"]["mean"] == pytest.approx(1 - 0.6 / 0.85)
    assert found["synchronous_vs_tree"]["reached"] is True


def test_drops_are_counted_for_each_worker():
    run = _run("fabric-async", 0.5)
    run = replace(run, dropped_by_worker=(2, *run.dropped_by_worker[1:]))
    values = row_values(Measured([run]), 0.8)["dropped"]["cells"]["C1-N1"]["fabric-async"]

    assert values["share"] == pytest.approx(2 / 62)
    assert values["share_by_worker"][:2] == [0.5, 0.0]
    assert values["applied_of_least"] == 2


def test_with_another_number_of_workers_nothing_is_said_to_be_reached():
    rows = row_values(Measured([_run("ring", 1.0, workers=4), _run("fabric-async", 0.5, workers=4)]), 0.8)

    assert rows["asynchronous_vs_ring"]["cells"]["C1-N1"]["ratio"]["mean"] == pytest.approx(2.0)
    assert rows["asynchronous_vs_ring"]["cells"]["C1-N1"]["reached"] is None


def test_reference_figures_belong_to_the_cells_that_the_issue_names():
    assert reference.PAPER_ASYNCHRONOUS["C2-N1"] == 2.96
    assert reference.REQUIRED_ASYNCHRONOUS["C3-N2"] == 1.66
    assert reference.RING_S["C2-N3"] == 1.91
    for cell in CELLS:
        required = reference.REQUIRED_ASYNCHRONOUS[cell.name]
        assert required == pytest.approx(0.85 * reference.IDEAL_BOUND_30[cell.name], abs=0.008)


BEST = Setting(learning_rate=0.4, momentum=0.9)
TUNING = Tuning(best=BEST, targets=(0.88, 0.92), tried=(Tried(setting=BEST, gradients=(690.0, 1800.0), accuracy=0.91),))


def _found(results):
    return {
        "settings": {
            "workers": 30,
            "model": "mlp-50k",
            "batch_size": 32,
            "wire_s": 0.08,
            "dilations": [2.0],
            "seeds": 1,
            "accuracy_seeds": 1,
            "target": 0.8,
            "server_weather": False,
        },
        "git_revisions": ["0123456789ab"],
        "failed": ["C1-N1 tree seed 0: it broke"],
        "tuning": {"ring": TUNING.as_json()},
        "runs": [],
        "rows": row_values(Measured(results), 0.8),
    }


def test_the_report_has_every_row_and_what_failed():
    found = _found([_run("ring", 1.0), _run("fabric-async", 0.5), _run("fabric-sync", 0.8)])
    page = markdown(found, ("accuracy.png",))

    assert "| C1-N1 | 2.00 | 2.00 | 1.74 |" in page
    assert "failed: C1-N1 tree seed 0: it broke" in page
    assert "![accuracy.png](accuracy.png)" in page
    assert "| ring all-reduce | 0.4 | 0.9 | 88 %: 690, 92 %: 1800 | 1 | 0.4 |" in page
    assert all(title in page for title, *_ in verdicts(found["rows"]))


def test_every_system_can_be_loaded_by_its_name():
    assert all(hasattr(system.load(), "worker") for system in SYSTEMS.values())
