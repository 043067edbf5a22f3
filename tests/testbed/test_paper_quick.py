"""The paper's table in small: the real command on real hosts. Whether ratios are reached is not looked at here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.testbed.spec import FORMAT
from tests.testbed.quick import begin_quick, skip_without_hosts

pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.long]

ROWS = {
    "asynchronous_vs_ring",
    "advised_vs_ring",
    "accuracy_at_the_end",
    "synchronous_vs_ring",
    "synchronous_vs_tree",
    "dropped",
    "forwarded",
    "reporting_lag",
    "topics",
    "backups",
    "rounds",
    "overlap",
    "twin",
    "speed",
}


def test_the_table_in_small_runs_and_is_complete(tmp_path: Path):
    skip_without_hosts()
    bench = begin_quick(tmp_path, "--duration", "3")
    _, told = bench.communicate()
    assert bench.returncode == 0, told

    found = json.loads((tmp_path / "paper.json").read_text())
    assert found["format"] == FORMAT
    assert set(found["rows"]) == ROWS
    assert found["settings"]["cells"] == ["C1-N1"]
    assert [run["system"] for run in found["runs"]] == ["ring", "fabric-async"]
    assert found["settings"]["server_weather"] is False
    assert found["failed"] == []
    for run in found["runs"]:
        assert run["seconds_per_iteration"] > 0.1, "a step computes for 0.1 s"
        assert run["saturated"] or run["seconds_per_iteration_of_twin"] > 0.1, "the twin predicts what counts"
        assert run["accuracy_at_end"] > 0.3, "it learns"
        assert 0 < run["cpu_used_share"] <= 1
        kept = json.loads((tmp_path / "runs" / run["file"]).read_text())
        assert len(kept["commits"]["workers"]) == len(kept["commits"]["delays"]) > 0
        assert len(kept["curve"]["time_s"]) == len(kept["curve"]["accuracy"]) > 2
        assert kept["spec"]["workers"] == len(kept["dropped_by_worker"])
    kept = json.loads((tmp_path / "runs" / found["runs"][1]["file"]).read_text())
    assert kept["spec"]["delay_bound"] == kept["spec"]["workers"] == found["settings"]["workers"]
    assert max(kept["commits"]["delays"]) <= kept["spec"]["delay_bound"]
    assert {file.name for file in (tmp_path / "report").iterdir()} == {"report.md", "accuracy.png", "ratios.png"}
