"""Jobs without a server whose workers apply settled rounds by themselves.

What a worker does in its steps is ``RoundSteps``; what its training thread tells the daemon, and hears, takes a moment
each time. Its model is what it was made of: a digest of where it began and of all results that were applied. A gradient
says whose it is and of which step. With overlap it grows row by row while it is offered; now and then backward takes
much longer than usual in the middle, or breaks off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from mlfabric import clock
from mlfabric.channels.progress import Progress
from mlfabric.lab.fabric import Life
from mlfabric.lab.loop_waits import LoopWaits
from mlfabric.lab.marked_gradients import ROW, Gradient, gradient_of, gradients_in, weight_of
from mlfabric.lab.step_witness import StepWitness
from mlfabric.model.round_options import MOST_KEPT, RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.dealt_bytes import SEGMENTS
from mlfabric.worker_daemon.rest_of_backward import EarlyOffers
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult
from mlfabric.worker_daemon.round_steps import RoundSteps
from mlfabric.worker_daemon.step_roles import Offered, RoundOutcome

__all__ = ["StepJob"]

DIGEST_BYTES = 32
FORWARD = 1 / 3
"""Of a step; backward takes the rest."""
BUCKETS = 4
"""As many pieces of a gradient are made one after the other."""
STALLS, STALL_TIMES, BREAKS = 0.05, (2.0, 20.0), 0.05
"""How often backward stalls in a piece, for how many times as long as it takes; and in which share of the steps it
breaks off."""
MOST_LATE_S = 0.005
"""A thread that is told something goes on so much later at the most."""


def _ends_of_pieces(rows: int) -> list[int]:
    """Return where each piece of a gradient ends, in elements, from 0 on."""
    pieces = min(BUCKETS, rows)
    return [ROW * (rows * n // pieces) for n in range(pieces + 1)]


@dataclass(kw_only=True)
class StepJob:
    """Workers that compute, offer what they have computed, and apply what was settled, again and again.

    Args:
        method, rounds: how rounds are made.
        rows: of each gradient; where rounds have fragments, of the largest of them.
        compute_s: the least and the most that a step takes.
        workers: how many begin together.
        overlap: gradients are offered while backward makes them.
        waits: steps wait until it is known what becomes of their gradients; always with overlap.
        breaks: whether backward stalls and breaks off now and then.
    """

    method: Method
    rounds: RoundOptions
    rows: int
    compute_s: tuple[float, float]
    workers: int
    overlap: bool = False
    waits: bool = True
    breaks: bool = True
    witness: StepWitness = field(init=False)
    _learners: dict[Life, _Learner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Where steps do not wait, a gradient may wait for an earlier one, until a round of all, and then as long.
        partial = self.rounds.full_every if self.waits else 2 * self.rounds.full_every + 1
        most = {Method.ELASTIC: self.rounds.tau_max, Method.PARTIAL: partial}
        self.witness = StepWitness(most.get(self.method, 0), self._models)

    def _models(self) -> dict[int, bytes]:
        return {life.number: learner.digest for life, learner in self._learners.items() if life.is_alive}

    @property
    def spec(self) -> ModelSpec:
        """What its workers register."""
        layout = Layout((TensorSpec(name="w", shape=(self.rows * ROW,), dtype="float32"),))
        return ModelSpec(name="net", layout=layout, method=self.method, rounds=self.rounds)

    def rows_after(self, version: int) -> int:
        """Return the rows of a gradient of the round after this version: fragments are of different sizes."""
        return max(2, self.rows // (1 + version % self.rounds.fragments))

    def inbox(self, life: Life) -> RoundInbox:
        """Return where results go at a worker."""
        self._learners[life] = _Learner(self, life, len(self._learners))
        return self._learners[life].steps.inbox

    async def train(self, life: Life) -> None:
        """Make steps."""
        assert life.number < ROW - 1, "there are more lives than a row has room for"
        learner = self._learners[life]
        await learner.steps.begin(learner)
        while not life.leaves:
            await learner.step()

    def progress(self, life: Life) -> int:
        """Return how many gradients of a worker are in rounds."""
        return self.witness.finished[life.number]


class _Gathered:
    """Memory for the sum of gradients, and which those are."""

    def __init__(self, size: int) -> None:
        self.sum = np.zeros(size, np.float32)
        self.own: frozenset[Gradient] = frozenset()

    def put(self, own: Gradient, gradient: np.ndarray, part: slice, *, fresh: bool) -> None:
        """Put a part of a gradient in, or add it."""
        self.sum[part] = gradient[part] if fresh else self.sum[part] + gradient[part]
        self.own = frozenset({own}) if fresh else self.own | {own}


class _Learner:
    """The training thread of one worker."""

    def __init__(self, job: StepJob, life: Life, number: int) -> None:
        self._job, self._life = job, life
        self.digest = sha256(f"begins as {number}".encode()).digest()
        self._count = 0
        self._offers = EarlyOffers()
        self._own = (0, 0)
        """The gradient of the present step."""
        self._found: dict[Any, tuple[RoundResult, np.ndarray, frozenset[Gradient]]] = {}
        """In which rounds gradients are that were offered, the totals of those, and which gradients."""
        self._rows, self.dtype = job.rows, "float32"
        self.steps = RoundSteps(
            self,
            LoopWaits(lambda: life.draw.uniform(0.0, MOST_LATE_S)),
            together=job.workers,
            passes_late=job.method is Method.PARTIAL,
            waits_for_rounds=job.waits,
            most_kept=1 if job.method is Method.ELASTIC else MOST_KEPT,
            in_parts=job.rounds.fragments > 1,
            segments=SEGMENTS if job.overlap else 1,
        )

    async def step(self) -> None:
        """Compute, offer, apply."""
        step, self._count = self._count, self._count + 1
        self._own = self._life.number, step
        self.steps.weight = weight_of(self._own)
        if self._job.overlap:
            await self._step_with_overlap(gradient_of(*self._own, self._job.rows))
        else:
            await asyncio.sleep(self._life.draw.uniform(*self._job.compute_s))
            if self._job.rounds.fragments > 1:
                await self.steps.finish()
                self._rows = self._job.rows_after(self.steps.version)
            await self._step(gradient_of(*self._own, self._rows))
        self._offers.begin(clock.monotonic_ns())

    async def _step(self, gradient: np.ndarray) -> None:
        was_put = False

        def put(gathered: _Gathered, fresh: bool) -> bool:
            nonlocal was_put
            was_put = True
            gathered.put(self._own, gradient, slice(0, len(gradient)), fresh=fresh)
            return True

        await self.steps.step(put)
        if not was_put:
            self._drop_own("the model was fetched meanwhile")

    def _drop_own(self, reason: str) -> None:
        """Tell the witness of a gradient that was put nowhere."""
        self._life.fabric.note(f"{self._life.name}: {self._own} is in no round: {reason}")
        self._job.witness.dropped(frozenset({self._own}))

    async def _step_with_overlap(self, gradient: np.ndarray) -> None:
        """Offer a gradient while it grows."""
        job, draw, steps, fresh = self._job, self._life.draw, self.steps, self.steps.is_fresh
        lasts_s = draw.uniform(*job.compute_s)
        pieces = [slice(start, end) for start, end in pairwise(_ends_of_pieces(job.rows))]
        breaks_in = draw.randrange(len(pieces)) if job.breaks and draw.random() < BREAKS else None
        offered: Offered[_Gathered] | None = None
        growth, made_ns, begun = None, dict[int, int](), 0
        await asyncio.sleep(FORWARD * lasts_s)
        for number, piece in enumerate(pieces):
            times = draw.uniform(*STALL_TIMES) if job.breaks and draw.random() < STALLS else 1.0
            await asyncio.sleep(times * (1 - FORWARD) * lasts_s / len(pieces))
            if number == breaks_in:
                if offered is None:
                    self._drop_own("backward broke off")
                else:
                    await steps.give_up(offered, "backward broke off")
                return
            made_ns[number] = now_ns = clock.monotonic_ns()
            if offered is None and (patience_s := self._offers.patience_s(number, now_ns)) is not None:
                growth = GradientGrowth(progress=Progress(self.size_bytes), patience_s=patience_s)
                offered = steps.offer_growing(growth)
            if offered is not None and growth is not None:
                offered.gathered.put(self._own, gradient, slice(begun, piece.stop), fresh=fresh)
                begun = piece.stop
                if number < len(pieces) - 1:
                    growth.progress.advance(4 * piece.stop)
        self._offers.ended(made_ns, clock.monotonic_ns())
        if offered is None or growth is None:
            await self._step(gradient)
            return
        growth.progress.advance(growth.progress.size_bytes)
        await steps.end_growing(offered, is_finite=True)

    # What is trained

    @property
    def size_bytes(self) -> int:
        """Of what travels."""
        return padded_bytes(self._rows * ROW * 4)

    def empty(self) -> _Gathered:
        """Return memory for gradients."""
        return _Gathered(self._job.rows * ROW)

    def bytes_of(self, gathered: _Gathered) -> memoryview:
        """Return the bytes that travel."""
        return gathered.sum[: self._rows * ROW].data.cast("B").toreadonly()

    def add_earlier(self, gathered: _Gathered, earlier: _Gathered) -> None:
        """Add to gradients those of earlier steps."""
        gathered.sum += earlier.sum
        gathered.own |= earlier.own

    def rates(self) -> tuple[float, ...]:
        """Return the number of the life, so that the mean says whose are in a round."""
        return (float(self._life.number),)

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Make the next model."""
        values = self._values(result, total)
        before, after = self.digest, sha256(self.digest + values.tobytes()).digest()
        self._job.witness.applied(self._life.number, result, values, before, after)
        self.digest = after

    def _values(self, result: RoundResult, total: memoryview) -> np.ndarray:
        return np.frombuffer(total, np.float32)[: self._job.rows_after(result.version - 1) * ROW].copy()

    def write(self) -> memoryview:
        """Return the digest, as often as makes an image of the model's size."""
        return memoryview(bytearray(self.digest * (self._job.rows * ROW * 4 // DIGEST_BYTES)))

    def read(self, image: memoryview) -> None:
        """Install the digest of a peer."""
        self.digest = bytes(image[:DIGEST_BYTES])
        assert bytes(image) == self.digest * (len(image) // DIGEST_BYTES), "a state was torn"
        self._life.fabric.note(f"{self._life.name} has the state of a peer")
        self._job.witness.fetched += 1

    def included(self, offered: Offered[_Gathered], outcome: RoundOutcome) -> None:
        """Tell the witness."""
        life, (result, total, own) = self._life, self._found.pop(offered.outcome)
        assert offered.gathered.own == own, f"{life.name}: {sorted(own)} became {sorted(offered.gathered.own)}"
        # What is elastic may have waited for an earlier offer, for as long as that took: its delay counts from its own.
        is_elastic, version = self._job.method is Method.ELASTIC, offered.contribution.computed_from
        delay = result.version - 1 - version if is_elastic else outcome.delay
        self._job.witness.included(own, result, total, delay)
        life.fabric.note(f"{life.name}: {sorted(own)} are in round {result.version}, delay {delay}")

    def dropped(self, gathered: _Gathered) -> None:
        """Tell the witness."""
        self._life.fabric.note(f"{self._life.name}: {sorted(gathered.own)} are in no round")
        self._job.witness.dropped(gathered.own)

    # The daemon

    def offer(self, contribution: Contribution) -> asyncio.Future[Any]:
        """Offer gradients for a round, and keep in mind which ones; of one that grows, nothing has been put in yet."""
        assert self._life.daemon is not None, "it has joined"
        buffers, updates = contribution.buffers, contribution.updates
        assert buffers.given is not None, "it offers something"
        given, grows = np.frombuffer(buffers.given, np.float32), _is_growing(buffers)
        own = gradients_in(given) if updates > grows else frozenset()
        own |= {self._own} if grows else frozenset()
        assert len(own) == updates <= MOST_KEPT, f"{self._life.name} offers {sorted(own)} as {updates} gradients"
        outcome = self._life.daemon.offer(contribution)
        outcome.add_done_callback(partial(self._settled, buffers, own))
        return outcome

    def _settled(self, buffers: ReduceBuffers, own: frozenset[Gradient], outcome: asyncio.Future[Any]) -> None:
        """Look whether what was offered is still the same. Keep the total: its memory is used again once applied."""
        if outcome.cancelled() or outcome.exception() is not None:
            return
        assert buffers.given is not None, "it offers something"
        if not _is_growing(buffers):
            found = gradients_in(np.frombuffer(buffers.given, np.float32))
            assert found == own, f"{self._life.name}: {sorted(own)} were written to: {sorted(found)}"
        result = outcome.result()
        if isinstance(result, RoundResult):
            with self.steps.inbox.in_order(result) as total:
                self._found[outcome] = result, self._values(result, total), own
        else:
            kept = "kept" if result.keep else "not kept"
            self._life.fabric.note(f"{self._life.name}: {sorted(own)} are {kept}: {result.reason}")

    def withdraw(self, growth: GradientGrowth, reason: str) -> None:
        """Have gradients that are offered while they are made be in no round."""
        assert self._life.daemon is not None, "it has joined"
        self._life.daemon.withdraw(growth, reason)

    def applied(self, version: int) -> None:
        """Say that all rounds up to this version are applied."""
        assert self._life.daemon is not None, "it has joined"
        self._life.daemon.applied(version)


def _is_growing(buffers: ReduceBuffers) -> bool:
    return buffers.growth is not None and not buffers.growth.progress.is_complete
