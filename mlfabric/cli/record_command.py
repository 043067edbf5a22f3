"""``mlfabric record``: writes what is seen of a running fabric into a trace that the twin replays."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mlfabric.cli import options as opt
from mlfabric.cli.fields import read_text
from mlfabric.errors import ConfigError, UsageError
from mlfabric.launch.scheduler_status import HERE, StatusReader
from mlfabric.model.specs import Method
from mlfabric.security import CLIENT, Security
from mlfabric.twin.settings import Direction
from mlfabric.twin.trace import TRACE_FORMAT, Trace, parse_trace
from mlfabric.v1 import fabric_pb2

__all__ = ["Recorder", "add_to", "read_trace", "record_fabric"]

Row = dict[str, Any]
STEADY_SHARE = 0.01
"""An estimate that moves by no more than this share is the same rate."""


def record(
    file: Annotated[Path, typer.Argument(help="Where the trace goes; it must not be there yet.", show_default=False)],
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    seconds: Annotated[float, typer.Option("--for", min=0.1, help="Seconds to record; Ctrl-C ends it earlier.")] = 60.0,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between looks at the fabric.")] = 0.5,
    model: Annotated[str, typer.Option(help="Which model's job; needed where there are several.")] = "",
) -> None:
    """Record a running fabric for the twin.

    'mlfabric simulate' and 'mlfabric advise' replay it. Writes what its monitor finds the links to carry, how long each
    worker computes, and how training gets on. Nothing in the fabric is changed.
    """
    try:
        asker = StatusReader(scheduler, security=Security.of(tls, CLIENT, insecure=insecure))
        asyncio.run(record_fabric(file, asker, model, seconds, every))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    if not file.exists():
        raise UsageError(f"{file} was not begun: stopped before the first look at the fabric")
    for line in _summary(read_trace(file)):
        print(line)


async def record_fabric(file: Path, asker: StatusReader, model: str, seconds: float, every_s: float) -> None:
    """Record a fabric into a file.

    Args:
        file: must not be there yet.
        asker: asks its scheduler.
        model: whose job; "" for the only one.
        seconds: for how long.
        every_s: between looks, > 0.

    Raises:
        UnavailableError: no scheduler answers.
        UsageError: nothing is there to be recorded, or the file cannot be written; says which.
    """
    async with asker as reader:
        recorder = Recorder(await reader.read(), model)
        began_s = time.monotonic()
        try:
            out = file.open("x", encoding="utf-8", buffering=1)
        except FileExistsError as error:
            raise UsageError(f"{file} is there already; give a file that is not") from error
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}; give a file that can be written") from error
        with out:
            _write(out, [recorder.head])
            while (at_s := time.monotonic() - began_s) < seconds:
                _write(out, recorder.look(await reader.read(), at_s))
                await asyncio.sleep(min(every_s, seconds - at_s))
            at_s = time.monotonic() - began_s
            _write(out, recorder.look(await reader.read(), at_s))


def _write(out: Any, rows: Iterable[Row]) -> None:
    for row in rows:
        out.write(json.dumps(row) + "\n")


class Recorder:
    """Turns what the scheduler says, time and again, into the rows of a trace.

    Args:
        status: what it said first.
        model: which model's job; "" for the only one.

    Raises:
        UsageError: there is no such job, there are several, or it is one that cannot be replayed; says which.
    """

    def __init__(self, status: fabric_pb2.GetStatusResponse, model: str = "") -> None:
        self._model = _model(status, model)
        hosts = {m.name: m.host for m in status.members if m.state == HERE}
        self._workers = {
            w.name: hosts[w.name] for w in status.workers if w.model == self._model.name and w.name in hosts
        }
        if not self._workers:
            raise UsageError(f"{self._model.name} has no worker here; record while training goes on")
        self._server = hosts.get(self._model.server, "")
        self._rates: dict[tuple[str, str], int] = {}
        self._steps = {w.name: w.steps for w in status.workers}
        self._looked_s = 0.0

    @property
    def head(self) -> Row:
        """The first row."""
        method = Method(self._model.method)
        return {
            "trace": TRACE_FORMAT,
            "model": self._model.name,
            "method": method.value,
            "tau_max": self._model.tau_max if method is Method.ASYNCHRONOUS else None,
            "model_bytes": self._model.size_bytes,
            "server": self._server,
            "workers": self._workers,
        }

    def look(self, status: fabric_pb2.GetStatusResponse, at_s: float) -> Iterator[Row]:
        """Yield the rows of what is new.

        Args:
            status: what the scheduler says now.
            at_s: since the recording began.
        """
        before_s, self._looked_s = self._looked_s, at_s
        for link in status.links:
            yield from self._rate(link, at_s, before_s)
        for worker in status.workers:
            if worker.name in self._workers:
                yield from self._compute(worker, at_s)
        for model in status.models:
            if model.name == self._model.name:
                yield {"at_s": at_s, "progress": [model.committed, model.dropped]}

    def _rate(self, link: fabric_pb2.LinkStatus, at_s: float, before_s: float) -> Iterator[Row]:
        direction = Direction.UP if link.up else Direction.DOWN
        key = (link.host, direction.value)
        if link.host not in (*self._workers.values(), self._server):
            return
        known_bps = self._rates.get(key)
        if known_bps is None:
            since_s = 0.0
        elif abs(link.estimate_bps - known_bps) <= STEADY_SHARE * known_bps:
            return
        else:
            # A new measurement holds since it was made; an old one that ages, only since it was looked at.
            is_new = link.HasField("age_s") and link.age_s < at_s - before_s
            since_s = max(0.0, at_s - link.age_s) if is_new else at_s
        self._rates[key] = link.estimate_bps
        yield {"at_s": since_s, "rate": [*key, link.estimate_bps]}

    def _compute(self, worker: fabric_pb2.WorkerStatus, at_s: float) -> Iterator[Row]:
        """Yield a worker's new computations; a scheduler that began anew counts from 0."""
        known = self._steps.get(worker.name, 0)
        new = worker.steps - known if worker.steps >= known else worker.steps
        self._steps[worker.name] = worker.steps
        seen = list(worker.compute_s)[-new:] if new else []
        if seen:
            yield {"at_s": at_s, "compute": [worker.name, seen]}


