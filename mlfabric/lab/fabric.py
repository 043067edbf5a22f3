"""One scheduler and workers of one job in virtual time: their real shells, on emulated hosts."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from mlfabric import clock
from mlfabric.channels import MemoryOptions
from mlfabric.config import WorkerSettings
from mlfabric.errors import RefusedError
from mlfabric.lab.calls import Calls, MemoryServer
from mlfabric.lab.links import NATURE, Links
from mlfabric.lab.loop import VirtualLoop
from mlfabric.lab.processes import Process
from mlfabric.lab.signs import MemoryDatagrams, MemoryLink
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import JobClaim, Resume
from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner
from mlfabric.telemetry import WorkerMetrics
from mlfabric.worker_daemon.daemon import WorkerDaemon
from mlfabric.worker_daemon.round_inbox import RoundInbox

__all__ = ["Fabric", "FabricConfig", "Job", "Life", "hosts_of"]

SCHEDULER_HOST = "10.0.0.1"
PORT = 50061
LAST_TURNS = 200
START_AGAIN_S = 0.5
"""A supervisor waits so long before it starts a process again that was refused: its predecessor counts as alive."""
WALL_NS = 1_700_000_000_000_000_000


def host_of(index: int) -> str:
    """Return the host of a worker."""
    return f"10.0.0.{index + 2}"


def hosts_of(number: int) -> list[str]:
    """Return so many hosts: the scheduler's, and those of the first workers."""
    return [SCHEDULER_HOST, *map(host_of, range(number - 1))]


class Job(Protocol):
    """A kind of job; one file each, beside this one."""

    @property
    def spec(self) -> ModelSpec:
        """What its workers register."""

    def inbox(self, life: Life) -> RoundInbox | None:
        """Return where the results of rounds go that a worker applies by itself; None if it does not."""

    async def train(self, life: Life) -> None:
        """Do what a worker's training thread does, until the run is over or the worker leaves."""

    def progress(self, life: Life) -> int:
        """Return how much a worker has done."""


@dataclass(frozen=True, kw_only=True)
class FabricConfig:
    """What is played, without faults.

    Args:
        seed: of all chance.
        workers: how many the job has.
        hosts: how many there are, the scheduler's among them.
        link_bps: of each host's link, each way.
        told_bps: what each worker says that its link carries, up and down, 0 for nothing; None for ``link_bps``.
        latency_s: the least and the most that a message takes.
        acknowledged: how much the other way carries for what arrives over a link, as a share of that.
        state_dir: where the scheduler keeps its term.
    """

    seed: int
    workers: int = 2
    hosts: int = 8
    link_bps: float = 100e6
    told_bps: tuple[tuple[int, int], ...] | None = None
    latency_s: tuple[float, float] = (0.0002, 0.002)
    acknowledged: float = 0.0
    state_dir: Path | None = None


@dataclass(eq=False)
class Life:
    """One life of a worker: from the start of its process to its death, or until it leaves.

    Attributes:
        number: among all lives of the run that have joined; -1 before that.
        index: of the worker.
        leaves: it is to leave after its present call.
        link: its link to the scheduler.
        daemon: None until it was made.
    """

    index: int
    fabric: Fabric
    process: Process
    draw: random.Random
    number: int = -1
    link: MemoryLink | None = None
    daemon: WorkerDaemon | None = None
    leaves: bool = False

    @property
    def name(self) -> str:
        """The worker's."""
        return self.process.name

    @property
    def is_alive(self) -> bool:
        """Tell whether its process is there, stopped or not."""
        return not self.process.is_dead


