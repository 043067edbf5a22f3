"""How long others are held up by a worker that does not answer any more, and whether anybody else is taken for one.

1. *Stopped and cut off*: of three workers one is stopped (SIGSTOP), or its host's cable is pulled out where emulated
   hosts can be made. The figure is the longest time from one committed step of another worker to its next, from that
   instant on. Then it goes on (SIGCONT), and comes back.
2. *Busy*: for some minutes more processes than there are cores compute without a pause, and four workers train, whose
   steps take up to half a second, or four times that, with the interpreter's lock held. Nobody is to be evicted.

``mlfabric bench silence --set minutes=10 --json FILE``.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nursery import Nursery, Trainer, TrainerOptions
from mlfabric.errors import UnavailableError
from mlfabric.launch.ports import free_port

if TYPE_CHECKING:
    from benchmarks.testbed.hosts import Host

__all__ = ["run"]

HOST = "127.0.0.1"
METHODS = ("asynchronous", "synchronous", "all_reduce")
WORKERS = 3
LOOK_S = 0.05
PATIENCE_S = 120.0
WATCHED_S = 2.0
STEADY_STEPS = 5
LINK_BPS = 100_000_000
BUSY_STEPS_S = (0.5, 0.5, 0.5, 2.0)
HOGS_PER_CORE = 2


def run(trials: int = 5, minutes: float = 1.0) -> dict[str, Any]:
    """Measure on this machine.

    Args:
        trials: of each kind and method; 0 leaves these out.
        minutes: how long the machine is busy; 0 leaves this out.

    Returns:
        ``stopped.METHOD``, ``cut_off.METHOD``: ``trials``, ``survived``, ``recovery_p50_s``, ``recovery_max_s`` (the
        longest time between two steps of any other worker), ``back_p50_s`` (until the victim has made a step again).
        ``cut_off`` is absent where there are no rights for it. ``busy``: ``minutes``, ``evictions``, ``steps``,
        ``longest_step_s``.

    Raises:
        RuntimeError: processes were not ready in time.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Nursery(Path(folder)) as nursery:
        if trials:
            found["stopped"] = {method: _stopped(nursery, method, trials) for method in METHODS}
            try:
                found["cut_off"] = {method: _cut_off(nursery, method, trials) for method in METHODS}
            except UnavailableError as error:
                print(f"no hosts are cut off: {error}", file=sys.stderr)
        if minutes:
            found["busy"] = _busy(nursery, minutes)
    return found


# Processes


@contextmanager
def _services(method: str, head: Host | None = None) -> Iterator[tuple[str, int]]:
    """Run a scheduler and, if the method has one, a server; give the scheduler's address and its metrics' port."""
    where, before = (HOST, []) if head is None else (head.address, head.command)
    address, metrics_port = f"{where}:{free_port(HOST)}", free_port(HOST)
    commands = [["scheduler", "--port", address.rpartition(":")[2], "--metrics-port", str(metrics_port)]]
    if method != "all_reduce":
        commands.append(["server", "--scheduler", address, "--host", "head"])
    options = ["--bind", where, "--log-level", "error", *(["--insecure"] if head is not None else [])]
    with ExitStack() as stack:
        for command in commands:
            whole = [*before, sys.executable, "-m", "mlfabric", *command, *options]
            process = subprocess.Popen(whole, env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"})
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield address, metrics_port


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:.0f} s; is the machine busy?")
        time.sleep(LOOK_S)


def _wait_for_steps(trainers: Sequence[Trainer], more: int) -> None:
    before = [len(trainer.steps()) for trainer in trainers]
    _wait_for(
        lambda: all(len(trainer.steps()) >= n + more for trainer, n in zip(trainers, before, strict=True)),
        "all workers train",
    )


# Stopped and cut off


def _stopped(nursery: Nursery, method: str, trials: int) -> dict[str, Any]:
    with _services(method) as (scheduler, _):
        trainers = [
            nursery.train(_options(f"stopped-{method}-{i}", scheduler, method, host=f"h{i}")) for i in range(WORKERS)
        ]
        victim = trainers[0]
        found = _trials(trainers, trials, lambda: victim.signal(signal.SIGSTOP), lambda: victim.signal(signal.SIGCONT))
        nursery.end(trainers)
        return found


