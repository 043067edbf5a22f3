"""What transfers that were under way bring once their worker has left."""

from __future__ import annotations

import asyncio

import pytest
import torch

from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.errors import FabricClosedError
from mlfabric.protocol import Fetch, GetId, JobClaim, ModelVersion
from mlfabric.telemetry import WorkerMetrics
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.daemon import WorkerDaemon
from tests.fabric.harness import spec_of

NOBODY = "127.0.0.1:9"
SETTINGS = WorkerSettings(scheduler=NOBODY, name="w", tcp=TcpOptions())


async def test_a_model_that_comes_when_its_worker_has_left_is_for_nobody() -> None:
    spec = spec_of({"w": torch.zeros(4, requires_grad=True)})
    daemon = WorkerDaemon(SETTINGS, spec, None, WorkerMetrics(), JobClaim())
    got = daemon.calls.get(memoryview(bytearray(spec.layout.size_bytes)), ModelVersion(0, 0))
    get = GetId("w", daemon._session.member.incarnation, 0)
    daemon._take_in(Fetch(to="w", get=get, source="s", address=NOBODY, ticket=bytes(16), reason="its turn"))
    session = asyncio.create_task(asyncio.sleep(0))
    await session
    daemon._session_ended(session)
    daemon._take_in(act.ModelReceived(get=get, version=ModelVersion(1, 3)))
    with pytest.raises(FabricClosedError, match="has left the fabric"):
        await got
    await daemon.calls.close()
