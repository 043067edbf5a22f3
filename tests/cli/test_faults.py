from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.errors import UsageError
from tests.processes import Start, wait_until


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("--scenarios", "worker_killed,flood"), "--scenarios 'flood'; allowed: worker_killed, "),
        (("--trials", "0"), "--trials 0; allowed: 1 to 1000"),
        (("--json", "/no/such/folder/f.json"), "--json /no/such/folder/f.json"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(options: tuple[str, ...], wrong: str):
    error = CliRunner().invoke(app, ["bench", "faults", *options]).exception

    assert isinstance(error, UsageError)
    assert str(error).startswith(wrong)


@pytest.mark.parametrize("minutes", ["0", "-1", "1441", "nan"])
def test_a_soak_takes_some_time_up_to_a_day(minutes: str):
    error = CliRunner().invoke(app, ["soak", "--minutes", minutes]).exception

    assert isinstance(error, UsageError)
    assert str(error) == f"--minutes {float(minutes):g}; allowed: more than 0, up to 1440"


@pytest.mark.processes
def test_ctrl_c_in_the_middle_leaves_nothing(start: Start, tmp_path: Path):
    command = start("bench", "faults", "--scenarios", "worker_killed", "--trials", "100", "--folder", str(tmp_path))
    wait_until(lambda: any(tmp_path.glob("*/worker-*.jsonl")), "workers train")
    command.signal(signal.SIGINT)
    code, _ = command.finish()

    assert code == 128 + signal.SIGINT
    command.wait_until_nothing_is_left()
