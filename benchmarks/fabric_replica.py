"""What a replica costs, and whether its bound holds: scheduler, primary and replica here, workers as processes.

*Traffic.* Workers train for a fixed number of updates; the bytes that went to the replica after its seed are counted by
the replica. Strict replication (no lead allowed, so the replica has every update before it is committed) is compared
with a bound of 20 updates per worker. Beside it: chain replication (``benchmarks.chain``), where the server sends all
that it is about to apply to a follower first, over its own link; and checkpoints, one each time that as many updates
were committed as the bound allows.

*How to read the checkpoints' bytes.* They are the fewest: one image of the model (and of the optimizer's state) for
each period, where each worker sends one image, of what it folded, for each half period; with W workers that is about
1 / 2W of it. But a crash costs up to the whole period, ``checkpoint_lost_updates_max``, where the replica is seldom as
far behind as it may be, ``bounded_lost_updates_max``; and steps wait while a checkpoint is written. It is no server:
who goes on from it begins with reading it. And it leaves from the primary, to a disk of its host; to survive the loss
of that host it takes the primary's link.

*Divergence.* At random moments the world is stopped: workers by SIGSTOP, the primary between two steps. The replica
applies what it holds. Then the real tensors are compared with the bound.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import mlfabric
from benchmarks.chain import Follower, send_on
from mlfabric import ModelView
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.model.specs import MomentumAt, RuleSpec
from mlfabric.protocol import Commit
from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner

__all__ = ["Bound", "World", "run"]

WORKERS = 4
LEAD_PER_WORKER = 20
ELEMENTS = 16_384
TIMEOUT_S = 120.0
RULE = RuleSpec(lr=0.02, momentum=0.9, momentum_at=MomentumAt.WORKERS)
AT_SERVER = RuleSpec(lr=0.02, momentum=0.9, momentum_at=MomentumAt.SERVER, weight_decay=0.01)
PRIMARY_HOST = "server-host"
REPLICA_HOST = "replica-host"
NEVER_S = 1e6
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How far a primary may be ahead of its replica."""

    norm: float = math.inf
    updates: int | None = None


def run(updates_per_worker: int = 200, stops: int = 40) -> dict[str, float]:
    """Measure a replica's traffic and look for violations of its bound.

    Args:
        updates_per_worker: for each measurement of traffic.
        stops: how often the world is stopped, for each kind of bound and place of the momentum.

    Returns:
        ``replica_traffic_ratio``: bytes to the replica per applied update when strict, over those at a bound of 20
        updates per worker; ``replica_chain_traffic_ratio``: those of a chain over the same;
        ``{strict,bounded,chain,checkpoint}_bytes_per_update``: what each way comes to;
        ``{bounded,chain,checkpoint}_lost_updates_max``: how many commits the replica, or the newest checkpoint that was
        complete, was behind at most (``replica_updates_bound`` is what the bound allows);
        ``divergence_violations``, of ``divergence_stops``; ``divergence_share_max``: of the bound.
    """
    bound = LEAD_PER_WORKER * WORKERS
    strict, _ = _traffic(World(RULE, Bound(updates=0)), updates_per_worker)
    bounded, behind = _traffic(World(RULE, Bound(updates=bound)), updates_per_worker)
    chain, behind_chain = _traffic(ChainWorld(RULE), updates_per_worker)
    checkpoint, lost = _checkpoints(bound, updates_per_worker)
    found = [_stopped(rule, bound, stops) for rule in (RULE, AT_SERVER) for bound in _bounds()]
    return {
        "replica_traffic_ratio": strict / bounded,
        "replica_chain_traffic_ratio": chain / bounded,
        "strict_bytes_per_update": strict,
        "bounded_bytes_per_update": bounded,
        "chain_bytes_per_update": chain,
        "checkpoint_bytes_per_update": checkpoint,
        "replica_updates_bound": bound,
        "bounded_lost_updates_max": behind,
        "chain_lost_updates_max": behind_chain,
        "checkpoint_lost_updates_max": lost,
        "divergence_violations": sum(share > 1 for shares in found for share in shares),
        "divergence_stops": sum(map(len, found)),
        "divergence_share_max": max(share for shares in found for share in shares),
    }


def _bounds() -> tuple[Bound, ...]:
    return Bound(norm=0.0), Bound(norm=2.0), Bound(updates=3), Bound(norm=8.0, updates=20)


def _traffic(world: World, updates_per_worker: int) -> tuple[float, int]:
    """Return the bytes that the replica gets per applied update, and how many updates it is behind at most."""
    behind = 0

    def look(_model: str, _commit: Commit, _view: ModelView) -> None:
        nonlocal behind
        behind = max(behind, world.behind)

    with world:
        world.wait_for_seed()
        begin, sent = world.version, world.received()
        world.server.register_update_callback(look)
        world.train_all(updates_per_worker)
        return (world.received() - sent) / (world.version - begin), behind


