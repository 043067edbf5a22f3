"""Several jobs on one fabric: one after the other, at once, and one that goes on with what another one left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import Start, wait_until

pytestmark = pytest.mark.processes

TRAIN = """
    import sys, torch, mlfabric

    size, options = int(sys.argv[1]), eval(sys.argv[2])
    model = torch.nn.Linear(size, 1)
    with mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=0.01), **options) as worker:
        print("begins at", worker.get().number)
        for _ in range(3):
            model(torch.ones(2, size)).sum().backward()
            worker.push()
            worker.get()
"""
TRY = """
    import torch, mlfabric

    model, rule = torch.nn.Linear(4, 1), mlfabric.RuleSpec(lr=0.01)
    refusal = None
    try:
        mlfabric.register_as_worker(model, rule=rule)
    except mlfabric.RefusedError as error:
        refusal = error
    with mlfabric.register_as_worker(model, rule=rule, keep=True, resume=True) as worker:
        print("begins at", worker.get().number)
    if refusal is not None:
        raise refusal
"""
WAIT = """
    import pathlib, sys, time, torch, mlfabric

    model = torch.nn.Linear(int(sys.argv[1]), 1)
    with mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=0.01)) as worker:
        print("trains as", worker.name, flush=True)
        while not pathlib.Path(sys.argv[2]).exists():
            worker.get()
            model(torch.ones(2, int(sys.argv[1]))).sum().backward()
            worker.push()
            time.sleep(0.01)
"""


def train(start: Start, fabric: str, size: int, options: str = "{}", *flags: str, workers: int = 1) -> tuple[int, str]:
    """Train a model of ``size`` weights for three steps, with these options of ``register_as_worker``."""
    command = ("run", "-n", str(workers), "--scheduler", fabric, *flags, "SCRIPT", str(size), options)
    return start(*command, script=TRAIN).finish()


def models(start: Start, fabric: str) -> dict[str, dict[str, object]]:
    """Return what ``mlfabric models`` lists, by name."""
    code, out = start("models", "--json", "--scheduler", fabric).finish()
    assert code == 0, out
    return {model["name"]: model for model in json.loads(out)}


def model_bytes(start: Start, fabric: str) -> int:
    """Return how much memory the servers have for models."""
    code, out = start("status", "--json", "--scheduler", fabric).finish()
    assert code == 0, out
    return sum(int(member.get("memory_bytes", {}).get("model", 0)) for member in json.loads(out)["members"])


def test_a_second_job_begins_anew_and_the_memory_of_the_first_is_free(start, fabric):
    code, out = train(start, fabric, 100_000, workers=2)
    assert code == 0, out
    assert "begins at 0" in out
    assert models(start, fabric) == {}
    wait_until(lambda: model_bytes(start, fabric) == 0, "the model's memory is given back")
    code, out = train(start, fabric, 7)
    assert code == 0, out
    assert "begins at 0" in out


def test_two_jobs_with_scripts_of_their_own_train_at_once(start, fabric, tmp_path: Path):
    enough = tmp_path / "enough"
    first, second = (
        start("run", "--scheduler", fabric, "SCRIPT", str(size), str(enough), script=WAIT) for size in (5, 6)
    )
    names = {job.read_until("trains as").split()[-1] for job in (first, second)}
    others = names - {"worker-0"}
    assert len(others) == len(names) - 1 == 1, names
    prefix = others.pop().removesuffix("/worker-0")
    assert models(start, fabric).keys() == {"model", f"{prefix}/model"}
    code, out = start("models", "remove", "model", "--scheduler", fabric).finish()
    assert (code, "is in use: worker-0 train it" in out) == (2, True), out
    enough.touch()
    for job in (first, second):
        code, out = job.finish()
        assert code == 0, out
    assert models(start, fabric) == {}


def test_a_model_that_is_kept_is_gone_on_with_begun_anew_or_removed(start, fabric):
    assert train(start, fabric, 4, "{'keep': True}")[0] == 0
    listed = models(start, fabric)["model"]
    assert (listed["version"], listed["kept"], listed["workers"]) == (3, True, [])
    code, out = start("run", "--scheduler", fabric, "SCRIPT", script=TRY).finish()
    assert code == 1, out
    assert "model 'model' is there from a former job, at version 3" in out
    assert "resume=True" in out
    assert "mlfabric models remove model" in out
    assert "begins at 3" in out
    code, out = train(start, fabric, 9, "{'keep': True, 'resume': False}")
    assert (code, "begins at 0" in out) == (0, True), out
    assert start("models", "remove", "model", "--scheduler", fabric).finish()[0] == 0
    assert models(start, fabric) == {}
    assert start("models", "remove", "model", "--scheduler", fabric).finish()[0] == 2
