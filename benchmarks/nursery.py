"""Training processes that can be stopped and killed: forked in milliseconds from one that has imported everything once.

Each trains a small model with gradients of -1, so a model that began at 0 is at its version everywhere, and writes a
line to its log for every step that is committed. ``python -m benchmarks.nursery`` is the process that forks; see
:class:`Nursery` for its other end.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

__all__ = ["Nursery", "Step", "Trainer", "TrainerOptions", "main"]

LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How one trains.

    Args:
        name, host, scheduler: see ``WorkerSettings``.
        method: see ``Method``.
        workers: how many begin together.
        size: elements of the model.
        steps: after so many that were committed it leaves; 0 for never.
        compute_s: how long each step computes.
        varies: whether that is the longest, and each step's is drawn.
        holds_lock: whether it computes with the interpreter's lock held, or sleeps.
        bind: address of its data channel.
        up: rate of its emulated up-link in bit/s; 0 for none.
        namespace: the network namespace that it runs in; "" for none of its own.
    """

    name: str
    scheduler: str
    host: str = "localhost"
    bind: str = "127.0.0.1"
    method: str = "asynchronous"
    workers: int = 1
    size: int = 1000
    steps: int = 0
    compute_s: float = 0.02
    varies: bool = False
    holds_lock: bool = False
    up: int = 0
    namespace: str = ""


class Step(NamedTuple):
    """A step that was committed: when (``time.monotonic``), and the version or round that it made."""

    at_s: float
    number: int


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A training process."""

    name: str
    pid: int
    log: Path

    def signal(self, number: int) -> None:
        """Send a signal to it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, in whatever way."""
        return not Path(f"/proc/{self.pid}").exists()

    def steps(self) -> list[Step]:
        """Return the steps that were committed so far."""
        words = (line.split() for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return [Step(float(at_s), int(number)) for at_s, number in words]


class Nursery:
    """The process that forks trainers; they end with it, and it with the block.

    Args:
        folder: where logs are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.nursery", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._trainers: list[Trainer] = []

    def train(self, options: TrainerOptions) -> Trainer:
        """Start a trainer."""
        self._orders.write(json.dumps(asdict(options)).encode() + b"\n")
        self._orders.flush()
        pid = int(self._answers.readline())
        log = self._folder / f"{options.name}.steps"
        self._trainers.append(Trainer(name=options.name, pid=pid, log=log))
        return self._trainers[-1]

    def end(self, trainers: Sequence[Trainer]) -> None:
        """Kill these trainers."""
        for trainer in trainers:
            trainer.signal(signal.SIGKILL)
            self._trainers.remove(trainer)

    def close(self) -> None:
        """Kill all trainers."""
        self.end(self._trainers[:])
        self._orders.close()
        self._answers.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _compute(options: TrainerOptions) -> None:
    seconds = options.compute_s * (random.random() if options.varies else 1.0)
    if options.holds_lock:
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))  # called with the lock held, unlike what CDLL calls
    else:
        time.sleep(seconds)


def _train(options: TrainerOptions, log: int) -> None:
    import torch

    import mlfabric
    from mlfabric.channels import TcpOptions
    from mlfabric.config import WorkerSettings
    from mlfabric.model.specs import Method
    from mlfabric.security import Security

    random.seed(options.name)
    if options.namespace:
        from benchmarks.testbed.namespaces import enter

        enter(options.namespace)
    settings = WorkerSettings(
        scheduler=options.scheduler,
        name=options.name,
        host=options.host,
        tcp=TcpOptions(bind=options.bind, up_bps=options.up, security=Security(insecure=True)),
    )
    method = Method[options.method.upper()]
    weights = {"w": torch.zeros(options.size, requires_grad=True)}
    together = None if method is Method.ASYNCHRONOUS else options.workers
    with mlfabric.register_as_worker(
        weights, rule=mlfabric.RuleSpec(lr=1.0), method=method, settings=settings, workers=together, resume=True
    ) as worker:
        done = 0
        committed = 0
        while not options.steps or committed < options.steps:
            if method is Method.ALL_REDUCE:
                _compute(options)
                try:
                    worker.all_reduce(torch.ones(options.size))
                except mlfabric.RefusedError:  # the others have gone on without this one; it goes on with them
                    continue
                done += 1
            else:
                worker.get()
                _compute(options)
                weights["w"].grad = torch.full((options.size,), -1.0)
                outcome = worker.push().result()
                if not isinstance(outcome, mlfabric.Committed):
                    continue
                done = outcome.version.number
            committed += 1
            os.write(log, f"{time.monotonic()} {done}\n".encode())


def _be_trainer(options: TrainerOptions, folder: Path) -> NoReturn:
    code = 1
    try:
        log = os.open(folder / f"{options.name}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        words = os.open(folder / f"{options.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(words, descriptor)
        _train(options, log)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def main(folder: Path) -> None:
    """Fork a trainer for each line that comes, until no more will; then kill those that are left."""
    import torch  # noqa: F401
    from grpc import aio  # noqa: F401

    import mlfabric
    import mlfabric.worker_daemon.register  # noqa: F401

    pids: set[int] = set()
    while True:
        if select.select([0], [], [], LOOK_S)[0]:
            line = sys.stdin.buffer.readline()
            if not line:
                break
            (folder / f"{json.loads(line)['name']}.steps").touch()
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                _be_trainer(TrainerOptions(**json.loads(line)), folder)
            pids.add(pid)
            os.write(1, f"{pid}\n".encode())
        with suppress(ChildProcessError):
            pids.discard(os.waitpid(-1, os.WNOHANG)[0])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
