"""``mlfabric up | run``: a fabric and training jobs as processes of this machine."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from mlfabric.addresses import split_address
from mlfabric.cli import fabric_flags as flag
from mlfabric.cli import options as opt
from mlfabric.cli.embedded_fabric import in_fabric, show_page
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.launch.fabric import Fabric
from mlfabric.launch.fabric_services import FabricOptions
from mlfabric.launch.ports import is_here
from mlfabric.launch.processes import Nursery, Output, launch
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.launch.signals import EXIT_ON_SIGNAL
from mlfabric.launch.workers import JobOptions, per_rank, planned_host, run_job
from mlfabric.security import CLIENT, Security
from mlfabric.v1 import fabric_pb2

__all__ = ["add_to"]

PROBE_S = 2.0
USUAL_METRICS_PORT = 9400
_FABRIC_OPTIONS = (
    *("servers", "server_up", "server_down", "aggregators"),
    *("replica_div_max", "replica_div_max_updates", "checkpoint_dir", "history"),
)

_FOR_THIS_COMMAND = ("COMMANDLINE", "DEFAULT_MAP")


def up(
    port: flag.Port = 50061,
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    servers: flag.Servers = 1,
    aggregators: flag.Aggregators = 0,
    replica_div_max: flag.ReplicaDivMax = "",
    replica_div_max_updates: flag.ReplicaDivMaxUpdates = "",
    monitor: flag.Monitor = True,
    server_host: flag.ServerHost = "",
    server_up: flag.ServerUp = "",
    server_down: flag.ServerDown = "",
    aggregator_hosts: flag.AggregatorHosts = "",
    aggregator_up: flag.AggregatorUp = "",
    aggregator_down: flag.AggregatorDown = "",
    checkpoint_dir: flag.CheckpointDir = None,
    resume: flag.Resume = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MLFABRIC_METRICS_PORT",
            min=0,
            max=65000,
            help="Port of the scheduler's status page and /metrics; the other services' /metrics take the next ones.",
        ),
    ] = None,
    with_prometheus: Annotated[
        bool,
        typer.Option(
            "--with-prometheus",
            help="Start a Prometheus, too, which scrapes all of them; it keeps its data in --history, or not at all.",
        ),
    ] = False,
    show: flag.Open = False,
    history: flag.History = None,
    log_level: opt.LogLevel = opt.Level.INFO,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    config: opt.Config = None,
) -> None:
    """Run a fabric on this machine until Ctrl-C.

    Starts scheduler, servers, aggregators and monitor, and starts again what dies. Each also reads its section of the
    settings file.
    """
    metrics_port = USUAL_METRICS_PORT if with_prometheus and metrics_port is None else metrics_port
    options = FabricOptions(
        bind=bind,
        advertised=advertise,
        port=port,
        servers=servers,
        aggregators=aggregators,
        replica_div_max=flag.div_max(replica_div_max),
        replica_div_max_updates=flag.div_max_updates(replica_div_max_updates),
        monitor=monitor,
        server_host=server_host,
        server_up=flag.checked_rate(server_up),
        server_down=flag.checked_rate(server_down),
        aggregator_hosts=flag.texts(aggregator_hosts),
        aggregator_up=flag.rates(aggregator_up),
        aggregator_down=flag.rates(aggregator_down),
        checkpoint_dir=checkpoint_dir,
        resume=resume,
        metrics_port=metrics_port,
        history=history,
        tls=tls,
        insecure=insecure,
        log_level=log_level.value,
        log_format=log_format.value,
        config=config,
    )
    with ExitStack() as until_the_end:
        if with_prometheus:
            kept = history or Path(until_the_end.enter_context(TemporaryDirectory(prefix="mlfabric-")))
            options = replace(options, prometheus=kept / "prometheus")
        code = _keep_fabric(options, show)
    raise typer.Exit(code)


def run(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="Training script (or module, with -m), its arguments."),
    ],
    workers: Annotated[
        int, typer.Option("--workers", "-n", envvar="MLFABRIC_WORKERS", help="How many workers to start.")
    ] = 1,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    up: Annotated[
        bool,
        typer.Option("--up/--no-up", envvar="MLFABRIC_RUN_UP", help="Start a fabric here if no scheduler answers."),
    ] = True,
    host_per_worker: Annotated[
        bool,
        typer.Option(
            "--host-per-worker/--one-host",
            envvar="MLFABRIC_HOST_PER_WORKER",
            help="Plan as if each worker were on a machine of its own, the aggregators beside them.",
        ),
    ] = False,
    worker_up: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_WORKER_UP",
            help="Rate of each worker's emulated network card, outgoing: one for all, or one for each with commas.",
        ),
    ] = "",
    worker_down: Annotated[str, typer.Option(envvar="MLFABRIC_WORKER_DOWN", help="The same, incoming.")] = "",
    servers: flag.Servers = 1,
    server_up: flag.ServerUp = "",
    server_down: flag.ServerDown = "",
    aggregators: flag.Aggregators = 0,
    replica_div_max: flag.ReplicaDivMax = "",
    replica_div_max_updates: flag.ReplicaDivMaxUpdates = "",
    checkpoint_dir: flag.CheckpointDir = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume",
            envvar="MLFABRIC_RESUME",
            help="Go on with the model that a former job has left, or with the newest checkpoints.",
        ),
    ] = False,
    job: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_JOB", help="What the names of its workers and models begin with, as in NAME/worker-0."
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MLFABRIC_METRICS_PORT", min=0, max=65000, help="Port of rank 0's /metrics; the others follow."
        ),
    ] = None,
    show: flag.Open = False,
    history: flag.History = None,
    log_level: opt.LogLevel = opt.Level.WARNING,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    config: opt.Config = None,
) -> None:
    """Train with several workers on this machine.

    Starts SCRIPT as torchrun would, and a fabric if no scheduler answers: its servers, aggregators, replica and
    checkpoints are as the options say. If one worker fails, the others are ended.
    """
    ranks = JobOptions(
        command=("-m", *command) if module else tuple(command),
        workers=workers,
        scheduler=scheduler,
        host_per_worker=host_per_worker,
        up=flag.rates(worker_up),
        down=flag.rates(worker_down),
        metrics_port=metrics_port,
        tls=tls,
        insecure=insecure,
        job=job,
        resume=resume,
        json_log=log_level.name.lower() if log_format is opt.LogForm.JSON else "",
    )
    host, port = split_address(scheduler)
    options = FabricOptions(
        bind=host,
        port=port,
        servers=servers,
        server_up=flag.checked_rate(server_up),
        server_down=flag.checked_rate(server_down),
        replica_div_max=flag.div_max(replica_div_max),
        replica_div_max_updates=flag.div_max_updates(replica_div_max_updates),
        aggregators=aggregators,
        checkpoint_dir=checkpoint_dir,
        resume=resume and checkpoint_dir is not None,
        history=history,
        tls=tls,
        insecure=insecure,
        log_level=log_level.value,
        log_format=log_format.value,
        config=config,
    )
    options = _spread(options, ranks) if host_per_worker else options
    raise typer.Exit(_train(ranks, options, start=up, show=show, idle=_of_a_fabric(context)))


def _of_a_fabric(context: typer.Context) -> list[str]:
    """Return the options that were given to this command and mean something only where it starts a fabric.

    What the environment says is meant for many commands.
    """
    sources = {name: context.get_parameter_source(name) for name in _FABRIC_OPTIONS}
    given = [name for name, found in sources.items() if found is not None and found.name in _FOR_THIS_COMMAND]
    return [f"--{name.replace('_', '-')}" for name in given]


def _spread(options: FabricOptions, job: JobOptions) -> FabricOptions:
    """Return a fabric for ranks with a machine each: the aggregators are beside them, all others on their own."""
    beside = [index % job.workers for index in range(options.aggregators)]
    return replace(
        options,
        server_host=",".join(f"server-{i}" for i in range(options.servers)),
        replica_host="replica-0",
        aggregator_hosts=tuple(planned_host(rank) for rank in beside),
        aggregator_up=tuple(per_rank(job.up, rank) for rank in beside),
        aggregator_down=tuple(per_rank(job.down, rank) for rank in beside),
    )


def _keep_fabric(options: FabricOptions, show: bool) -> int:
    """Keep a fabric until a signal ends it; open its page in a browser if that is wanted."""

    async def wait(_: Fabric) -> int:
        await asyncio.Event().wait()
        return 0

    async def work(nursery: Nursery) -> int:
        return await in_fabric(nursery, options, wait, announce=True, shows=show)

    code = asyncio.run(launch(work, Output(own="up" if options.log_format == opt.LogForm.JSON else "")))
    return 0 if code == EXIT_ON_SIGNAL + signal.SIGTERM else code


def _train(job: JobOptions, options: FabricOptions, *, start: bool, show: bool, idle: list[str]) -> int:
    """Run a job in the fabric that answers; if none does, in one with these options, if one may be started.

    Args:
        show: open the fabric's page in a browser.
        idle: the options that would have no effect on a fabric that answers.
    """
    security = Security.of(job.tls, CLIENT, insecure=job.insecure)

    async def work(nursery: Nursery) -> int:
        found = await _answering(StatusReader(job.scheduler, PROBE_S, security), start)
        if found is not None:
            if idle:
                raise UsageError(
                    f"a fabric answers at {job.scheduler} already, so {', '.join(idle)} would have no effect; leave "
                    "that out to train there, or give another --scheduler to start a fabric of this job's own"
                )
            if found.page:
                nursery.output.say(f"status page: {found.page}")
            if show:
                show_page(nursery, found.page)
            return await run_job(nursery, job)
        if job.resume and options.checkpoint_dir is None:
            raise UsageError(
                f"--resume: no scheduler answers at {job.scheduler}, and a new fabric has nothing to go on with; give "
                "--checkpoint-dir, the directory of the checkpoints, or leave --resume out"
            )
        return await in_fabric(nursery, options, lambda _: run_job(nursery, job), announce=False, shows=show)

    return asyncio.run(launch(work, Output(own="run" if job.json_log else "")))


async def _answering(asker: StatusReader, up: bool) -> fabric_pb2.GetStatusResponse | None:
    """Return what a scheduler answers; if none does, a fabric is to be started here.

    Raises:
        UnavailableError: none answers and none is to be started.
        UsageError: none answers, and its address is not of this machine.
        RefusedError: TLS between the two cannot be.
    """
    scheduler = asker.scheduler
    try:
        async with asker as reader:
            return await reader.read()
    except UnavailableError:
        if not up:
            raise
        if not is_here(split_address(scheduler)[0]):
            raise UsageError(
                f"no scheduler answers at {scheduler}, which is not this machine, so none can be started there; "
                "start one with 'mlfabric up' on it, or leave --scheduler out to have one here"
            ) from None
        return None


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric up",
            "mlfabric up --port 0 --servers 2 --checkpoint-dir checkpoints --resume",
            "mlfabric up --server-up 800M --server-down 800M --metrics-port 9400",
            "mlfabric up --with-prometheus",
            "mlfabric up --replica-div-max-updates 40",
            "mlfabric up --aggregators 2 --aggregator-hosts node-1,node-2",
            "mlfabric up --bind 0.0.0.0 --advertise head-node --tls certificates",
        )
    )(up)
    app.command(
        context_settings={"allow_interspersed_args": False},
        epilog=opt.examples(
            "mlfabric run -n 4 train.py --epochs 3",
            "mlfabric run -n 4 -m mypackage.train",
            "mlfabric run -n 3 --host-per-worker --worker-up 800M,800M,100M train.py",
            "mlfabric run -n 8 --host-per-worker --worker-up 800M --worker-down 800M --aggregators 3 train.py",
            "mlfabric run -n 4 --replica-div-max-updates 80 train.py",
            "mlfabric run -n 4 --checkpoint-dir checkpoints --resume train.py",
            "mlfabric run -n 4 --job trial-7 train.py --lr 0.02",
            "mlfabric run -n 8 --scheduler head-node:50061 --no-up --tls certificates train.py",
        ),
    )(run)