def _model(status: fabric_pb2.GetStatusResponse, name: str) -> fabric_pb2.ModelStatus:
    """Return the model whose job is recorded."""
    jobs = {w.model for w in status.workers if w.model}
    if name and name not in jobs:
        raise UsageError(f"--model {name!r}; allowed: {', '.join(sorted(jobs)) or 'none, for no worker is here'}")
    if not name and len(jobs) != 1:
        raise UsageError(f"this fabric trains {', '.join(sorted(jobs)) or 'nothing'}; say which with --model")
    wanted = name or next(iter(jobs))
    for model in status.models:
        if model.name == wanted:
            return model
    raise UsageError(f"{wanted} is cut over several servers; the twin has one, so it cannot replay that")


def _summary(trace: Trace) -> Iterator[str]:
    """Say what was recorded, and what is missing for a replay."""
    try:
        step = f"{trace.iteration_s:.3f} s a step"
    except ConfigError:
        step = "no step went on"
    counted = sum(len(times_s) for times_s in trace.compute_s.values())
    yield f"{trace.duration_s:.1f} s of {trace.model}: {len(trace.workers)} workers, {step}, {counted} computations"
    if silent := [worker for worker in trace.workers if worker not in trace.compute_s]:
        yield f"of {', '.join(silent)} no computation was seen; the twin draws from those of the others"


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        ConfigError: no such file, or no trace; says what is wrong.
    """
    return parse_trace(read_text(path, "a trace that 'mlfabric record' wrote"), str(path))


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric record night.trace --for 300",
            "mlfabric record uneven.trace --scheduler head-node:50061 --model net",
        )
    )(record)
