"""Many training processes of one machine that begin together: forked from one that has imported everything once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

from benchmarks.processes import next_answer
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.security import Security

__all__ = ["Begin", "progress", "settings_of", "worked"]

PRELOADED = [
    "torch._dynamo",
    "mlfabric.worker_daemon.worker",
    "mlfabric.transfer.compiled",
    "benchmarks.forked_workers",
]
"""What each process would load by itself, for seconds: torch loads ``torch._dynamo`` for its first optimizer."""
HEAD_START_S = 0.3
JOINING_S = 120.0

Begin = Callable[[], float]
"""Says that a process is ready, waits for all others, and returns when to begin, by ``time.monotonic``."""


class Work(Protocol):
    """What a process does; gives what is sent back."""

    def __call__(self, task: Any, begin: Begin, /) -> Any: ...


def worked(work: Work, tasks: Sequence[Any], within_s: float) -> list[Any]:
    """Run each task in a process of its own; return what each found, in the order of the tasks.

    Args:
        work: a function of a module.
        within_s: how long they may take, once all are ready.

    Raises:
        RuntimeError: a process failed, or took too long.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ExitStack() as stack:
        pipes = [_started(stack, context, work, task) for task in tasks]
        for pipe in pipes:
            next_answer(pipe, JOINING_S)
        begins_s = time.monotonic() + HEAD_START_S
        for pipe in pipes:
            pipe.send(begins_s)
        deadline_s = begins_s + within_s
        return [next_answer(pipe, max(0.0, deadline_s - time.monotonic())) for pipe in pipes]


def settings_of(scheduler: str, rank: int) -> WorkerSettings:
    """Return those of a worker whose machine is its own, over loopback."""
    tcp = TcpOptions(security=Security(insecure=True))
    return WorkerSettings(scheduler=scheduler, name=f"worker-{rank:02}", host=f"machine-{rank:02}", tcp=tcp)


def progress(line: str) -> None:
    """Say where a benchmark is."""
    print(line, file=sys.stderr, flush=True)


def _started(stack: ExitStack, context: Any, work: Work, task: Any) -> Pipe:
    ours: Pipe
    theirs: Pipe
    ours, theirs = context.Pipe()
    stack.callback(ours.close)
    process = context.Process(target=_be_worker, args=(work, task, theirs), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)
    theirs.close()
    return ours


def _be_worker(work: Work, task: Any, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process

    def begin() -> float:
        pipe.send("ready")
        return float(pipe.recv())

    pipe.send(work(task, begin))
    pipe.poll(None)  # until the parent has what all have found: nobody leaves while others are at work
