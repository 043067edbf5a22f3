"""``mlfabric run`` and ``up``: options that mean nothing are refused, and what a fabric protects is said."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

TRAIN = """
    import torch, mlfabric

    model = torch.nn.Linear(3, 1)
    with mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=0.01)) as worker:
        print("begins at", worker.get().number)
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            worker.push()
            worker.get()
"""


@pytest.mark.parametrize("option", [("--servers", "3"), ("--server-up", "1M"), ("--checkpoint-dir", "kept")])
def test_an_option_of_a_fabric_that_answers_already_is_refused(start, fabric, option):
    code, out = start("run", "--scheduler", fabric, *option, "SCRIPT", script="print('it ran')").finish()
    assert code == 2, out
    assert f"so {option[0]} would have no effect" in out
    assert "it ran" not in out


def test_up_says_which_server_has_a_replica_and_starts_without_a_warning(start):
    fabric = start("up", "--port", "0", "--servers", "2", "--replica-div-max-updates", "8")
    fabric.read_until("mlfabric is up")
    assert "at most 8 updates behind" in fabric.read_until("replica-0 protects server-0")
    fabric.read_until("server-1 has no replica: what it holds is lost with the process")
    fabric.signal(signal.SIGTERM)
    code, out = fabric.finish()
    assert code == 0, out
    assert "WARNING" not in out


def test_run_goes_on_from_the_checkpoints_of_the_run_before(lone_job, tmp_path: Path):
    kept = ("--checkpoint-dir", str(tmp_path / "kept"))
    code, out = lone_job(TRAIN, *kept, workers=1)
    assert (code, "begins at 0" in out) == (0, True), out
    assert "WARNING" not in out
    code, out = lone_job(TRAIN, *kept, "--resume", workers=1)
    assert (code, "begins at 3" in out) == (0, True), out
    assert "WARNING" not in out