class Fabric:
    """Everything that is played; :meth:`note` tells its story.

    Args:
        config: see there.
        job: what the workers do.
        story_lines: how many of the last lines of the story are kept.
    """

    def __init__(self, config: FabricConfig, job: Job, story_lines: int | None = None) -> None:
        self.config, self.job = config, job
        self.draw = random.Random(config.seed)
        self.loop = VirtualLoop(self.draw)
        self.links = Links(self.loop, self.draw, config.latency_s, config.acknowledged)
        self.calls = Calls(self.links)
        self.lives: list[Life] = []
        self.story: deque[str] = deque(maxlen=story_lines)
        self.failure: BaseException | None = None
        self.is_over = False
        self.scheduler: Process | None = None
        self._datagrams: dict[tuple[str, int], MemoryDatagrams] = {}
        self._server: MemoryServer | None = None
        self._processes: list[Process] = []
        self._numbers = count()
        self._wall_back_ns = 0
        self.loop.set_exception_handler(self._fault)
        for host in hosts_of(config.hosts):
            for direction in ("up", "down"):
                self.links.set_rate(host, direction, config.link_bps)

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{1e3 * (self.loop.time() - 1000.0):11.3f} ms  {text}")

    def wall_ns(self) -> int:
        """Return the time of day, which somebody may set back."""
        return WALL_NS + self.loop.time_ns() - self._wall_back_ns

    def set_clocks_back(self, seconds: float) -> None:
        """Let the time of day be earlier from now on."""
        self._wall_back_ns += round(1e9 * seconds)

    def fail(self, error: BaseException) -> None:
        """End the run: something does not hold."""
        self.failure = self.failure or error

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what nobody else has taken: a shell has a bug."""
        if not self.is_over:
            error = context.get("exception")
            self.fail(error if isinstance(error, BaseException) else AssertionError(context["message"]))

    # Members

    def _process(self, name: str, host: str) -> Process:
        process = Process(self.loop, name, host)
        self._processes.append(process)
        return process

    def start_scheduler(self) -> None:
        """Start a scheduler, which knows its term file alone."""
        process = self.scheduler = self._process("scheduler", SCHEDULER_HOST)
        server = self._server = MemoryServer(self.calls, process, f"{SCHEDULER_HOST}:{PORT}")
        datagrams = MemoryDatagrams(self.loop, self.links, process, PORT)
        self._datagrams[datagrams.getsockname()] = datagrams
        options = SchedulerOptions(
            bind=SCHEDULER_HOST,
            port=PORT,
            state_dir=self.config.state_dir,
            default_bps=round(self.config.link_bps),
        )
        runner = SchedulerRunner(options)
        serving = process.spawn(
            runner.serve(
                asyncio.Event(),
                lambda address: self.note(f"the scheduler is ready at {address}"),
                server,
                PORT,
                datagrams,
            )
        )
        self._watch(process, serving)

    def kill_scheduler(self) -> None:
        """Let the scheduler die."""
        assert self._server is not None, "it was started"
        self._server.process.kill()
        self._server.die()
        self.scheduler = None

    def start_worker(self, index: int) -> Life:
        """Start a worker on its host."""
        process = self._process(f"w{index}", host_of(index))
        life = Life(index, self, process, random.Random(f"{self.config.seed}/{len(self.lives)}"))
        self.lives.append(life)
        self._watch(process, process.spawn(self._live(life)))
        return life

    def start_if_absent(self, index: int) -> None:
        """Start a worker on its host if it is not there."""
        if not (self.is_over or any(life.index == index and life.is_alive for life in self.lives)):
            self.start_worker(index)

    async def _live(self, life: Life) -> None:
        config, host = self.config, life.process.host
        bps = round(config.link_bps)
        up_bps, down_bps = (bps, bps) if config.told_bps is None else config.told_bps[life.index]
        settings = WorkerSettings(
            scheduler=f"{SCHEDULER_HOST}:{PORT}",
            name=life.name,
            host=host,
            tcp=MemoryOptions(network=self.links, host=host, up_bps=up_bps, down_bps=down_bps),
        )
        life.link = MemoryLink(self.calls, self._datagrams)
        claim = JobClaim(workers=config.workers, resume=Resume.GO_ON)
        life.daemon = WorkerDaemon(
            settings, self.job.spec, None, WorkerMetrics(), claim, inbox=self.job.inbox(life), link=life.link
        )
        try:
            await life.daemon.start()
        except RefusedError as error:
            if "is taken" not in str(error):
                raise
            self.note(f"{life.name} ends and is started again: {error}")
            self.loop.call_later(START_AGAIN_S, self.start_if_absent, life.index, context=NATURE)
            self.kill(life)
            return
        life.number = next(self._numbers)
        self.note(f"{life.name} has joined, life {life.number}")
        await self.job.train(life)
        await life.daemon.close("it has no more to do")
        self.note(f"{life.name} has left")
        self.kill(life)

    def kill(self, life: Life) -> None:
        """Let a worker's process end."""
        life.process.kill()
        self.links.died(life.process)
        self.calls.died(life.process)
        if life.link is not None:
            life.link.died()

    def _watch(self, process: Process, task: asyncio.Task[Any]) -> None:
        """Let what a shell raises end the run."""

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not self.is_over:
                self.note(f"{process.name} ended: {type(error).__name__}: {error}")
                self.fail(error)

        task.add_done_callback(ended)

    # Time

    def run(self, seconds: float, happens: Callable[[], bool] = lambda: False) -> None:
        """Let so much virtual time pass, or until something happens.

        Raises:
            BaseException: what does not hold, or what a shell has raised.
        """
        end_s = self.loop.time() + seconds
        with clock.replaced(self.loop.time_ns, self.wall_ns):
            self.loop.run_until_complete(self._until(end_s, happens))
        if self.failure is not None:
            raise self.failure
        for life in self.lives:
            if life.is_alive and life.daemon is not None and life.daemon.failure.error is not None:
                raise life.daemon.failure.error

    async def _until(self, end_s: float, happens: Callable[[], bool]) -> None:
        while self.loop.time() < end_s and self.failure is None and not happens():
            await asyncio.sleep(min(0.05, end_s - self.loop.time()))

    def close(self) -> None:
        """Let everything come to an end that is left: nobody looks any more."""
        self.is_over = True
        with clock.replaced(self.loop.time_ns, self.wall_ns):
            self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.bury()
        for _ in range(10):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(_turns(LAST_TURNS))
        self.loop.close()


async def _turns(number: int) -> None:
    """Let the loop make turns: time may stand still."""
    for _ in range(number):
        await asyncio.sleep(0)
