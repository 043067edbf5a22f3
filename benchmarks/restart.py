"""How long a trainer stands still when the scheduler is killed, beyond the time that there is none.

A server, a scheduler and its spare are processes of their own. A worker trains a tiny model without a pause, its steps
one behind the other. The scheduler is killed (SIGKILL); the spare is told to begin after a given time, as ``mlfabric
up`` tells it. The stall is the longest time between two commits in a row from then on; what is told is the stall less
the outage. Versions tell whether anything was lost or applied twice: each step makes exactly one.

``mlfabric bench restart --json FILE``.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

import mlfabric
from mlfabric.launch.ports import free_port

__all__ = ["run"]

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
LOOK_S = 0.005
STEPS_BETWEEN = 50


def run(outages_s: Sequence[float] = (0.0, 1.0, 5.0), trials: int = 5) -> dict[str, object]:
    """Kill schedulers and measure; about a minute.

    Args:
        outages_s: how long after each kill the next scheduler begins.
        trials: kills for each outage.

    Returns:
        By outage: ``trials``, ``survived``, ``stall_p50_s`` and ``stall_max_s`` (beyond the outage), ``updates_lost``,
        ``updates_twice``.

    Raises:
        RuntimeError: a process failed or was too slow.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _Schedulers(Path(folder)).running() as schedulers,
        _trainer(schedulers.address) as trainer,
    ):
        return {f"after_{s:g}_s": _trials(schedulers, trainer, s, trials) for s in outages_s}


def _trials(schedulers: _Schedulers, trainer: _Trainer, outage_s: float, trials: int) -> dict[str, float]:
    began = trainer.version
    steps_before = len(trainer.commits_s)
    beyond_s = [_kill(schedulers, trainer, outage_s) for _ in range(trials)]
    steps = len(trainer.commits_s) - steps_before
    made = trainer.versions[steps_before + steps - 1] - began
    return {
        "trials": trials,
        "survived": len(beyond_s),
        "stall_p50_s": statistics.median(beyond_s),
        "stall_max_s": max(beyond_s),
        "updates_lost": max(0, steps - made),
        "updates_twice": max(0, made - steps),
    }


def _kill(schedulers: _Schedulers, trainer: _Trainer, outage_s: float) -> float:
    """Kill the scheduler once; return for how much longer than the outage nothing was committed."""
    trainer.wait_for(STEPS_BETWEEN)
    schedulers.wait_for_spare()
    first = len(trainer.commits_s) - 1
    schedulers.kill()
    time.sleep(outage_s)
    schedulers.take_over()
    trainer.wait_for(STEPS_BETWEEN)
    commits_s = trainer.commits_s[first:]
    schedulers.stand_by()
    return max(b - a for a, b in itertools.pairwise(commits_s)) - outage_s


class _Schedulers:
    """A scheduler, its spare, and the server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port(HOST)
        self._started = 0
        self.address = f"{HOST}:{self._port}"

    @contextmanager
    def running(self) -> Iterator[_Schedulers]:
        with ExitStack() as stack:
            self._stack = stack
            self._active = self._start("scheduler", "--port", str(self._port))
            self._start("server", "--scheduler", self.address, "--metrics-port", "0")
            self.stand_by()
            yield self

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log().open("wb") as log:
            command = [sys.executable, "-P", "-m", "mlfabric", *arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
        self._stack.callback(_end, process)
        return process

    def _log(self) -> Path:
        return self._folder / f"{self._started}.log"

    def stand_by(self) -> None:
        """Start a spare."""
        self._started += 1
        self._spare = self._start("scheduler", "--port", str(self._port), "--standby")

    def wait_for_spare(self) -> None:
        """Wait until the spare has loaded everything."""
        _wait_until(lambda: "standing by" in self._log().read_text(), "the spare stands by")

    def kill(self) -> None:
        """Kill the scheduler."""
        self._active.kill()
        self._active.wait()

    def take_over(self) -> None:
        """Let the spare begin."""
        assert self._spare.stdin is not None
        self._spare.stdin.write(b"begin\n")
        self._spare.stdin.flush()
        self._active = self._spare


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{what}: not within {TIMEOUT_S:g} s")
        time.sleep(LOOK_S)


class _Trainer:
    """A worker that does one step after the other; notes when each was committed, and the version that it made."""

    def __init__(self) -> None:
        self.commits_s: list[float] = []
        self.versions: list[int] = []
        self.stop = threading.Event()

    @property
    def version(self) -> int:
        """The last version that a step of this worker made; 0 before the first."""
        return self.versions[-1] if self.versions else 0

    def wait_for(self, steps: int) -> None:
        """Wait for so many more commits."""
        wanted = len(self.commits_s) + steps
        _wait_until(lambda: len(self.commits_s) >= wanted, f"{steps} steps")

    def train(self, address: str) -> None:
        """Train until told to stop."""
        weights = {"w": torch.zeros(1000, requires_grad=True)}
        with mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1e-6), scheduler=address) as worker:
            while not self.stop.is_set():
                worker.get()
                weights["w"].grad = torch.ones(1000)
                outcome = worker.push().result(TIMEOUT_S)
                if not isinstance(outcome, mlfabric.Committed):
                    raise RuntimeError(f"a step was not committed: {outcome}")
                self.versions.append(outcome.version.number)
                self.commits_s.append(time.monotonic())


@contextmanager
def _trainer(address: str) -> Iterator[_Trainer]:
    trainer = _Trainer()
    thread = threading.Thread(target=trainer.train, args=(address,), daemon=True)
    thread.start()
    try:
        yield trainer
    finally:
        trainer.stop.set()
        thread.join(TIMEOUT_S)