def _cut_off(nursery: Nursery, method: str, trials: int) -> dict[str, Any]:
    from benchmarks.testbed.hosts import testbed

    with testbed(["head", *(f"h{i}" for i in range(WORKERS))], link_bps=LINK_BPS) as bed:
        head, *hosts = bed.hosts
        with _services(method, head) as (scheduler, _):
            trainers = [
                nursery.train(
                    _options(
                        f"cut-{method}-{host.name}",
                        scheduler,
                        method,
                        host=host.name,
                        bind=host.address,
                        namespace=host.namespace,
                    )
                )
                for host in hosts
            ]
            cut = hosts[0].name
            found = _trials(trainers, trials, lambda: bed.cut_off(cut), lambda: bed.cut_off(cut, cut=False))
            nursery.end(trainers)
            return found


def _options(name: str, scheduler: str, method: str, **options: Any) -> TrainerOptions:
    return TrainerOptions(name=name, scheduler=scheduler, method=method, workers=WORKERS, **options)


def _trials(
    trainers: Sequence[Trainer], trials: int, strike: Callable[[], None], heal: Callable[[], None]
) -> dict[str, Any]:
    """Strike the first trainer time and again; see how the others, and then the first one, go on."""
    victim, *others = trainers
    recovery_s, back_s = [], []
    for _ in range(trials):
        _wait_for_steps(trainers, STEADY_STEPS)
        struck_s = time.monotonic()
        strike()
        time.sleep(WATCHED_S)
        _wait_for_steps(others, 1)
        recovery_s.append(max(_longest_s(other, struck_s) for other in others))
        known, healed_s = len(victim.steps()), time.monotonic()
        heal()
        _wait_for(lambda known=known: len(victim.steps()) > known, "it comes back")  # type: ignore[misc]
        back_s.append(victim.steps()[known].at_s - healed_s)
    return {
        "trials": trials,
        "survived": sum(not trainer.has_ended for trainer in trainers) / len(trainers),
        "recovery_p50_s": statistics.median(recovery_s),
        "recovery_max_s": max(recovery_s),
        "back_p50_s": statistics.median(back_s),
    }


def _longest_s(trainer: Trainer, since_s: float) -> float:
    """Return the longest time between two steps since an instant."""
    at_s = [since_s, *(step.at_s for step in trainer.steps() if step.at_s > since_s)]
    return max(after - before for before, after in pairwise(at_s))


# Busy


def _busy(nursery: Nursery, minutes: float) -> dict[str, Any]:
    with ExitStack() as stack:
        scheduler, metrics_port = stack.enter_context(_services("asynchronous"))
        trainers = [
            nursery.train(
                TrainerOptions(
                    name=f"busy-{i}", host=f"h{i}", scheduler=scheduler, compute_s=most_s, varies=True, holds_lock=True
                )
            )
            for i, most_s in enumerate(BUSY_STEPS_S)
        ]
        _wait_for_steps(trainers, 1)
        for _ in range(HOGS_PER_CORE * (os.cpu_count() or 1)):
            hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(hog.wait)
            stack.callback(hog.kill)
        began_s = time.monotonic()
        time.sleep(60 * minutes)
        at_s = [[step.at_s for step in trainer.steps() if step.at_s > began_s] for trainer in trainers]
        evictions = _evictions(metrics_port)
        nursery.end(trainers)
    return {
        "minutes": minutes,
        "evictions": evictions,
        "steps": sum(map(len, at_s)),
        "longest_step_s": max((after - before for one in at_s for before, after in pairwise(one)), default=0.0),
    }


def _evictions(metrics_port: int) -> int:
    """Return how many members the scheduler has found not to answer any more."""
    with urllib.request.urlopen(f"http://{HOST}:{metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("mlfabric_members_lost_total{"))
