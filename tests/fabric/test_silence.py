"""Training processes that are stopped, hosts that are cut off: the others go on, and who comes back is let in again.

No stream breaks in any of these, and no timeout is short: it is the signs of life alone that tell.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import mlfabric
from benchmarks.nursery import Nursery, Trainer, TrainerOptions
from mlfabric.model.specs import Method
from tests.fabric.harness import Fabric, wait_until

if TYPE_CHECKING:
    from benchmarks.testbed.hosts import Host, Testbed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

METHODS = ["asynchronous", "synchronous", "all_reduce"]
LONG_S = 3600.0
STEPS = 50
FEW_STEPS = 25
SOME = 5


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("trainers")) as nursery:
        yield nursery


@pytest.fixture
def running() -> Iterator[Fabric]:
    with Fabric(silence_s=LONG_S, answer_s=LONG_S, round_patience_s=LONG_S) as running:
        yield running


def three_trainers(
    nursery: Nursery, running: Fabric, folder: Path, method: str, test: str, steps: int = STEPS, **options: Any
) -> list[Trainer]:
    """Start three trainers, the first of which something will happen to, and wait until they train.

    The server keeps checkpoints in the folder, so the model is still there once they have ended.
    """
    if method != "all_reduce":
        running.server(checkpoint_dir=folder / "checkpoints")
    trainers = []
    for i in range(3):
        given = {key: value[i] if isinstance(value, list) else value for key, value in options.items()}
        name = f"{test}-{i}"
        trainers.append(
            nursery.train(
                TrainerOptions(
                    name=name,
                    host=name,
                    scheduler=running.scheduler.address,
                    method=method,
                    workers=3,
                    steps=steps,
                    **given,
                )
            )
        )
    wait_until(lambda: all(len(trainer.steps()) > SOME for trainer in trainers), "all train")
    return trainers


def status_of(running: Fabric, trainer: Trainer) -> tuple[str, str]:
    """Return a worker's state, and what it is doing."""
    return next((m.state, m.activity) for m in running.status().members if m.name == trainer.name)


def await_activity(running: Fabric, trainer: Trainer, doing: str) -> None:
    """Wait until a worker is doing something."""
    wait_until(lambda: doing in status_of(running, trainer)[1], f"it is {doing}")


def go_on(trainers: Sequence[Trainer]) -> None:
    """Wait until all of these have made some more steps."""
    before = [len(trainer.steps()) for trainer in trainers]
    wait_until(
        lambda: all(len(t.steps()) >= n + SOME or t.has_ended for t, n in zip(trainers, before, strict=True)),
        "they go on",
    )


def end_well(
    running: Fabric, trainers: Sequence[Trainer], method: str, steps: int = STEPS, size: int = TrainerOptions.size
) -> None:
    """Wait until all have made their steps, and check that each update was applied once."""
    wait_until(lambda: all(trainer.has_ended for trainer in trainers), "all have ended")
    assert [len(trainer.steps()) for trainer in trainers] == [steps] * len(trainers)
    if method != "all_reduce":
        weights = {"w": torch.zeros(size, requires_grad=True)}
        together = 3 if method == "synchronous" else 1
        options: dict[str, Any] = {"method": Method[method.upper()], "workers": together}
        reader = running.worker(weights, "reader", rule=mlfabric.RuleSpec(lr=1.0), resume=True, **options)
        version = reader.get().number
        # Each update makes a version of its own, or, in synchronous training, all that are there make one. The count
        # does not have what the server committed while the scheduler stood still.
        (model,) = running.status().models
        assert (version if method == "asynchronous" else model.committed) == steps * len(trainers)
        assert torch.equal(weights["w"].detach(), torch.full((size,), float(version)))


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_is_stopped_holds_up_nobody_and_goes_on_when_it_wakes_up(
    nursery: Nursery, running: Fabric, method: str, tmp_path: Path
) -> None:
    victim, *others = trainers = three_trainers(nursery, running, tmp_path, method, f"stopped-{method}")
    for _ in range(2):
        victim.signal(signal.SIGSTOP)
        wait_until(lambda: status_of(running, victim) == ("left", "its process is stopped"), "it is found")
        go_on(others)
        victim.signal(signal.SIGCONT)
        wait_until(lambda: status_of(running, victim)[0] == "here", "it has joined again")
        go_on([victim])
    end_well(running, trainers, method)


@pytest.mark.parametrize("method", ["asynchronous", "synchronous"])
def test_what_a_process_that_is_stopped_was_sending_or_getting_is_void_and_done_again(
    nursery: Nursery, running: Fabric, method: str, tmp_path: Path
) -> None:
    trainers = three_trainers(
        nursery, running, tmp_path, method, f"sending-{method}", FEW_STEPS, size=300_000, up=100_000_000
    )
    victim, *others = trainers
    for doing in ("sending", "getting the model"):
        await_activity(running, victim, doing)
        victim.signal(signal.SIGSTOP)
        wait_until(lambda: status_of(running, victim) == ("left", "its process is stopped"), "it is found")
        go_on(others)
        victim.signal(signal.SIGCONT)
        go_on([victim])
    end_well(running, trainers, method, FEW_STEPS, size=300_000)


@contextmanager
def services(head: Host, method: str, log: Path) -> Iterator[str]:
    """Run a scheduler and a server on an emulated host, which write a log; give the scheduler's address."""
    long = ("--silence", str(LONG_S), "--answer", str(LONG_S), "--round-patience", str(LONG_S))
    address = f"{head.address}:50061"
    commands: list[tuple[str, ...]] = [("scheduler", *long)]
    if method != "all_reduce":
        commands.append(("server", "--scheduler", address, "--host", head.name))
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                [*head.command, sys.executable, "-m", "mlfabric", *command, "--bind", head.address, "--insecure"],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
                stderr=stack.enter_context(log.open("ab")),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield address


@pytest.mark.root
@pytest.mark.parametrize("method", METHODS)
def test_a_host_whose_cable_is_pulled_out_holds_up_nobody_and_is_back_once_it_is_plugged_in(
    nursery: Nursery, four_hosts: Testbed, method: str, tmp_path: Path
) -> None:
    head, *hosts = four_hosts.hosts
    log = tmp_path / "services.log"
    with services(head, method, log) as scheduler:
        options: dict[str, Any] = {"scheduler": scheduler, "method": method, "workers": 3}
        trainers = [
            nursery.train(
                TrainerOptions(
                    name=f"cut-{method}-{i}", host=host.name, bind=host.address, namespace=host.namespace, **options
                )
            )
            for i, host in enumerate(hosts)
        ]
        wait_until(lambda: all(len(trainer.steps()) > 4 * SOME for trainer in trainers), "all train")
        found = f"{trainers[0].name} is waited for no longer: nothing is heard of its host any more"
        for times in (1, 2):
            four_hosts.cut_off(hosts[0].name)
            wait_until(lambda times=times: log.read_text().count(found) == times, "it is found")  # type: ignore[misc]
            go_on(trainers[1:])
            four_hosts.cut_off(hosts[0].name, cut=False)
            go_on(trainers)
        assert log.read_text().count(found) == 2, "it was found once each time"
