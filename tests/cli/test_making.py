from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import mlfabric
from mlfabric.cli import bench_command
from mlfabric.cli.app import app
from mlfabric.cli.bench_settings import settings_of
from mlfabric.errors import UsageError

SMALL = ("--set", "elements=2", "--set", "rounds=1")


def refusal(*arguments: str) -> str:
    """Run ``mlfabric bench`` with arguments that it cannot do anything with; return what it says."""
    error = CliRunner().invoke(app, ["bench", *arguments]).exception
    assert isinstance(error, UsageError)
    return str(error)


def test_a_benchmarks_figures_are_printed_and_written(tmp_path: Path):
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(app, ["bench", "divergence", "--json", str(file), *SMALL])

    assert result.exit_code == 0
    assert "gamma_0.9.alignment_0.1.lead_600" in result.output
    assert json.loads(file.read_text())["least_ratio"] > 0


@pytest.mark.parametrize(
    ("name", "setting", "allowed"),
    [
        ("data", "rounds", "KEY=VALUE, as in --set rounds=3"),
        ("data", "=3", "KEY=VALUE, as in --set rounds=3"),
        ("data", "runds=3", "rounds, megabytes"),
        ("data", "rounds=many", "a whole number"),
        ("data", "rounds=1.5", "a whole number"),
        ("data", "rounds=true", "a whole number"),
        ("data", "rounds=[1]", "a whole number"),
        ("links", "seconds=soon", "a number"),
        ("planner", "ready=1", "true or false"),
        ("planner", "sizes=10", "whole numbers, as in [1,2]"),
        ("planner", "sizes=[]", "whole numbers, as in [1,2]"),
        ("restart", "outages_s=[a]", "numbers, as in [0.5,1]"),
        ("fabric", "only=3", "a word"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_is_allowed(name: str, setting: str, allowed: str):
    assert refusal(name, "--set", setting) == f"--set {setting!r}; allowed: {allowed}"


@pytest.mark.parametrize("setting", ["rounds=0", "megabytes=0"])
def test_a_number_out_of_range_is_refused_before_anything_is_started(setting: str):
    assert refusal("data", "--set", setting) == f"--set {setting}; allowed: 1 or more"


@pytest.mark.parametrize("name", bench_command.MEASURED)
def test_every_setting_of_every_benchmark_has_a_type_that_can_be_given(name: str):
    run = bench_command.benchmark(name).run
    for key, parameter in inspect.signature(run).parameters.items():
        default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert settings_of(run, [f"{key}={default}"]) == {key: default}


def test_a_figures_file_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path: Path):
    assert "give a file that can be written" in refusal("paper", "--json", str(tmp_path / "no" / "f.json"))
    assert "give a file that can be written" in refusal("load", "--json", str(tmp_path / "no" / "f.json"))


def test_a_benchmark_that_fails_leaves_no_file_and_takes_none_away(tmp_path: Path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("before")
    for file in (new, old):
        assert "allowed: at least 2 and 1" in refusal("divergence", "--json", str(file), "--set", "rounds=0")
    assert not new.exists()
    assert old.read_text() == "before"


def test_outside_of_a_checkout_benchmarks_say_where_they_are(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(mlfabric, "__file__", str(tmp_path / "mlfabric" / "__init__.py"))
    assert "benchmarks are in a checkout of the project" in refusal("data")


def test_a_demonstration_gets_its_folder_and_seed_and_gives_the_exit_code(monkeypatch, tmp_path: Path):
    module = ModuleType("mlfabric.demo")
    given = []

    def run(report: Path, seed: int, *, shows: bool) -> int:
        given.append((report, seed, shows))
        return 4

    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "mlfabric.demo", module)

    result = CliRunner().invoke(app, ["demo", "--report", str(tmp_path), "--seed", "5", "--open"])

    assert result.exit_code == 4
    assert given == [(tmp_path, 5, True)]
