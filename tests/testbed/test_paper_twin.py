from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.testbed import predicting
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import CELLS
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.predicting import PLAYED, WAYS, cluster_of_run, predict, predictions
from benchmarks.testbed.results import Results
from benchmarks.testbed.twin_row import judged, twin
from mlfabric.model.round_options import RoundOptions
from mlfabric.planning import warm_up
from mlfabric.twin.cluster import Monitoring
from tests.testbed.digits import needs_digits
from tests.testbed.made_up import SPEC, result_for, run_of

TARGET = 0.88
SMALL = replace(SPEC, workers=3, duration_s=6.0, model="mlp-50k")


def _measured(ratios, systems=tuple(WAYS)):
    """Return runs of some cells of each system, and predictions that are so many times as long."""
    runs = [run_of(system, cell=cell.name) for system in systems for cell, _ in zip(CELLS, ratios, strict=False)]
    where = {cell.name: ratio for cell, ratio in zip(CELLS, ratios, strict=False)}
    predicted = {run.spec.file_name: run.seconds_per_iteration * where[run.spec.cell.name] for run in runs}
    return Measured(runs, predicted)


@pytest.mark.parametrize(
    ("ratios", "reached"),
    [
        ([1.0] * 9, True),
        ([1.14] * 4 + [0.86] * 4 + [0.5], True),
        ([1.0] * 8, True),
        ([1.0] * 7 + [1.16], None),
        ([1.0] * 7 + [1.16, 0.84], False),
        ([], None),
    ],
)
def test_eight_cells_of_nine_are_to_be_within_15_percent(ratios, reached):
    systems = [system for system in WAYS if system not in PLAYED]
    assert twin(_measured(ratios, systems), TARGET)["systems"].get("ring", {"reached": None})["reached"] is reached


@pytest.mark.parametrize(
    ("within", "reached"),
    [
        ({"C1-N1": True, "C2-N2": True, "C1-N3": True, "C3-N3": False}, True),
        ({"C1-N1": True, "C2-N2": True, "C3-N3": False}, None),
        ({"C1-N1": False}, False),
    ],
)
def test_rounds_are_to_be_predicted_well_where_all_ways_of_them_are_compared(within, reached):
    assert judged(within, is_played=True) is reached


def test_a_prediction_inside_the_range_of_the_runs_is_good():
    runs = [run_of("ring", seconds, seed=seed) for seed, seconds in enumerate((0.3, 0.5, 0.9))]
    for predicted, is_within in ((0.8, True), (0.95, False)):
        found = twin(Measured(runs, {run.spec.file_name: predicted for run in runs}), TARGET)
        assert found["systems"]["ring"]["cells"]["C1-N1"]["within"] is is_within


def test_the_row_compares_means_of_the_same_runs_in_every_cell():
    runs = [run_of("ring", 0.5), run_of("ring", 0.7, seed=1), run_of("ring", 9.0, seed=2)]
    predicted = {runs[0].spec.file_name: 0.6, runs[1].spec.file_name: 0.6}
    found = twin(Measured(runs, predicted), TARGET)["systems"]["ring"]["cells"]["C1-N1"]
    assert found["runs"] == 2
    assert found["seconds_per_iteration"] == pytest.approx(0.6)
    assert found["ratio"] == pytest.approx(1.0)
    assert found["within"] is True


def test_every_system_has_to_be_predicted_well():
    assert twin(_measured([1.1] * 9), TARGET)["reached"] is True
    assert twin(_measured([1.1] * 9, ("ring", "tree")), TARGET)["reached"] is None
    assert twin(_measured([1.2] * 9), TARGET)["reached"] is False


def test_a_run_is_simulated_as_it_was_made(monkeypatch):
    monkeypatch.setitem(SYSTEMS["elastic"].wrapped, "tau_max", 5)
    spec = replace(
        SPEC, system="elastic", dilation=3.0, delay_bound=30, report_every_s=0.2, seed=7, compute="C2", network="N3"
    )
    found = cluster_of_run(spec, 50_000)
    assert found.seed == 7
    assert found.tau_max == 30
    assert found.rounds == RoundOptions(tau_max=5)
    assert found.compute.mean_s == pytest.approx(0.3)
    assert found.weather.period_s == pytest.approx(15.0)
    assert found.monitor_lag_s == pytest.approx(0.6)
    assert found.monitor_half_life_s == pytest.approx(30.0)
    assert found.monitoring is Monitoring.ESTIMATES
    wire_s = 8 * found.model_bytes / found.server.up_bps
    assert 0.24 < wire_s < 0.26  # 80 ms dilated, and headers


@needs_digits
@pytest.mark.timeout(900)  # compiles the planner where no machine code is kept yet
def test_predictions_are_made_of_runs_that_count_and_kept_until_the_code_changes(tmp_path, monkeypatch):
    warm_up(lambda line: None)
    told: list[object] = []
    runs = [
        result_for(replace(SMALL, system="ring")),
        result_for(replace(SMALL, system="fabric-async", delay_bound=3)),
        result_for(replace(SMALL, system="ps-sync")),
        result_for(replace(SMALL, system="tree"), saturated=True),
    ]
    kept = Results(tmp_path)
    found = predictions(runs, kept, told.append)
    assert set(found) == {runs[0].spec.file_name, runs[1].spec.file_name}
    assert all(0.15 < seconds < 1.0 for seconds in found.values())
    assert len(told) == 2

    monkeypatch.setattr(predicting, "predict", lambda spec: 77.0)
    assert predictions(runs, kept, told.append) == found
    monkeypatch.setattr(predicting, "_code", lambda: "other code")
    assert set(predictions(runs, kept, told.append).values()) == {77.0}


@needs_digits
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", WAYS)
def test_a_run_is_predicted_whatever_its_dilation(system):
    warm_up(lambda line: None)
    spec = replace(SMALL, system=system, compute="C1", network="N0", delay_bound=3, workers=4)
    once, thrice = (predict(replace(spec, dilation=d, duration_s=6.0 * d)) for d in (1.0, 3.0))
    assert thrice == pytest.approx(once, rel=0.07)
