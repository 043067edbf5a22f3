"""A worker process that writes a ledger: gets, computes, pushes, and writes down all that it does and hears.

Runs in a child of a ``Launcher``, and ends when its parent sends it anything or its part of the ledger is full.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

import mlfabric
from benchmarks.faults.ledger import Contents, Ledger
from benchmarks.faults.logs import Got, Joined, Pushed, Told, Writer
from benchmarks.testbed.processes import to_parent
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.model.specs import Method
from mlfabric.security import Security

__all__ = ["MODEL", "Job", "read", "train"]

MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker does.

    Args:
        name: its own, unique for ever.
        writer: its part of the ledger.
        scheduler: ``host:port``.
        host: that it is planned to be on.
        address: of this host, for its data channel.
        up_bps: of its emulated network card; 0 emulates none.
        ledger: what is trained.
        method: of the job.
        tau_max: the delay bound, where updates are versions.
        together: how many workers begin together, where they make versions together.
        step_s: how long it computes.
        log: path of what it writes.
    """

    name: str
    writer: int
    scheduler: str
    host: str
    address: str
    up_bps: int
    ledger: Ledger
    method: Method
    tau_max: int | None
    together: int
    step_s: float
    log: Path


def train(job: Job) -> int:
    """Write updates until told to end; return how many."""
    model, stop = job.ledger.model(), to_parent()
    update = 0
    with Writer(job.log) as log, _register(job, model) as worker:
        log.write(Joined(tau_max=worker.tau_max, at_ns=time.monotonic_ns()))
        while update < job.ledger.updates and not stop.poll():
            version = worker.get()
            flaw = job.ledger.flaw(model["ballast"].detach().numpy(), version.number)
            log.write(Got(version=version, flaw=flaw, at_ns=time.monotonic_ns()))
            stop.poll(job.step_s)
            job.ledger.give_gradients(model, job.writer, update)
            log.write(Pushed(update=update, computed_from=version, at_ns=time.monotonic_ns()))
            outcome = worker.push().result()
            log.write(Told.of(update, outcome, time.monotonic_ns()))
            update += 1
    return update


def read(job: Job) -> Contents:
    """Join, get the model, leave; return what it holds."""
    model = job.ledger.model()
    with _register(job, model) as worker:
        version = worker.get()
    return Contents(version, model["marks"].detach().numpy(), model["ballast"].detach().numpy())


def _register(job: Job, model: dict[str, torch.Tensor]) -> mlfabric.Worker:
    settings = WorkerSettings(
        scheduler=job.scheduler,
        name=job.name,
        host=job.host,
        tcp=TcpOptions(
            bind=job.address, advertised_host=job.address, up_bps=job.up_bps, security=Security(insecure=True)
        ),
    )
    return mlfabric.register_as_worker(
        model,
        rule=mlfabric.RuleSpec(lr=1.0),
        method=job.method,
        tau_max=job.tau_max,
        workers=None if job.method is Method.ASYNCHRONOUS else job.together,
        model_name=MODEL,
        keep=True,
        resume=True,
        settings=settings,
    )
