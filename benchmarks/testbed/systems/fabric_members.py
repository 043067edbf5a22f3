"""The members of a fabric on the testbed, each a process of its own, as on a cluster: services, aggregators, settings.

The scheduler and the monitor run on the scheduler's host, the server on its own, and an aggregator beside every worker.
Links are known to the fabric by their full rate and by what its own monitor measures; nobody tells it the weather.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType

import grpc
import numpy as np

from benchmarks.testbed.forwarding import ForwardingFile
from benchmarks.testbed.runs import (
    Place,
    RunPlan,
    ServerLog,
    Service,
    worker_name,
)
from mlfabric.aggregator.service import AggregatorOptions, AggregatorService
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.monitor.service import MonitorConfig, MonitorService
from mlfabric.planning import warm_up
from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner
from mlfabric.security import Security
from mlfabric.server.service import ServerOptions, ServerService
from mlfabric.telemetry import AggregatorMetrics, ServerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = [
    "MODEL",
    "REPLICA",
    "SCHEDULER",
    "SERVER",
    "SERVICES",
    "WITHOUT_SERVER",
    "aggregator_beside",
    "aggregators",
    "monitor_config",
    "nothing_applied",
    "prepare",
    "replicas",
    "scheduler",
    "scheduler_address",
    "serve",
    "server",
    "servers",
    "settings_of",
    "tcp_of",
    "until_workers_left",
    "wait_for_all",
]

SCHEDULER = "scheduler"
SERVER = "server"
REPLICA = "replica"
MODEL = "model"
BATCH_WINDOW_S = 0.1
LOOK_S = 0.5
JOIN_S = 60.0
SILENCE_S = 60.0
PR_SET_PDEATHSIG = 1
WITHIN_TESTBED = Security(insecure=True)


def prepare() -> None:
    """Compile the planner if that has not been done here yet; in a run the others would wait for it in vain."""
    warm_up(lambda line: print(line, file=sys.stderr, flush=True))


def settings_of(place: Place) -> WorkerSettings:
    """Return what a worker on a host needs to know of its surroundings."""
    return WorkerSettings(
        scheduler=scheduler_address(place), name=place.name, host=place.name, tcp=tcp_of(place), workers=place.workers
    )


def tcp_of(place: Place) -> TcpOptions:
    """Return the options of a data channel on a host."""
    own = place.addresses[place.name]
    return TcpOptions(bind=own, advertised_host=own, security=WITHIN_TESTBED)


def scheduler_address(place: Place) -> str:
    """Return where members find the scheduler."""
    return f"{place.addresses[SCHEDULER]}:{place.port}"


@contextmanager
def aggregator_beside(place: Place, came: ForwardingFile) -> Iterator[None]:
    """Run an aggregator in a process of its own, which ends with this one; to be entered before any thread begins."""
    worker_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            came.listen()
            _be_aggregator(place, worker_pid)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)  # whatever happens, this process never gets back into the worker's code
    try:
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def _be_aggregator(place: Place, worker_pid: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != worker_pid:
        return  # it has died already, and nothing would end this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    options = AggregatorOptions(
        scheduler=scheduler_address(place), name=_aggregator_name(place.name), host=place.name, tcp=tcp_of(place)
    )
    asyncio.run(_aggregate(options))


async def _aggregate(options: AggregatorOptions) -> None:
    await AggregatorService(options, AggregatorMetrics()).run(asyncio.Event())


def _aggregator_name(worker: str) -> str:
    return f"aggregator-{worker}"


def aggregators(place: Place) -> list[str]:
    """Return the names of the aggregators beside all workers."""
    return [_aggregator_name(name) for name in _workers(place)]


def wait_for_all(place: Place, others: Sequence[str]) -> None:
    """Wait until every worker, and who else is named, has joined."""
    members = {*others, *_workers(place)}
    until_s = time.monotonic() + JOIN_S
    with grpc.insecure_channel(scheduler_address(place)) as channel:
        stub = fabric_pb2_grpc.FabricServiceStub(channel)
        while missing := members - {m.name for m in stub.GetStatus(fabric_pb2.GetStatusRequest()).members}:
            if time.monotonic() > until_s:
                raise TimeoutError(f"{', '.join(sorted(missing))} did not join within {JOIN_S:g} s")
            time.sleep(LOOK_S)


# Services


def scheduler(place: Place, plan: RunPlan) -> ServerLog:
    """Run the scheduler and the monitor until all workers, and servers if there are any, have left."""
    prepare()
    address = place.addresses[place.name]
    runner = SchedulerRunner(
        SchedulerOptions(
            bind=address,
            port=place.port,
            batch_window_s=BATCH_WINDOW_S * plan.dilation,
            answer_s=SILENCE_S,
            silence_s=SILENCE_S,
            default_bps=plan.link_bps,
            security=WITHIN_TESTBED,
        )
    )
    asyncio.run(_decide(place, runner, monitor_config(place, plan)))
    return nothing_applied()


def monitor_config(place: Place, plan: RunPlan) -> MonitorConfig:
    """Return how the monitor runs, its times dilated."""
    return MonitorConfig(
        scheduler=scheduler_address(place),
        host=place.name,
        bind=place.addresses[place.name],
        report_interval_s=plan.report_every_s * plan.dilation,
        half_life_s=MonitorConfig(scheduler="").half_life_s * plan.dilation,
        security=WITHIN_TESTBED,
    )


async def _decide(place: Place, runner: SchedulerRunner, config: MonitorConfig) -> None:
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        serving = asyncio.create_task(runner.run(stop, lambda _: None))
        stack.push_async_callback(_ended, stop, serving)
        monitor = MonitorService(config)
        stack.push_async_callback(monitor.close)
        await monitor.start()
        over = asyncio.create_task(_until_all_left(place, [*_workers(place), *servers(place)], stop))
        await monitor.run_until(stop)
        await over


async def _ended(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    stop.set()
    await task


def server(place: Place, plan: RunPlan) -> ServerLog:
    """Run the server until all workers have left."""
    return serve(place, lambda _: None)


def serve(place: Place, prepared: Callable[[ServerService], None]) -> ServerLog:
    """Run the server until all workers have left.

    Args:
        place: its own.
        prepared: called before it joins.
    """
    options = ServerOptions(scheduler=scheduler_address(place), name=SERVER, host=SERVER, tcp=tcp_of(place))

    async def run() -> None:
        stop, service = asyncio.Event(), ServerService(options, ServerMetrics())
        prepared(service)
        over = asyncio.create_task(until_workers_left(place, stop))
        await service.run(stop)
        await over

    asyncio.run(run())
    return nothing_applied()


async def until_workers_left(place: Place, stop: asyncio.Event) -> None:
    """Set ``stop`` when all workers have been there and none is any more."""
    await _until_all_left(place, _workers(place), stop)


async def _until_all_left(place: Place, names: Collection[str], stop: asyncio.Event) -> None:
    """Set ``stop`` when all members of these names have been there and none is any more."""
    async with grpc.aio.insecure_channel(scheduler_address(place)) as channel:
        stub = fabric_pb2_grpc.FabricServiceStub(channel)
        left: set[str] = set()
        while not left.issuperset(names):
            await asyncio.sleep(LOOK_S)
            members = (await stub.GetStatus(fabric_pb2.GetStatusRequest(), wait_for_ready=True)).members
            left = {m.name for m in members if m.state != "here"}
    stop.set()


def _workers(place: Place) -> list[str]:
    return [worker_name(rank) for rank in range(place.workers)]


def replicas(place: Place) -> list[str]:
    """Return the replica's name if the run has a host for one."""
    return [REPLICA] if REPLICA in place.addresses else []


def servers(place: Place) -> list[str]:
    """Return the names of the server and its replica, as far as the run has hosts for them."""
    return [name for name in (SERVER, REPLICA) if name in place.addresses]


def nothing_applied() -> ServerLog:
    """Return the log of a service; workers are told what became of their updates, and say so in their own."""
    none = np.empty(0, dtype=np.int32)
    return ServerLog(began_ns=0, applied_ns=none.astype(np.int64), workers=none, delays=none, snapshots=())


SERVICES: MappingProxyType[str, Service] = MappingProxyType({SCHEDULER: scheduler, SERVER: server})

WITHOUT_SERVER: MappingProxyType[str, Service] = MappingProxyType({SCHEDULER: scheduler})
