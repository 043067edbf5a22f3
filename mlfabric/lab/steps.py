"""Jobs without a server whose workers apply settled rounds by themselves.

A worker does what ``RoundOptimizer`` does, in the same order; what its training thread tells the daemon, and
hears, takes a moment each time. Its model is what it was made of: a digest of where it began and of all results that
were applied. A gradient says whose it is and of which step; where steps do not wait, those of later steps are added up
while one is on its way. With overlap it grows row by row while it is offered; now and then backward takes much longer
than usual in the middle, or breaks off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from mlfabric import clock
from mlfabric.channels.progress import Progress
from mlfabric.errors import TransferError
from mlfabric.lab.fabric import Life
from mlfabric.lab.marked_gradients import ROW, Gradient, gradient_of, gradients_in
from mlfabric.lab.step_witness import StepWitness
from mlfabric.model.round_options import MOST_KEPT, RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.dealt_bytes import SEGMENTS
from mlfabric.worker_daemon.rest_of_backward import EarlyOffers
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage

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
        rows: of each gradient.
        compute_s: the least and the most that a step takes.
        workers: how many begin together.
        overlap: gradients are offered while backward makes them.
        waits: steps wait until it is known what becomes of their gradients.
        breaks: whether backward stalls and breaks off now and then.
        noise: the variance of the gradients that they tell of, where the square of their true mean is 1.
    """

    method: Method
    rounds: RoundOptions
    rows: int
    compute_s: tuple[float, float]
    workers: int
    overlap: bool = False
    waits: bool = True
    breaks: bool = True
    noise: float = 8.0
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

    def inbox(self, life: Life) -> RoundInbox:
        """Return where results go at a worker."""
        self._learners[life] = _Learner(self, life, len(self._learners))
        return self._learners[life].inbox

    async def train(self, life: Life) -> None:
        """Make steps."""
        assert life.number < ROW - 1, "there are more lives than a row has room for"
        learner = self._learners[life]
        await learner.take_state()
        while not life.leaves:
            await learner.step()

    def progress(self, life: Life) -> int:
        """Return how many gradients of a worker are in rounds."""
        return self.witness.finished[life.number]


@dataclass(slots=True, kw_only=True)
class _Sent:
    """Gradients that were offered, their sum, and what will become of them; ``total`` is of the round they are in."""

    own: frozenset[Gradient]
    gathered: np.ndarray
    computed_from: int
    buffers: ReduceBuffers
    handle: asyncio.Future[Any]
    total: np.ndarray | None = None


