"""What the commands of services that move tensors have in common: the data channel, the metrics page, the running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn, Protocol

import typer
from prometheus_client import CollectorRegistry

from mlfabric.channels import TcpOptions
from mlfabric.cli.run_service import serve
from mlfabric.config import parse_ports, parse_rate
from mlfabric.security import Security
from mlfabric.telemetry import MetricsPage

__all__ = ["Mover", "data_channel", "move"]


class Mover(Protocol):
    """A service that moves tensors."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then drain."""


def data_channel(
    bind: str, advertise: str, data_ports: str, up: str, down: str, most_connections: int, security: Security
) -> TcpOptions:
    """Return the data channel that a command's options describe.

    Raises:
        UsageError: one of them is malformed or out of range.
    """
    return TcpOptions(
        bind=bind,
        advertised_host=advertise,
        ports=parse_ports(data_ports),
        up_bps=parse_rate(up),
        down_bps=parse_rate(down),
        most_connections=most_connections,
        security=security,
    )


def move(make: Callable[[], Mover], registry: CollectorRegistry, tcp: TcpOptions, metrics_port: int | None) -> NoReturn:
    """Run a service until a signal ends it, with a metrics page if a port is given; end the command with its code.

    Raises:
        FabricError: the service cannot run.
    """

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        service = make()
        ready()
        await service.run(stop)

    with _page(registry, tcp, metrics_port):
        raise typer.Exit(serve(run))


def _page(registry: CollectorRegistry, tcp: TcpOptions, port: int | None) -> ExitStack:
    """Return a context with a metrics page, or without if no port is given."""
    stack = ExitStack()
    if port is not None:
        page = MetricsPage(registry, tcp.bind, port, tcp.security)
        page.start()
        stack.callback(page.stop)
    return stack