def _checkpoints(every: int, updates_per_worker: int) -> tuple[float, int]:
    """Return the bytes of checkpoints per applied update, and how many updates a crash would have cost at most."""
    saved, lost, tasks = 0, 0, []
    with TemporaryDirectory() as folder, World(RULE, None, checkpoint_dir=Path(folder)) as world:
        service = world.server._service

        async def save() -> None:
            nonlocal saved
            for found in await service._stores.save():
                saved = max(saved, int(found.path.stem.rsplit("-v", 1)[1]))

        def look(_: str, commit: Commit, _view: ModelView) -> None:
            nonlocal lost
            lost = max(lost, commit.version.number - saved)
            if commit.version.number % every == 0:
                tasks.append(asyncio.create_task(save()))

        world.server.register_update_callback(look)
        world.train_all(updates_per_worker)
        _wait_until(lambda: all(task.done() for task in tasks), "checkpoints are written")
        size_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*.pt"))
        return size_bytes / world.version, lost


def _received(service: Any, host: str) -> float:
    """Return how many payload bytes a service has got from a host."""
    return service._metrics.registry.get_sample_value("mlfabric_received_bytes_total", {"peer": host}) or 0.0


def _stopped(rule: RuleSpec, bound: Bound, stops: int) -> list[float]:
    """Stop the world now and again; return which share of its bound the divergence had reached."""
    dice = random.Random(1)
    with World(rule, bound) as world:
        world.wait_for_seed()
        world.train()
        shares = []
        for _ in range(stops):
            time.sleep(dice.uniform(0.005, 0.05))
            with world.stopped() as (distance, updates):
                shares.append(max(_share(distance, bound.norm), _share(updates, bound.updates)))
        world.halt()
        return shares


def _share(found: float, allowed: float | None) -> float:
    if allowed is None or math.isinf(allowed):
        return 0.0
    return found / allowed if allowed else (2.0 if found > ROUNDING else 0.0)


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Pipe


