"""What is killed around a replica, as processes: the bound holds, training goes on, nothing is applied twice."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mlfabric
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.members import silence
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.programs import Program
from tests.fabric.replicas import (
    RULES,
    Trainer,
    apart_from,
    at_version,
    is_gated,
    remember,
    replica,
    replication,
    trainers,
    version_of,
    wait_for_gate,
    wait_for_primary,
    wait_for_replica,
)

pytestmark = pytest.mark.processes

RULE = RULES["momentum at the workers"]
VICTIM = """
    import sys
    import torch
    import mlfabric

    weights = torch.zeros(int(sys.argv[1]), dtype=torch.float64, requires_grad=True)
    rule = mlfabric.RuleSpec(lr=0.05, momentum=0.9, momentum_at=mlfabric.MomentumAt.WORKERS)
    worker = mlfabric.register_as_worker({"weights": weights}, rule=rule)
    worker.get()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            weights.grad = torch.full_like(weights, 0.01)
            handle = worker.push()
            print("pushed", flush=True)
            handle.result()
            worker.get()
        print("done", flush=True)
"""


@contextmanager
def victim(fabric: Fabric, folder: Path, elements: int = 64) -> Iterator[Program]:
    """Run a worker that has the model and pushes as many updates as it is told."""
    script = folder / "victim.py"
    script.write_text(textwrap.dedent(VICTIM))
    surroundings = {"MLFABRIC_SCHEDULER": fabric.scheduler.address, "MLFABRIC_NAME": "victim"}
    with Program(str(script), str(elements), **surroundings) as program:
        program.hear("ready")
        yield program


@contextmanager
def replica_process(fabric: Fabric, *options: str) -> Iterator[Program]:
    """Run a replica of its own."""
    dial = ("--scheduler", fabric.scheduler.address, "--replica-of", "server-0", "--name", "mortal")
    with Program("-m", "mlfabric", "server", *dial, *options) as program:
        yield program


class Watch:
    """Looks at every commit of a primary: how far it is ahead of a replica that it is bound to, and whose update it is.

    Args:
        server: the primary.
    """

    def __init__(self, server: Any) -> None:
        self.committed: list[UpdateId] = []
        self.furthest = 0
        self._lead = server._service._state.models["model"].lead
        server.register_update_callback(self._look)

    def _look(self, _model: str, commit: Any, _view: Any) -> None:
        self.committed.append(commit.update)
        if self._lead.is_followed:
            ahead = self._lead._lead(self._lead._steps)
            self.furthest = max(self.furthest, sum(len(step.members) for step in ahead))

    def assert_once(self) -> None:
        """Nothing was committed twice."""
        assert len(self.committed) == len(set(self.committed))


def steps(trainer: Trainer, count: int) -> None:
    for _ in range(count):
        assert isinstance(trainer.step(), mlfabric.Committed)


def test_a_worker_killed_with_what_it_folded_costs_a_seed_and_no_bound(tmp_path: Path) -> None:
    bound = 20
    with (
        Fabric() as fabric,
        trainers_behind(fabric) as (server, trainer),
        replica(fabric.scheduler.address, div_max_updates=bound) as follower,
        victim(fabric, tmp_path) as dying,
    ):
        wait_for_gate(server)
        watch, versions = Watch(server), remember(server)
        dying.tell("3")
        dying.hear("done")
        wait_until(lambda: len(replication(fabric)._windows["victim"].members) == 3, "all three are folded")
        seeded = version_of(follower)
        dying.kill()
        steps(trainer, 2)
        wait_until(lambda: replication(fabric).terms_begun_by_hole == 1, "the hole is seen")
        wait_for_replica(follower, seeded + 3)
        steps(trainer, 2 * bound)
        wait_for_replica(follower, max(versions) - bound)
        assert apart_from(versions, follower) < 1e-10
        assert watch.furthest <= bound
        watch.assert_once()
        assert sum(update.worker == "victim" for update in watch.committed) == 3


@contextmanager
def trainers_behind(fabric: Fabric, elements: int = 64) -> Iterator[tuple[Any, Trainer]]:
    """Run a server and one worker in threads."""
    server = fabric.server()
    with trainers(fabric, RULE, count=1, elements=elements) as found:
        yield server, found[0]


def test_an_update_whose_worker_is_killed_before_the_replica_has_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "STOPPED_NS", 60_000_000_000)  # else a slow machine loses the replica meanwhile
    elements = 2_000_000  # more than the sockets' buffers hold for a replica that does not read
    with (
        Fabric() as fabric,
        trainers_behind(fabric, elements) as (server, trainer),
        replica_process(fabric, "--div-max", "0") as follower,
        victim(fabric, tmp_path, elements) as dying,
    ):
        wait_for_gate(server)
        watch, model = Watch(server), fabric.scheduler.state.models["model"]
        steps(trainer, 2)
        follower.signal(signal.SIGSTOP)
        dying.tell("1")
        dying.hear("pushed")
        wait_until(lambda: any(p.received for p in list(model.pushes.planned.values())), "the primary has it")
        dying.kill()
        wait_until(lambda: fabric.scheduler.state.context.members["victim"].state.value != "here", "it is gone")
        follower.signal(signal.SIGCONT)
        wait_until(lambda: model.dropped[mlfabric.DropReason.NOT_REPLICATED] == 1, "the primary drops it")
        steps(trainer, 5)
        assert watch.furthest == 0
        watch.assert_once()
        assert not [update for update in watch.committed if update.worker == "victim"]


def test_a_replica_killed_while_it_is_sent_to_shuts_the_gate_until_it_has_left_and_another_one_follows() -> None:
    bound, elements = 4, 100_000
    with Fabric(silence_s=3.0) as fabric, trainers_behind(fabric, elements) as (server, trainer):
        with replica_process(fabric, "--div-max-updates", str(bound), "--down", "4M") as dying:
            wait_for_gate(server)
            watch = Watch(server)
            trainer.start()
            hosted = server._service._state.models["model"]
            wait_until(lambda: replication(fabric)._in_flight, "something is on its way to it")
            dying.kill()
            wait_until(lambda: hosted.lead.reported is not None, "the gate is shut")
            stuck = at_version(server)
            assert is_gated(server)
        wait_until(lambda: not is_gated(server), "the primary is told that there is none")
        assert watch.furthest == bound
        wait_for_primary(server, stuck + 2 * bound)
        versions = remember(server)
        with replica(fabric.scheduler.address, name="next", div_max_updates=bound) as follower:
            wait_for_gate(server)
            seeded = version_of(follower)
            wait_for_replica(follower, seeded + 10)
            trainer.end()
            wait_for_replica(follower, max(versions) - bound)
            assert apart_from(versions, follower) < 1e-10
        assert watch.furthest <= bound
        watch.assert_once()
