"""Advice on whole clusters, with the twin itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.lab.simulation import predict
from mlfabric.twin.advise import Verdict, advise
from mlfabric.twin.cluster import Compute
from mlfabric.twin.settings import COMPUTE
from tests.twin.clusters import cluster_of

pytestmark = pytest.mark.usefixtures("compiled_planner")

UNEVEN = """
[fabric]
workers = 4
rate = "100M"
model = "1000000"

[links]
network = "N3"

[compute]
stragglers = "C2"

[run]
iterations = 12
"""


def test_a_cluster_with_stragglers_and_uneven_links_is_told_not_to_wait_for_all():
    found = advise(cluster_of(4, rate_bps=1e8, compute=Compute(stragglers=COMPUTE["C2"]), network="N3"), predict)
    assert found.verdict is Verdict.FABRIC
    assert found.best.option.is_late
    assert found.rows[0].option.method is None
    assert found.rows[0].gain == 1.0


def test_an_even_cluster_that_mostly_computes_is_told_to_use_plain_all_reduce():
    assert (
        advise(cluster_of(4, rate_bps=1e8, model_bytes=10**5, compute=Compute(mean_s=1.0)), predict).verdict
        is Verdict.PLAIN
    )


def test_the_command_shows_its_table_and_what_the_cost_of_delay_rests_on(tmp_path: Path):
    (tmp_path / "uneven.toml").write_text(UNEVEN)
    out = tmp_path / "advice.json"
    result = CliRunner().invoke(app, ["advise", str(tmp_path / "uneven.toml"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "gain over ring" in result.output
    assert "not a measurement" in result.output
    written = json.loads(out.read_text())
    assert written["rows"][0]["method"] == "ring all-reduce, plain"
    best = written["best"]
    finalists = [row for row in written["rows"][1:] if row["iterations"] == 12]
    assert {"all-reduce", "partial", "elastic"} < {row["method"] for row in finalists}
    assert best["gain"] >= max(row["gain"] for row in finalists) - 0.01
