"""The examples run as their texts say, and stay as short as they promise."""

from __future__ import annotations

import ast
import difflib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MLFABRIC = (sys.executable, "-m", "mlfabric")
WITHIN_S = 120


def code_lines(name: str) -> list[str]:
    """Return an example's lines without its docstring and without blank ones."""
    text = (EXAMPLES / name).read_text()
    docstring = ast.parse(text).body[0]
    return [line for line in text.splitlines()[docstring.end_lineno :] if line.strip()]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("digits_loop.py", 5),
        ("digits_optimizer.py", 3),
        ("digits_synchronous.py", 4),
        ("digits_stale.py", 4),
        ("digits_all_reduce.py", 5),
    ],
)
def test_the_fabric_takes_few_more_lines_than_one_process(name, most):
    difference = difflib.ndiff(code_lines("digits_single.py"), code_lines(name))
    assert 0 < sum(line.startswith("+ ") for line in difference) <= most


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_single_process_example_trains():
    assert float(run(sys.executable, str(EXAMPLES / "digits_single.py"), "--steps", "100").split()[-1]) > 0.5


@pytest.mark.processes
def test_two_workers_share_the_digits(free_port):
    address = f"127.0.0.1:{free_port}"
    out = run(*MLFABRIC, "run", "-n", "2", "--scheduler", address, str(EXAMPLES / "digits_shared.py"), "--epochs", "4")
    assert len(out.splitlines()) == 2
    assert min(float(line.split()[-1]) for line in out.splitlines()) > 0.5


@pytest.mark.processes
@pytest.mark.parametrize("name", ["digits_loop.py", "digits_optimizer.py"])
def test_two_workers_train_with_each_example(name, free_port):
    address = f"127.0.0.1:{free_port}"
    out = run(*MLFABRIC, "run", "-n", "2", "--scheduler", address, str(EXAMPLES / name), "--steps", "60")
    accuracies = {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()}
    assert set(accuracies) == {"[0]", "[1]"}
    assert min(accuracies.values()) > 0.5


@pytest.mark.processes
@pytest.mark.parametrize("name", ["digits_synchronous.py", "digits_stale.py", "digits_all_reduce.py"])
def test_workers_train_together_in_each_mode(name, free_port):
    address = f"127.0.0.1:{free_port}"
    out = run(*MLFABRIC, "run", "-n", "2", "--scheduler", address, str(EXAMPLES / name), "--steps", "100")
    accuracies = {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()}
    assert set(accuracies) == {"[0]", "[1]"}
    assert min(accuracies.values()) > 0.5
    if name != "digits_stale.py":
        assert accuracies["[0]"] == accuracies["[1]"]


@pytest.mark.processes
def test_a_server_of_ones_own_hears_of_commits_and_gets(free_port):
    address = f"127.0.0.1:{free_port}"
    command = [sys.executable, str(EXAMPLES / "custom_server.py"), "--scheduler", address, "--every", "10"]
    with (
        subprocess.Popen([*MLFABRIC, "scheduler", "--port", str(free_port)], stderr=subprocess.DEVNULL) as scheduler,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            job = (
                "run",
                "-n",
                "2",
                "--no-up",
                "--scheduler",
                address,
                str(EXAMPLES / "digits_loop.py"),
                "--steps",
                "15",
            )
            wait_for(address)
            run(*MLFABRIC, *job)
            server.send_signal(signal.SIGINT)
            assert server.stdout is not None
            lines = server.stdout.read().splitlines()
            assert server.wait(WITHIN_S) == 0
        finally:
            server.kill()
            scheduler.terminate()
    assert any(line.startswith("model: version 10 by worker-") for line in lines)
    assert lines[-1].startswith("gets: {'worker-0': ")


def wait_for(address: str) -> None:
    """Wait until a scheduler answers."""
    while subprocess.run([*MLFABRIC, "status", "--scheduler", address], check=False, capture_output=True).returncode:
        pass


@pytest.mark.processes
def test_two_workers_teach_a_model_to_write(free_port):
    short = ("--steps", "40", "--width", "48", "--sample", "20")
    address = f"127.0.0.1:{free_port}"
    out = run(*MLFABRIC, "run", "-n", "2", "--scheduler", address, str(EXAMPLES / "char_lm.py"), *short)
    blind = float(out.splitlines()[0].split()[-1])
    assert float(out.split()[-1]) < blind - 1
