"""The job of a prediction: workers that compute for as long as a cluster's do, and what becomes of their gradients.

What a worker does in its steps is ``RoundSteps``; nobody looks at the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mlfabric.lab.fabric import Life
from mlfabric.lab.loop_waits import LoopWaits
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.worker_daemon.attempts import padded_bytes
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult
from mlfabric.worker_daemon.round_steps import RoundSteps
from mlfabric.worker_daemon.step_roles import Offered, RoundOutcome

__all__ = ["PredictedJob", "StepEnd"]

RATES = (0.1,)
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What a worker did in a step; instants in s.

    Args:
        delays: of each gradient that is known in this step to be in a round: how many rounds late it was.
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
        waits: steps wait until it is known what becomes of their gradients.

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
    waits: bool
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
        return self._learners[life].steps.inbox

    async def train(self, life: Life) -> None:
        """Make steps."""
        learner = self._learners[life]
        assert life.daemon is not None, "it has joined"
        await learner.steps.begin(life.daemon)
        self._ready += 1
        if self._ready == self.workers:
            self.begun()
            self._all_ready.set()
        await self._all_ready.wait()
        while True:
            await learner.step()

    def progress(self, life: Life) -> int:
        """Return how many steps a worker has made."""
        return self._learners[life].count

    def settled(self, result: RoundResult) -> None:
        """Take a result that a worker applies; the first one counts."""
        if result.version > len(self.members):
            self.members += [result.workers] * (result.version - len(self.members))


class _Learner:
    """The training thread of one worker; of gradients it knows from which versions they were computed."""

    def __init__(self, job: PredictedJob, life: Life) -> None:
        self._job, self._life = job, life
        self._gradient = memoryview(bytes(job.size_bytes))
        self._delays: list[int] = []
        self._lost = self.count = 0
        self.size_bytes, self.dtype = padded_bytes(job.size_bytes), "float32"
        self.steps = RoundSteps(
            self,
            LoopWaits(lambda: 0.0),
            together=job.workers,
            passes_late=job.method is Method.PARTIAL,
            waits_for_rounds=job.waits,
        )

    async def step(self) -> None:
        """Compute, offer, apply."""
        job, life = self._job, self._life
        loop, step, version = life.fabric.loop, self.count, self.steps.version
        began_s = loop.time()
        await asyncio.sleep(job.compute_s(life.index, step))
        computed_s = loop.time()

        was_put = False

        def put(gathered: list[int], fresh: bool) -> bool:
            nonlocal was_put
            gathered[:], was_put = [version] if fresh else [*gathered, version], True
            return True

        await self.steps.step(put)
        self.count, self._lost = self.count + 1, self._lost + (not was_put)
        delays, self._delays, dropped, self._lost = tuple(self._delays), [], self._lost, 0
        job.ended(
            StepEnd(
                worker=life.index,
                step=step,
                began_s=began_s,
                computed_s=computed_s,
                ended_s=loop.time(),
                delays=delays,
                dropped=dropped,
            )
        )

    # What is trained

    def empty(self) -> list[int]:
        """Return where versions go."""
        return []

    def bytes_of(self, gathered: list[int]) -> memoryview:
        """Return the bytes that travel."""
        return self._gradient

    def add_earlier(self, gathered: list[int], earlier: list[int]) -> None:
        """Add to gradients those of earlier steps."""
        gathered[:0] = earlier

    def rates(self) -> tuple[float, ...]:
        """Return a learning rate."""
        return RATES

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Tell the job."""
        self._job.settled(result)

    def write(self) -> memoryview:
        """Return as many bytes as the weights have."""
        return memoryview(bytearray(self._job.size_bytes))

    def read(self, image: memoryview) -> None:
        """Nobody looks at it."""

    def included(self, offered: Offered[list[int]], outcome: RoundOutcome) -> None:
        """Note how late each gradient is."""
        before = offered.computed_from + outcome.delay
        self._delays += [before - version for version in offered.gathered]

    def dropped(self, gathered: list[int]) -> None:
        """Count it."""
        self._lost += len(gathered)