class World:
    """A fabric with a replica.

    Args:
        rule: of the model.
        bound: of the replica; None for a fabric without one.
        workers: how many.
        checkpoint_dir: the primary's; it writes none by itself meanwhile.
    """

    def __init__(
        self, rule: RuleSpec, bound: Bound | None, workers: int = WORKERS, checkpoint_dir: Path | None = None
    ) -> None:
        self._rule, self._bound, self._checkpoint_dir = rule, bound, checkpoint_dir
        self.hosts = [f"host-{rank}" for rank in range(workers)]
        self._stack = ExitStack()
        self._workers: list[_Worker] = []

    def __enter__(self) -> World:
        with ExitStack() as stack:
            self._scheduler = stack.enter_context(_scheduler())
            self.server = stack.enter_context(
                mlfabric.register_as_server(
                    mlfabric.ServerOptions(
                        scheduler=self._scheduler,
                        host=PRIMARY_HOST,
                        checkpoint_dir=self._checkpoint_dir,
                        checkpoint_every_s=NEVER_S,
                        keep=1 << 20,
                    )
                )
            )
            self.start_workers(stack)
            if self._bound is not None:
                options = mlfabric.ReplicaOptions(
                    scheduler=self._scheduler,
                    replica_of="server-0",
                    host=REPLICA_HOST,
                    div_max=self._bound.norm,
                    div_max_updates=self._bound.updates,
                )
                self.replica = stack.enter_context(mlfabric.register_as_replica(options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def start_workers(self, stack: ExitStack) -> None:
        """Start the workers, and wait until each has the model."""
        context = multiprocessing.get_context("spawn")
        for rank in range(len(self.hosts)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._scheduler, rank, self._rule), daemon=True)
            process.start()
            stack.callback(_end, process)
            self._workers.append(_Worker(process, ours))
        self._answers()

    def _answers(self) -> list[Any]:
        for worker in self._workers:
            if not worker.pipe.poll(TIMEOUT_S):
                raise RuntimeError(f"a worker did not answer within {TIMEOUT_S} s")
        return [worker.pipe.recv() for worker in self._workers]

    @property
    def version(self) -> int:
        """The primary's version."""
        return int(self.server._service._stores.store("model").version)

    @property
    def replica_version(self) -> int:
        """The version that the replica has applied; -1 before its seed."""
        store = self.replica._service._stores._stores.get("model")
        return -1 if store is None else int(store.version)

    @property
    def behind(self) -> int:
        """How many commits the replica lacks, as far as the primary was told."""
        lead = self.server._service._state.models["model"].lead
        return sum(len(step.members) for step in lead._lead(lead._steps))

    def received(self) -> float:
        """Return how many payload bytes the replica has got."""
        return sum(_received(self.replica._service, host) for host in (PRIMARY_HOST, *self.hosts))

    def wait_for_seed(self) -> None:
        """Wait until the replica follows."""
        _wait_until(lambda: self.replica_version >= 0, "the replica is seeded")
        _wait_until(self._is_gated, "the primary keeps to its bound")

    def _is_gated(self) -> bool:
        return self.server._service._state.models["model"].lead.is_followed

    def train_all(self, updates: int) -> None:
        """Let each worker push so many updates."""
        for worker in self._workers:
            worker.pipe.send(updates)
        self._answers()

    def train(self) -> None:
        """Let workers push until they are halted."""
        for worker in self._workers:
            worker.pipe.send(0)

    def halt(self) -> None:
        """End what :meth:`train` began."""
        for worker in self._workers:
            worker.pipe.send(None)
        self._answers()

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            os.kill(worker.process.pid, number)

    @contextmanager
    def stopped(self) -> Iterator[tuple[float, int]]:
        """Stop workers and primary; give how far, and how many commits, the primary is from what is recovered."""
        self._signal(signal.SIGSTOP)
        turn, loop = self.server._service._stores.turn("model"), self.server._loop
        asyncio.run_coroutine_threadsafe(turn.acquire(), loop).result(TIMEOUT_S)
        try:
            yield self._divergence()
        finally:
            loop.call_soon_threadsafe(turn.release)
            self._signal(signal.SIGCONT)

    def _divergence(self) -> tuple[float, int]:
        ours, version = _copied(self.server._service._stores.store("model"))
        _wait_until(lambda: self._has_drained(version), "the replica has applied what it holds")
        theirs, recovered = _copied(self.replica._service._stores.store("model"))
        return float((ours - theirs).norm()), version - recovered

    def _has_drained(self, version: int) -> bool:
        """Tell whether the replica knows the whole log, and can apply no more of it."""
        model = self.replica._service._state.models["model"]
        logged = model.log[-1].version.number if model.log else model.version.number
        return model.is_idle and logged == version


class ChainWorld(World):
    """A fabric whose server is the head of a chain; the follower runs in its event loop."""

    def __init__(self, rule: RuleSpec) -> None:
        super().__init__(rule, None)
        self._follower = Follower(TcpOptions())

    def start_workers(self, stack: ExitStack) -> None:
        """Begin the chain, start the workers, and wait until each has the model."""
        send_on(self.server._service, self._in_server(self._follower.listen()))
        stack.callback(lambda: self._in_server(self._follower.close()))
        super().start_workers(stack)

    def _in_server(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.server._loop).result(TIMEOUT_S)

    @property
    def behind(self) -> int:
        """How many commits the follower lacks."""
        return self.version - self._follower.held

    def received(self) -> float:
        """Return how many bytes the follower has got after the initial weights."""
        return self._follower.step_bytes

    def wait_for_seed(self) -> None:
        """Wait until the follower has the initial weights."""
        _wait_until(lambda: self._follower.held >= 0, "the follower has the initial weights")


def _copied(store: Any) -> tuple[torch.Tensor, int]:
    with store.standing() as snapshot:
        tensors: Sequence[torch.Tensor] = list(snapshot.model.values())
        return torch.cat([t.reshape(-1) for t in tensors]), snapshot.version


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{what}: not within {TIMEOUT_S} s")
        time.sleep(0.001)


@contextmanager
def _scheduler() -> Iterator[str]:
    """Run a scheduler in a thread; gives its address."""
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    found: list[str] = []

    def ready(address: str) -> None:
        found.append(address)
        started.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(SchedulerRunner(SchedulerOptions(port=0)).run(stop, ready))
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        if not started.wait(TIMEOUT_S):
            raise RuntimeError(f"the scheduler did not start within {TIMEOUT_S} s")
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _end(process: Any) -> None:
    process.kill()
    process.join()


# The workers


def _work(pipe: Pipe, scheduler: str, rank: int, rule: RuleSpec) -> None:
    torch.set_num_threads(1)
    weights = torch.zeros(ELEMENTS, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(rank)
    goal = torch.randn(ELEMENTS, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    settings = WorkerSettings(scheduler=scheduler, name=f"worker-{rank}", host=f"host-{rank}", tcp=TcpOptions())
    with mlfabric.register_as_worker({"weights": weights}, rule=rule, settings=settings) as worker:
        worker.get()
        pipe.send("ready")
        while (updates := pipe.recv()) is not None:
            done = 0
            while done < updates or (not updates and not pipe.poll()):
                noise = torch.randn(ELEMENTS, dtype=torch.float64, generator=generator)
                weights.grad = 0.1 * (weights.detach() - goal) + 0.05 * noise
                done += isinstance(worker.push().result(TIMEOUT_S), mlfabric.Committed)
                worker.get()
            if updates:
                pipe.send("done")
                continue
            pipe.recv()
            pipe.send("done")
