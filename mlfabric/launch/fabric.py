"""An embedded fabric: scheduler, servers, aggregators and monitor as processes of this machine, under supervision."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import mlfabric
from mlfabric.errors import RefusedError, UnavailableError
from mlfabric.launch.fabric_services import (
    METRICS_PORT,
    REPLICA,
    REPLICATED,
    SCHEDULER,
    FabricOptions,
    Service,
    changed_places,
    local_address,
    metrics_of,
    metrics_port,
    services,
)
from mlfabric.launch.first_of import first_of
from mlfabric.launch.pairs import Pair
from mlfabric.launch.ports import check_free, free_port
from mlfabric.launch.processes import Nursery, Program
from mlfabric.launch.prometheus import Prometheus
from mlfabric.launch.scheduler_status import HERE, StatusReader
from mlfabric.launch.supervisor import Start, Supervised
from mlfabric.security import CLIENT, Security
from mlfabric.v1 import fabric_pb2

__all__ = ["Fabric"]

_ENVIRONMENT_PREFIX = "MLFABRIC_"
T = TypeVar("T")


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what services inherit: no settings, which come by flag and file; and where this package is."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_ENVIRONMENT_PREFIX)}
    home = Path(mlfabric.__file__).resolve().parent.parent
    if home.name not in ("site-packages", "dist-packages"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), kept.get("PYTHONPATH", ""))))
    return kept


class Fabric:
    """An embedded fabric.

    Args:
        nursery: starts its processes.
        options: see there.

    Raises:
        UsageError: the scheduler's port is in use, a certificate cannot be used, or there should be some; there is no
            Prometheus and there should be.

    Attributes:
        prometheus: address of its page; "" without one.
    """

    def __init__(self, nursery: Nursery, options: FabricOptions) -> None:
        self._security = Security.of(options.tls, CLIENT, insecure=options.insecure)
        self._security.check(options.bind, "--bind")
        self._nursery = nursery
        if options.port:
            check_free(options.bind, options.port)
        self.port = options.port or free_port(options.bind)
        self._services = services(options, self.port)
        for port in filter(None, map(metrics_port, self._services)):
            check_free(options.bind, port, METRICS_PORT)
        for role in {service.arguments[0] for service in self._services}:
            Security.of(options.tls, role, insecure=options.insecure)
        self._supervised = [Supervised(nursery, partial(_program, service)) for service in self._services]
        if options.has_replica:
            self._supervise_pair(options)
        self.prometheus = ""
        if options.prometheus is not None:
            beside = Prometheus(options.prometheus, metrics_of(self._services, options), options.tls)
            self._supervised.append(Supervised(nursery, lambda start: None if start is Start.SPARE else beside.program))
            self.prometheus = beside.address
        advertised = options.advertised or options.bind
        self.scheduler = f"{advertised}:{self.port}"
        self._dial = local_address(options, self.port)

    def _supervise_pair(self, options: FabricOptions) -> None:
        """Let server-0 and its replica be either when they are started again."""
        names = [service.name for service in self._services]
        places = names.index(REPLICATED), names.index(REPLICA)
        own, changed = [self._services[place] for place in places], changed_places(options, self.port)
        supervised = [self._supervised[place] for place in places]
        pair = Pair(self._is_served, lambda number: any(p.is_running for p in supervised[number].processes))

        def program(number: int, start: Start) -> Program | None:
            is_as_before = pair.is_replica(number) == (number == 1)
            return _program(own[number] if is_as_before else changed[1 - number], start)

        for number in range(2):
            supervised[number].program = partial(program, number)
            supervised[number].prepare = partial(pair.prepare, number)

    async def _is_served(self) -> bool | None:
        """Tell whether there is server-0; None if no scheduler says so."""
        async with StatusReader(self._dial, security=self._security) as reader:
            try:
                status = await reader.read()
            except (RefusedError, UnavailableError):
                return None
        return any(member.name == REPLICATED and member.state == HERE for member in status.members)

    async def run(self, work: Callable[[Fabric], Awaitable[T]]) -> T:
        """Keep all services running while work is done; then end them, and return what the work returns.

        The members end first, which say good-bye to the scheduler.

        Raises:
            UsageError: a service cannot use its settings.
        """

        async def working() -> T:
            return await work(self)

        try:
            return await first_of(working(), *(supervised.keep() for supervised in self._supervised))
        finally:
            scheduler, *members = self._supervised
            for group in (members, [scheduler]):
                await self._nursery.end([process for supervised in group for process in supervised.processes])

    async def ready(self) -> fabric_pb2.GetStatusResponse:
        """Wait until workers can train; return the status then."""
        members = frozenset(service.name for service in self._services) - {SCHEDULER}
        async with StatusReader(self._dial, security=self._security) as reader:
            return await reader.wait_for(members)


def _program(service: Service, start: Start) -> Program | None:
    if start is Start.SPARE and not service.spare:
        return None
    added = {Start.FIRST: (), Start.AGAIN: service.again, Start.SPARE: service.spare}[start]
    return Program(
        name=service.name,
        argv=(sys.executable, "-P", "-m", "mlfabric", *service.arguments, *added),  # -P: no modules from here
        environment=_environment(os.environ),
        stands_by=start is Start.SPARE,
    )
