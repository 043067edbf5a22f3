from __future__ import annotations

import pytest

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.overlap_row import WITHOUT, overlap
from benchmarks.testbed.runs import Consistency
from tests.testbed.made_up import run_of

TARGET = 0.8


def _both_sides(**with_overlap):
    seconds = {"ring": 0.5, "elastic": 0.4, "fabric-sync": 0.4, "fabric-async": 0.3}
    without = [run_of(name, s) for name, s in seconds.items()]
    return [*without, *(run_of(name.replace("_", "-"), s) for name, s in with_overlap.items())]


def test_each_side_is_compared_with_itself_without_overlap_and_with_the_ring_that_overlaps_too():
    runs = _both_sides(ring_overlap=0.4, elastic_overlap=0.32, fabric_sync_overlap=0.25, fabric_overlap=0.2)
    row = overlap(Measured(runs), TARGET)

    gains = {name: values["cells"]["C1-N1"]["gain"]["mean"] for name, values in row["systems"].items()}
    assert gains.pop("elastic-overlap") == pytest.approx(1.25)
    assert gains == pytest.approx({"ring-overlap": 1.25, "fabric-sync-overlap": 1.6, "fabric-overlap": 1.5})
    ours = row["systems"]["fabric-overlap"]["cells"]["C1-N1"]
    assert ours["ring_ratio"]["mean"] == pytest.approx(2.0)
    assert ours["ring_ratio_to_target"]["mean"] == pytest.approx(2.0)
    assert ours["gain_to_target"]["mean"] == pytest.approx(1.5)
    assert row["systems"]["ring-overlap"]["cells"]["C1-N1"]["ring_ratio"] is None
    assert row["reached"] is True


def test_a_side_that_is_no_faster_over_all_cells_does_not_reach_it():
    runs = _both_sides(ring_overlap=0.4, elastic_overlap=0.32, fabric_sync_overlap=0.25, fabric_overlap=0.29)
    slower = [run_of("fabric-async", 0.3, cell="C2-N2"), run_of("fabric-overlap", 0.33, cell="C2-N2")]

    assert overlap(Measured(runs), TARGET)["reached"] is True
    row = overlap(Measured([*runs, *slower]), TARGET)
    assert row["systems"]["fabric-overlap"]["reached"] is False
    assert row["reached"] is False


def test_nothing_is_judged_before_all_of_it_is_measured():
    row = overlap(Measured(_both_sides(ring_overlap=0.4, fabric_overlap=0.2)), TARGET)
    assert row["reached"] is None
    assert row["systems"]["fabric-sync-overlap"]["cells"] == {}
    assert overlap(Measured([]), TARGET)["reached"] is None


@pytest.mark.parametrize("name", WITHOUT)
def test_a_system_with_overlap_is_run_as_the_one_without(name):
    with_overlap, without = SYSTEMS[name], SYSTEMS[WITHOUT[name]]
    assert with_overlap.consistency is without.consistency
    assert with_overlap.bound is without.bound
    assert with_overlap.momentum_at is without.momentum_at
    if with_overlap.consistency is Consistency.SYNCHRONOUS:
        assert with_overlap.tuned_as == without.tuned_as
