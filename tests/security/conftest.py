"""Certificates that are no good, and a fabric under TLS to which callers come with whatever they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.security import ROLES, Identity, Security
from mlfabric.security.authority import certify, make_authority
from mlfabric.security.identity import dns_name
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from tests.fabric.harness import Fabric, wait_until


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make certificates by another authority; return its folder."""
    folder = tmp_path_factory.mktemp("foreign")
    make_authority(folder, days=1)
    for role in ROLES:
        certify(folder, Identity(role=role), days=1)
    return folder


@pytest.fixture(scope="session")
def expired(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make certificates by the right authority that expired yesterday; return a folder of them."""
    folder = tmp_path_factory.mktemp("expired")
    for name in ("ca.pem", "ca.key"):
        (folder / name).write_bytes((certificates / name).read_bytes())
    for role in ROLES:
        certify(folder, Identity(role=role), days=-1)
    return folder


@dataclass
class Caller:
    """One with a certificate, good or not, or without one."""

    address: str
    folder: Path | None = None
    expects: str = "scheduler"
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Any:
        """Return a stub of the scheduler."""
        if self.folder is None:
            channel = grpc.insecure_channel(self.address)
        else:
            pem = [(self.folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
            named = [("grpc.ssl_target_name_override", dns_name(self.expects))]
            channel = grpc.secure_channel(self.address, grpc.ssl_channel_credentials(*pem), options=named)
        return fabric_pb2_grpc.FabricServiceStub(self._stack.enter_context(channel))

    def __exit__(self, *raised: object) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def secured(certificates: Path) -> Iterator[Fabric]:
    """Run a scheduler and a server under TLS."""
    with Fabric(security=Security.of(certificates, "scheduler")) as running:
        running.server(tcp=TcpOptions(security=Security.of(certificates, "server")))
        with Caller(running.scheduler.address, certificates / "client") as stub:
            wait_until(lambda: stub.GetStatus(fabric_pb2.GetStatusRequest()).members, "the server has joined")
        yield running


def worker_settings(address: str, name: str, folder: Path | None) -> WorkerSettings:
    """Return the surroundings of a worker with the certificate of a folder."""
    tcp = TcpOptions(security=Security.of(folder, "worker"))
    return WorkerSettings(scheduler=address, name=name, host=f"host-{name}", tcp=tcp)
