"""The job of a prediction: workers that compute for as long as a cluster's do, and what becomes of their gradients.

A worker does what ``RoundOptimizer`` does, in the same order, with bytes that nobody looks at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mlfabric.lab.fabric import Life
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.attempts import ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage

__all__ = ["PredictedJob", "StepEnd"]

RATES = (0.1,)
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What a worker did in a step; instants in s.

    Args:
        delays: of each gradient that is in a round since this step, in rounds: its own, and those that were kept.
        dropped: how many of them are in none and never will be.
    """

    worker: int
    step: int
    began_s: float
    computed_s: float
    ended_s: float
    delays: tuple[int, ...] = ()
    dropped: int = 0


@dataclass(kw_only=True)
class PredictedJob:
    """Workers that begin together and go on until nobody looks any more.

    Args:
        method, rounds: how rounds are made.
        size_bytes: of the model, a multiple of 4.
        workers: how many there are.
        compute_s: returns how long a worker's step takes.
        begun: told when all workers have joined, and begin.
        ended: told of each step.

    Attributes:
        members: of each settled round, how many workers contributed.
    """

    method: Method
    rounds: RoundOptions
    size_bytes: int
    workers: int
    compute_s: Callable[[int, int], float]
    begun: Callable[[], None]
    ended: Callable[[StepEnd], None]
    members: list[int] = field(default_factory=list)
    _learners: dict[Life, _Learner] = field(default_factory=dict)
    _ready: int = 0
    _all_ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> ModelSpec:
        """What its workers register."""
        layout = Layout((TensorSpec(name="w", shape=(self.size_bytes // FLOAT32_BYTES,), dtype="float32"),))
        return ModelSpec(name="net", layout=layout, method=self.method, rounds=self.rounds)

    def inbox(self, life: Life) -> RoundInbox:
        """Return where results go at a worker."""
        self._learners[life] = _Learner(self, life)
        return self._learners[life].inbox

    async def train(self, life: Life) -> None:
        """Make steps."""
        learner = self._learners[life]
        await learner.take_state()
        self._ready += 1
        if self._ready == self.workers:
            self.begun()
            self._all_ready.set()
        await self._all_ready.wait()
        while True:
            await learner.step()

    def progress(self, life: Life) -> int:
        """Return how many steps a worker has made."""
        return self._learners[life].steps

    def settled(self, result: RoundResult) -> None:
        """Take a result that a worker applies; the first one counts."""
        if result.version > len(self.members):
            self.members += [result.workers] * (result.version - len(self.members))


class _Learner:
    """The training thread of one worker."""

    def __init__(self, job: PredictedJob, life: Life) -> None:
        self.inbox = RoundInbox(job.workers, self._copy_state)
        self.steps = 0
        self._job, self._life = job, life
        self._version = 0
        self._kept: list[int] = []
        """From which version each gradient was computed that is kept for the next step."""
        self._gradient = memoryview(bytes(job.size_bytes))
        self._news = asyncio.Event()
        self.inbox.news = self._news.set

    async def step(self) -> None:
        """Compute, offer, apply."""
        job, life = self._job, self._life
        assert life.daemon is not None, "it has joined"
        loop, own, step = life.fabric.loop, [*self._kept, self._version], self.steps
        began_s = loop.time()
        await asyncio.sleep(job.compute_s(life.index, step))
        computed_s = loop.time()
        delays, dropped = await self._offer(own)
        self.steps += 1
        job.ended(
            StepEnd(
                worker=life.index,
                step=step,
                began_s=began_s,
                computed_s=computed_s,
                ended_s=loop.time(),
                delays=tuple(delays),
                dropped=dropped,
            )
        )

    async def _offer(self, own: list[int]) -> tuple[list[int], int]:
        """Offer gradients that were computed from these versions; return their delays, or how many were dropped."""
        job, daemon = self._job, self._life.daemon
        assert daemon is not None, "it has joined"
        self._kept = []
        if await self.take_state():
            return [], len(own)
        result = self.inbox.buffer(padded_bytes(job.size_bytes))
        buffers = ReduceBuffers(given=self._gradient, result=result, dtype="float32")
        handle = daemon.reduce(buffers, ReduceOp.SUM, job.workers, own[-1], len(own), RATES)
        handle.add_done_callback(lambda _: self._news.set())
        while not handle.done():
            await self._news.wait()
            self._news.clear()
            await self._apply_all()
        outcome = handle.result()
        if isinstance(outcome, act.PassOver):
            self.inbox.give_back(result)
            await self._apply_all()
            self._kept = own if outcome.keep else []
            return [], len(own) - len(self._kept)
        await self._apply_all()
        return [outcome.version - 1 - version for version in own], 0

    async def _apply_all(self) -> None:
        assert self._life.daemon is not None, "it has joined"
        await self.take_state()
        while (result := self.inbox.take()) is not None:
            if result.version > self._version:
                self._version = result.version
                self._job.settled(result)
            self.inbox.give_back(result.total)
        self._life.daemon.applied(self._version)

    def _copy_state(self, is_loan: bool) -> StateImage:
        return StateImage(version=self._version, image=memoryview(bytearray(self._job.size_bytes)))

    async def take_state(self) -> bool:
        """Take the state that was fetched, waiting while it comes; return whether there was any."""
        assert self._life.daemon is not None, "it has joined"
        coming = self.inbox.coming
        if coming is None:
            return False
        state = await asyncio.shield(asyncio.wrap_future(coming))
        self.inbox.took(coming)
        self._version = state.version
        self._life.daemon.applied(self._version)
        return True
