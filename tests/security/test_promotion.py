"""Under TLS, with certificates that name their holders: a replica takes its server's place, is let in again, and heard
by monitors.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.protocol import Committed, ModelVersion
from mlfabric.scheduler.followers.replica_sending import Phase
from mlfabric.security import Identity, Security
from mlfabric.security.authority import certify
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.programs import Program
from tests.fabric.replicas import replica, replication
from tests.security.conftest import worker_settings

pytestmark = pytest.mark.processes


def push(worker: mlfabric.Worker, model: dict[str, torch.Tensor]) -> ModelVersion:
    """Push an update of the newest model; return the version that it made."""
    worker.get()
    model["w"].grad = torch.ones_like(model["w"])
    outcome = worker.push().result()
    assert isinstance(outcome, Committed)
    return outcome.version


def test_a_replica_s_certificate_is_good_for_its_server_s_name_and_under_the_next_scheduler_too(
    certificates: Path,
) -> None:
    own = certify(certificates, Identity(role="server", name="heir"), days=1)
    security = Security.of(certificates, "scheduler")
    model = {"w": torch.zeros(50_000, requires_grad=True)}  # too long to come with its offer, which is not recorded
    with Fabric(security=security) as fabric:
        address = fabric.scheduler.address
        arguments = ("-m", "mlfabric", "server", "--scheduler", address, "--tls", str(certificates))
        tcp = TcpOptions(security=Security.of(own, "server"))
        with (
            Program(*arguments) as primary,
            Program("-m", "mlfabric", "monitor", "--scheduler", address, "--tls", str(certificates)),
            replica(address, name="heir", tcp=tcp, div_max_updates=0) as heir,
        ):
            settings = worker_settings(address, "w", certificates)
            with mlfabric.register_as_worker(model, model_name="model", settings=settings) as worker:
                assert push(worker, model) == fabric.version(1, 1)
                wait_until(lambda: replication(fabric).phase is Phase.FOLLOWING, "the model is followed")
                wait_until(lambda: replication(fabric).version.number == 1, "all is at the replica")
                wait_until(lambda: "monitor-0" in fabric.scheduler.state.context.members, "the monitor is there")
                primary.kill()
                assert push(worker, model) == (promoted := fabric.version(2, 2))
                assert push(worker, model) == (promoted.epoch, 3)
                assert heir._service.server is not None
                reporter = heir._service.server._shell.reporter
                wait_until(lambda: reporter.sent, "the monitor has taken what the new server reports")
                fabric.restart_scheduler(security=security)
                assert push(worker, model) == (promoted.epoch, 4)
