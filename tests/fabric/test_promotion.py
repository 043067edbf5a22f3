"""A primary is killed, as a process: its replica takes its place, workers go on without a word, and so it is again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mlfabric.scheduler.followers.replica_sending import Phase
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.programs import Program
from tests.fabric.replicas import RULES, Trainer, replica, replication, trainers, version_of
from tests.fabric.test_replica_kills import replica_process

pytestmark = pytest.mark.processes

BOUND = 6


@contextmanager
def primary(fabric: Fabric) -> Iterator[Program]:
    """Run a server of its own."""
    with Program("-m", "mlfabric", "server", "--scheduler", fabric.scheduler.address, "--name", "server-0") as program:
        yield program


def pushes(fabric: Fabric) -> Any:
    return fabric.scheduler.state.models["model"].pushes


def wait_for_version(fabric: Fabric, number: int) -> None:
    wait_until(lambda: pushes(fabric).version.number >= number, f"version {number} is committed")


def wait_until_followed(fabric: Fabric) -> None:
    wait_until(lambda: replication(fabric).phase is Phase.FOLLOWING, "the model is followed")


def wait_until_promoted(fabric: Fabric, epoch: int) -> None:
    """Wait until a replica serves under the n-th epoch that the scheduler has named."""
    wanted = fabric.version(epoch, 0).epoch
    wait_until(lambda: pushes(fabric).version.epoch == wanted and not pushes(fabric).awaited, "the replica serves")


def distance(trainer: Trainer) -> float:
    """Return how far a trainer's model is from where it is drawn to."""
    trainer.worker.get()
    return float((trainer.weights.detach() - 1).norm())


def test_a_killed_primary_is_replaced_by_its_replica_and_that_one_by_the_next():
    with (
        Fabric() as fabric,
        primary(fabric) as first,
        trainers(fabric, RULES["momentum at the server"]) as found,
        replica_process(fabric, "--div-max-updates", str(BOUND)) as second,
    ):
        wait_until_followed(fabric)
        for trainer in found:
            trainer.start()
        wait_for_version(fabric, 20)
        first.kill()
        wait_until_promoted(fabric, epoch=2)
        assert pushes(fabric).lost <= BOUND
        number = pushes(fabric).version.number
        with replica(fabric.scheduler.address, div_max_updates=BOUND, name="replica-1") as third:
            wait_until_followed(fabric)
            wait_for_version(fabric, number + 20)
            second.kill()
            wait_until_promoted(fabric, epoch=3)
            assert pushes(fabric).lost <= 2 * BOUND
            wait_for_version(fabric, pushes(fabric).version.number + 20)
            for trainer in found:
                trainer.end()
            wait_until(lambda: version_of(third) == pushes(fabric).version.number, "the scheduler has heard of all")
            assert third._service.server is not None
            third._service.server._state.validate()
            assert all(distance(trainer) < 3 for trainer in found)
