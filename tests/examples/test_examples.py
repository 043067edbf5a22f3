"""The examples run as their texts say, and stay as short as they promise."""

from __future__ import annotations

import ast
import difflib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fabric.harness import Fabric, fabric

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
        ("digits_diloco.py", 4),
        ("digits_sma.py", 4),
        ("digits_gossip.py", 4),
        ("digits_learners.py", 5),
        ("digits_dropcompute.py", 8),
    ],
)
def test_the_fabric_takes_few_more_lines_than_one_process(name, most):
    difference = difflib.ndiff(code_lines("digits_single.py"), code_lines(name))
    assert 0 < sum(line.startswith("+ ") for line in difference) <= most


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_two(name: str, *arguments: str) -> str:
    """Run an example with two workers, through a fabric in this process; return what they print."""
    with fabric() as running:
        job = ("run", "-n", "2", "--no-up", "--scheduler", running.scheduler.address, str(EXAMPLES / name))
        return run(*MLFABRIC, *job, *arguments)


def accuracies(out: str) -> dict[str, float]:
    """Return what each rank says at its end."""
    return {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()}


@pytest.mark.parametrize("name", ["digits_single.py", "digits_learners.py"])
def test_the_examples_of_one_process_train(name):
    assert float(run(sys.executable, str(EXAMPLES / name), "--steps", "200").split()[-1]) > 0.5


@pytest.mark.processes
def test_two_workers_share_the_digits(free_port):
    address = f"127.0.0.1:{free_port}"
    out = run(*MLFABRIC, "run", "-n", "2", "--scheduler", address, str(EXAMPLES / "digits_shared.py"), "--epochs", "4")
    assert len(out.splitlines()) == 2
    assert min(accuracies(out).values()) > 0.5


@pytest.mark.processes
def test_two_workers_train_with_an_optimizer():
    found = accuracies(run_two("digits_optimizer.py", "--steps", "60"))
    assert set(found) == {"[0]", "[1]"}
    assert min(found.values()) > 0.5


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [
        "digits_synchronous.py",
        "digits_stale.py",
        "digits_all_reduce.py",
        "digits_diloco.py",
        "digits_sma.py",
        "digits_gossip.py",
        "digits_dropcompute.py",
    ],
)
def test_workers_train_together_in_each_method(name):
    found = accuracies(run_two(name, "--steps", "100"))
    assert set(found) == {"[0]", "[1]"}
    assert min(found.values()) > 0.5
    if name not in ("digits_stale.py", "digits_diloco.py"):
        assert found["[0]"] == found["[1]"]


@pytest.mark.processes
def test_a_server_and_a_replica_of_ones_own_read_versions_while_two_workers_train():
    with Fabric() as running, ExitStack() as stack:
        command = [sys.executable, str(EXAMPLES / "custom_server.py"), "--scheduler", running.scheduler.address]
        server = stack.enter_context(program(*command, "--every", "10"))
        replica = stack.enter_context(program(*command, "--replica-of", "server-0"))
        loop = (str(EXAMPLES / "digits_loop.py"), "--steps", "60")
        out = run(*MLFABRIC, "run", "-n", "2", "--no-up", "--scheduler", running.scheduler.address, *loop)
        followed, lines = ended(replica), ended(server)
    assert set(accuracies(out)) == {"[0]", "[1]"}
    assert min(accuracies(out).values()) > 0.5
    assert any(line.startswith("model: version 10 by worker-") for line in lines)
    assert lines[-1].startswith("gets: {'worker-0': ")
    versions = [int(line.split()[6].rstrip(",")) for line in followed]
    assert versions == sorted(set(versions))
    assert len(versions) > 1


@contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that goes on until it is told to end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def ended(running: subprocess.Popen[str]) -> list[str]:
    """Tell a program to end; return what it has said."""
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    lines = running.stdout.read().splitlines()
    assert running.wait(WITHIN_S) == 0
    return lines


@pytest.mark.processes
def test_two_workers_teach_a_model_to_write():
    out = run_two("char_lm.py", "--steps", "40", "--width", "48", "--sample", "20")
    blind = float(out.splitlines()[0].split()[-1])
    assert float(out.split()[-1]) < blind - 1
