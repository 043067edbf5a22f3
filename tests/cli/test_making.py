from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import mlfabric
from mlfabric.cli.app import app
from mlfabric.errors import UsageError


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """Make this package seem to be in a checkout with a benchmark ``data`` that returns what it was given."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "data.py").write_text("")
    module = ModuleType("benchmarks.data")
    module.__dict__["run"] = lambda **options: {"options": options, "rate": 2.5}
    monkeypatch.setitem(sys.modules, "benchmarks", ModuleType("benchmarks"))
    monkeypatch.setitem(sys.modules, "benchmarks.data", module)
    monkeypatch.setattr(mlfabric, "__file__", str(tmp_path / "mlfabric" / "__init__.py"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("benchmark")
def test_a_benchmarks_figures_are_printed_and_written(tmp_path: Path):
    file = tmp_path / "figures.json"
    command = ["bench", "data", "--json", str(file), "--set", "rounds=3", "--set", "kind=fast", "--set", "warm=false"]
    result = CliRunner().invoke(app, command)

    assert result.exit_code == 0
    assert "options.rounds" in result.output
    assert json.loads(file.read_text()) == {"options": {"rounds": 3, "kind": "fast", "warm": False}, "rate": 2.5}


@pytest.mark.usefixtures("benchmark")
def test_an_option_without_a_value_is_an_error():
    error = CliRunner().invoke(app, ["bench", "data", "--set", "rounds"]).exception

    assert isinstance(error, UsageError)
    assert "allowed: KEY=VALUE" in str(error)


@pytest.mark.usefixtures("benchmark")
def test_a_figures_file_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path: Path):
    sys.modules["benchmarks.data"].__dict__["run"] = lambda: pytest.fail("it was measured")
    result = CliRunner().invoke(app, ["bench", "data", "--json", str(tmp_path / "no" / "f.json")])

    assert isinstance(result.exception, UsageError)
    assert "give a file that can be written" in str(result.exception)


@pytest.mark.usefixtures("benchmark")
def test_a_benchmark_that_fails_leaves_no_file_and_takes_none_away(tmp_path: Path):
    def fail() -> None:
        raise UsageError("no")

    sys.modules["benchmarks.data"].__dict__["run"] = fail
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("before")
    for file in (new, old):
        assert isinstance(CliRunner().invoke(app, ["bench", "data", "--json", str(file)]).exception, UsageError)
    assert not new.exists()
    assert old.read_text() == "before"


def test_outside_of_a_checkout_benchmarks_say_where_they_are(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(mlfabric, "__file__", str(tmp_path / "mlfabric" / "__init__.py"))
    error = CliRunner().invoke(app, ["bench", "data"]).exception

    assert isinstance(error, UsageError)
    assert "benchmarks are in a checkout of the project" in str(error)


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones():
    result = CliRunner().invoke(app, ["bench", "luck"])

    assert result.exit_code == 2
    assert "control" in result.output


def test_a_demonstration_gets_its_folder_and_seed_and_gives_the_exit_code(monkeypatch, tmp_path: Path):
    module = ModuleType("mlfabric.demo")
    given = []

    def run(report: Path, seed: int) -> int:
        given.append((report, seed))
        return 4

    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "mlfabric.demo", module)

    result = CliRunner().invoke(app, ["demo", "--report", str(tmp_path), "--seed", "5"])

    assert result.exit_code == 4
    assert given == [(tmp_path, 5)]