class _Learner:
    """The training thread of one worker."""

    def __init__(self, job: StepJob, life: Life, number: int) -> None:
        self.inbox = RoundInbox(job.workers, self._copy_state, SEGMENTS if job.overlap else 1)
        self._job, self._life = job, life
        self.digest = sha256(f"begins as {number}".encode()).digest()
        self._is_lent = False
        self._version = self._steps = 0
        self._offers = EarlyOffers()
        self._gathered = self._spare = np.zeros(job.rows * ROW, np.float32)
        if not job.waits:
            self._spare = np.zeros_like(self._gathered)
        self._gradients: frozenset[Gradient] = frozenset()
        self._sent: _Sent | None = None
        self._news = asyncio.Event()
        self.inbox.news = self._news.set

    async def step(self) -> None:
        """Compute, offer, apply."""
        step = self._steps
        self._steps += 1
        await (self._step_with_overlap if self._job.overlap else self._step)(step)
        self._offers.begin(clock.monotonic_ns())

    async def _step(self, step: int) -> None:
        computed_from = self._version
        await asyncio.sleep(self._life.draw.uniform(*self._job.compute_s))
        self._make(self._gathered, slice(None), gradient_of(self._life.number, step, self._job.rows))
        await self._offer_whole(step, computed_from)

    def _make(self, into: np.ndarray, part: slice, gradient: np.ndarray, *, fresh: bool | None = None) -> None:
        """Add a part of a gradient to those of earlier steps."""
        is_fresh = not self._gradients if fresh is None else fresh
        into[part] = gradient[part] if is_fresh else into[part] + gradient[part]

    async def _offer_whole(self, step: int, computed_from: int) -> None:
        """Offer a gradient that is complete, unless earlier ones are on their way or the model is fetched."""
        self._gradients |= {(self._life.number, step)}
        if await self.take_state():
            self._drop_gathered()
            return
        await self._cross()
        if self._job.waits:
            await self._became_of(self._offer(self._gradients, computed_from))
            return
        sent = self._sent
        if sent is not None and not sent.handle.done() and len(sent.own) + len(self._gradients) < MOST_KEPT:
            await self._apply_all()
            return
        self._sent = None
        if sent is not None:
            await self._became_of(sent)
        else:
            await self._apply_all()
        self._sent = self._offer(self._gradients, computed_from)

    def _offer(self, own: frozenset[Gradient], computed_from: int, growth: GradientGrowth | None = None) -> _Sent:
        assert len(own) <= MOST_KEPT, f"life {self._life.number} keeps {sorted(own)}"
        gathered, self._gathered, self._gradients = self._gathered, self._spare, frozenset()
        self._spare = gathered
        return self._give(own, gathered, computed_from, growth)

    def _give(
        self,
        own: frozenset[Gradient],
        gathered: np.ndarray,
        computed_from: int,
        growth: GradientGrowth | None = None,
    ) -> _Sent:
        assert self._life.daemon is not None, "it has joined"
        given = gathered.data.cast("B").toreadonly()
        result, rates = self.inbox.buffer(padded_bytes(given.nbytes)), (float(self._life.number),)
        squares = self._job.noise + 1.0, self._job.noise / self._job.workers + 1.0
        buffers = ReduceBuffers(given=given, result=result, dtype="float32", growth=growth)
        reduce, together = self._life.daemon.reduce, self._job.workers
        told_from = computed_from if self._job.waits else self._version
        handle = reduce(buffers, ReduceOp.SUM, together, told_from, len(own), rates, squares)
        sent = _Sent(own=own, gathered=gathered, computed_from=computed_from, buffers=buffers, handle=handle)
        handle.add_done_callback(lambda done: self._settled(sent, done))
        return sent

    def _settled(self, sent: _Sent, done: asyncio.Future[Any]) -> None:
        """Keep what gradients are in: the result's memory is used again once it was applied."""
        is_known = not done.cancelled() and done.exception() is None and sent.total is None
        if is_known and not isinstance(done.result(), act.PassOver):
            sent.total = self._total(done.result())

    async def _became_of(self, sent: _Sent) -> None:
        """Wait until it is known what becomes of gradients, and apply what is settled."""
        own, growth, life = sent.own, sent.buffers.growth, self._life
        outcome = await self._outcome_of(sent.handle)
        self._settled(sent, sent.handle)
        assert gradients_in(sent.gathered) == own, f"life {life.number}: its gradients {sorted(own)} were written to"
        if isinstance(outcome, act.PassOver):
            self.inbox.give_back(sent.buffers.result)
            if growth is not None and growth.is_late and not outcome.keep:
                life.fabric.note(f"{life.name}: {sorted(own)} are offered again: {outcome.reason}")
                await self._became_of(self._give(own, sent.gathered, sent.computed_from))
                return
            life.fabric.note(f"{life.name}: {sorted(own)}: {'kept' if outcome.keep else 'dropped'}: {outcome.reason}")
            if outcome.keep:
                self._keep(sent)
            await self._cross()
            await self._apply_all()
            if not outcome.keep:
                self._job.witness.dropped(own)
            return
        delay = outcome.version - 1 - sent.computed_from
        assert sent.total is not None, "it was settled"
        self._job.witness.included(own, outcome, sent.total, delay)
        life.fabric.note(f"{life.name}: {sorted(own)} are in round {outcome.version}, delay {delay}")
        await self._cross()
        await self._apply_all()

    async def _outcome_of(self, handle: asyncio.Future[Any]) -> Any:
        """Wait for it, and apply what is settled meanwhile."""
        handle.add_done_callback(lambda _: self._news.set())
        while not handle.done():
            await self._news.wait()
            self._news.clear()
            if not handle.done():
                await self._cross()
                await self._apply_all()
        return handle.result()

    def _keep(self, sent: _Sent) -> None:
        if self._gradients:
            self._gathered += sent.gathered
        else:
            self._gathered, self._spare = sent.gathered, self._gathered
        self._gradients |= sent.own

    # Overlap with backward

    async def _step_with_overlap(self, step: int) -> None:
        """Offer a gradient while it grows."""
        job, draw, computed_from, into = self._job, self._life.draw, self._version, self._gathered
        gradient, lasts_s = gradient_of(self._life.number, step, job.rows), draw.uniform(*job.compute_s)
        own, fresh = self._gradients | {(self._life.number, step)}, not self._gradients
        pieces = [slice(start, end) for start, end in pairwise(_ends_of_pieces(job.rows))]
        breaks_in = draw.randrange(len(pieces)) if job.breaks and draw.random() < BREAKS else None
        offered: _Sent | None = None
        growth, made_ns = None, dict[int, int]()
        await asyncio.sleep(FORWARD * lasts_s)
        for number, piece in enumerate(pieces):
            times = draw.uniform(*STALL_TIMES) if job.breaks and draw.random() < STALLS else 1.0
            await asyncio.sleep(times * (1 - FORWARD) * lasts_s / len(pieces))
            if number == breaks_in:
                await self._break_off(own, offered)
                return
            self._make(into, piece, gradient, fresh=fresh)
            made_ns[number] = now_ns = clock.monotonic_ns()
            is_late = job.method is Method.PARTIAL and (self._sent is not None or not self.inbox.is_empty)
            if offered is None and self.inbox.coming is None and not is_late:
                patience_s = self._offers.patience_s(number, now_ns)
                if patience_s is not None:
                    growth = GradientGrowth(progress=Progress(into.nbytes), patience_s=patience_s)
                    offered = self._offer(own, computed_from, growth)
            if growth is not None and number < len(pieces) - 1:
                growth.progress.advance(4 * piece.stop)
        self._offers.ended(made_ns, clock.monotonic_ns())
        if offered is None or growth is None:
            await self._offer_whole(step, computed_from)
            return
        growth.progress.advance(growth.progress.size_bytes)
        if job.waits:
            await self._became_of(offered)
        else:
            self._sent = offered
            await self._apply_all()

    async def _break_off(self, own: frozenset[Gradient], offered: _Sent | None) -> None:
        """Have a gradient that will not be whole be in no round; those of earlier steps are in it and are lost, too."""
        assert self._life.daemon is not None, "it has joined"
        if offered is not None:
            assert offered.buffers.growth is not None, "it grew"
            self._life.daemon.withdraw(offered.buffers.growth, "backward broke off")
            passed = await offered.handle
            assert isinstance(passed, act.PassOver), f"{sorted(own)} are half made, and in {passed}"
            self._life.fabric.note(f"{self._life.name}: {sorted(own)}: {passed.reason}")
            self.inbox.give_back(offered.buffers.result)
        else:
            self._gradients = frozenset()
        self._job.witness.dropped(own)

    def _drop_gathered(self) -> None:
        self._job.witness.dropped(self._gradients)
        self._gradients = frozenset()

    async def _cross(self) -> None:
        """Go on a little later, as a thread does."""
        await asyncio.sleep(self._life.draw.uniform(0.0, MOST_LATE_S))

    def _total(self, result: RoundResult) -> np.ndarray:
        with self.inbox.in_order(result) as total:
            return np.frombuffer(total, np.float32)[: self._job.rows * ROW].copy()

    async def _apply_all(self) -> None:
        assert self._life.daemon is not None, "it has joined"
        await self.take_state()
        while (result := self.inbox.take()) is not None:
            await self._cross()
            if result.version > self._version:
                self._apply(result)
            self.inbox.give_back(result.total)
        await self._cross()
        self._life.daemon.applied(self._version)

    def _apply(self, result: RoundResult) -> None:
        version, life = result.version, self._life
        assert version == self._version + 1, f"round {version} came to {life.name}'s model of version {self._version}"
        assert not self._is_lent, f"round {version} came to {life.name}, who was lent its weights"
        total = self._total(result)
        before, after = self.digest, sha256(self.digest + total.tobytes()).digest()
        self._job.witness.applied(life.number, result, total, before, after)
        self._version, self.digest = version, after

    # State for and from peers

    def _copy_state(self, is_loan: bool) -> StateImage:
        """Copy the digest, as often as makes an image of the model's size."""
        if self._is_lent and not is_loan:
            raise TransferError("the weights are lent")
        times = self._job.rows * ROW * 4 // DIGEST_BYTES
        return StateImage(version=self._version, image=memoryview(bytearray(self.digest * times)))

    async def take_state(self) -> bool:
        """Install the state that was fetched, waiting while it comes; return whether there was any."""
        assert self._life.daemon is not None, "it has joined"
        coming = self.inbox.coming
        if coming is None:
            return False
        state = await asyncio.shield(asyncio.wrap_future(coming))
        await self._cross()
        self.inbox.took(coming)
        if state.image is not None:
            image = bytes(state.image)
            self.digest = image[:DIGEST_BYTES]
            assert image == self.digest * (len(image) // DIGEST_BYTES), "a state was torn"
            self._job.witness.fetched += not state.is_loan
            self._job.witness.lent += state.is_loan
        self._is_lent = state.is_loan
        self._version = state.version
        self._life.fabric.note(f"{self._life.name} has the state of version {self._version}")
        await self._cross()
        self._life.daemon.applied(self._version)
        return True
