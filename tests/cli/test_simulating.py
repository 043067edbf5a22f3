"""``mlfabric simulate``: the real command on real files, and every way to write such a file wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.cli.clusters import read_cluster
from mlfabric.errors import ConfigError, UsageError
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.twin.cluster import Spread
from mlfabric.twin.settings import Direction

pytestmark = pytest.mark.timeout(900)  # the first test compiles the planner where no machine code is kept yet

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
SMALL = """
[fabric]
workers = 3
rate = "1G"
model = "1M"
[run]
iterations = 5
"""


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    warm_up(lambda line: None)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_runs(file: Path):
    result = run(file, "--iterations", 1)

    assert result.exit_code == 0, result.output
    assert "updates/s" in result.stdout or "updates " in result.stdout


def test_figures_are_written_as_json_and_are_the_same_again(small: Path, tmp_path: Path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for path in (one, other):
        assert run(small, "--json", path).exit_code == 0
    found = json.loads(one.read_text())

    assert one.read_text() == other.read_text()
    assert found["way"] == "asynchronous"
    assert set(found["iteration_s"]) == {"mean", "p50", "p99"}
    assert sum(found["delays"].values()) + sum(found["dropped"].values()) == 15
    assert set(found["link_use"]["up"]) == {"w0", "w1", "w2", "server"}


def test_json_on_stdout_is_nothing_but_json(small: Path):
    rows = json.loads(run(small, "--compare", "--json", "-").stdout)

    assert [row["way"] for row in rows][-2:] == ["ring", "tree"]
    assert rows[-2]["gain_over_ring"] == 1.0
    assert rows[-2]["formula_s"] == pytest.approx(rows[-2]["iteration_s"]["mean"], rel=0.05)


def test_what_a_threshold_would_bring(tmp_path: Path):
    file = tmp_path / "found.json"
    shown = run(FOLDER / "measured.toml", "--dropcompute", 12, "--json", file)
    found = json.loads(file.read_text())

    assert shown.exit_code == 0, shown.output
    assert "16 workers, 100 steps of 12 micro-batches" in shown.stdout
    assert found["best"]["speedup"] > 1.3, "one worker is twice as slow as the others"
    assert 0 < found["best"]["dropped"] < 0.1
    assert found["best"]["tau_s"] < found["slowest_s"]


def test_without_variance_no_threshold_is_worth_it(small: Path):
    found = json.loads(run(small, "--dropcompute", 4, "--json", "-").stdout)

    assert found["best"] == {"tau_s": None, "speedup": 1.0, "dropped": 0.0}
    assert "no threshold is worth it" in run(small, "--dropcompute", 4).stdout


def test_a_threshold_is_asked_for_alone(small: Path):
    result = run(small, "--dropcompute", 4, "--compare")

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "--dropcompute with --compare or --picture; allowed: alone"


def test_a_method_with_inner_steps_is_not_simulated(tmp_path: Path):
    file = tmp_path / "inner.toml"
    file.write_text(SMALL.replace("[run]", 'method = "diloco"\n[run]'))
    with pytest.raises(ConfigError, match=r"method = 'diloco'; allowed: .*elastic"):
        read_cluster(file)


def test_a_comparison_is_a_table_of_all_ways(small: Path):
    shown = run(small, "--compare").stdout

    for way in ("asynchronous", "stale-synchronous", "synchronous", "all-reduce", "partial", "elastic", "ring", "tree"):
        assert way in shown


def test_a_picture_is_drawn(small: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.png"
    result = run(small, "--picture", path, "--picture-s", 0.2)

    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_rounds_are_played_as_the_file_says(small: Path):
    small.write_text(SMALL.replace("[run]", "method = 'elastic'\n[rounds]\nat_least = 1.0\n[run]"))
    result = run(small)

    assert result.exit_code == 0, result.output
    assert "3.0 workers in each" in result.stdout


def test_a_comparison_has_no_picture(small: Path):
    result = run(small, "--compare", "--picture", "x.png")

    assert isinstance(result.exception, UsageError)
    assert not Path("x.png").exists()


def test_a_file_is_read_as_it_says():
    office, measured = (read_cluster(FOLDER / f"{name}.toml") for name in ("office", "measured"))

    assert (len(office.workers), office.tau_max, office.weather.name) == (30, 30, "N2")
    assert office.aggregators == tuple(host.name for host in office.workers)
    assert office.compute.stragglers.name == "C1"
    assert measured.method is Method.STALE_SYNCHRONOUS
    assert measured.workers[8].up_bps == 250e6
    assert measured.workers[7].slowdown == 2
    assert measured.compute.spread is Spread.HISTOGRAM
    assert measured.compute.histogram is not None
    assert measured.compute.histogram.mean_s == pytest.approx(34.367, abs=0.001)


def test_rates_over_time_are_read(tmp_path: Path):
    path = tmp_path / "changes.toml"
    rows = [("w1", "down", 3, "100M"), ("w1", "down", 0, "1G")]
    text = "".join(
        f'[[links.changes]]\nhost = "{host}"\ndirection = "{way}"\nat_s = {at_s}\nrate = "{rate}"\n'
        for host, way, at_s, rate in rows
    )
    path.write_text(SMALL + text)
    line = read_cluster(path).lines["w1", Direction.DOWN]

    assert (line.times_s, line.bps) == ((0.0, 3.0), (1e9, 1e8))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[fabric]\n", "workers"),
        ("[fabric]\nworkers = 0\n", "workers = 0"),
        (SMALL + "[rounds]\nquorum = 'many'\n", "quorum='many'"),
        (SMALL + "[rounds]\nat_least = 2\n", "at_least=2.0"),
        (SMALL + "[hosts.w9]\nup = '1G'\n", "w9"),
        (SMALL.replace("rate", "speed"), "speed"),
        (SMALL.replace('"1G"', '"fast"'), "fast"),
        (SMALL + "[links]\nnetwork = 'N7'\n", "N7"),
        (SMALL + "[links]\nperiod_s = 0\n", "period_s"),
        (SMALL + "[compute]\nmean_ms = 0\n", "mean_s"),
        (SMALL + "[compute]\nmean_ms = -3\n", "mean_ms"),
        (SMALL + "[compute]\nstragglers = 'C9'\n", "C9"),
        (SMALL + "[compute]\nfactor = 0.5\n", "factor"),
        (SMALL + "[compute]\ndistribution = 'recorded'\n", "trace"),
        (SMALL + "[compute]\ndistribution = 'histogram'\nfile = 'none.txt'\n", "none.txt"),
        (SMALL.replace("[run]", "method = 'chaotic'\n[run]"), "chaotic"),
        (SMALL.replace("[run]", "aggregators = 4\n[run]"), "aggregators = 4"),
        (SMALL.replace("[run]", "aggregators = ['w9']\n[run]"), "w9"),
        (SMALL.replace("iterations = 5", "iterations = 0"), "iterations = 0"),
        (SMALL + "[links]\ntrace = 'gone.trace'\n", "gone.trace"),
        (SMALL + "[planner]\ntau_max = -1\n", "tau_max"),
        ("workers = [", "no TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_what_was_given(tmp_path: Path, text: str, said: str):
    path = tmp_path / "wrong.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"wrong\.toml|gone\.trace|none\.txt") as refused:
        read_cluster(path)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_an_error_in_one_line():
    result = run("nowhere.toml")

    assert isinstance(result.exception, ConfigError)
    assert "nowhere.toml" in str(result.exception)
