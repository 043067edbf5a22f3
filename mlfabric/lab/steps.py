"""Jobs without a server whose workers apply settled rounds by themselves, and the witness of their models.

A worker does what ``RoundOptimizer`` does, in the same order; what its training thread tells the daemon, and
hears, takes a moment each time. Its model is what it was made of: a digest of where it began and of all results that
were applied. A gradient says whose it is and of which step, and what is kept is added to the next one. With overlap it
grows row by row while it is offered; now and then backward takes much longer than usual in the middle, or breaks off.

What must hold: a result is a sum, in all rows, of gradients that were given, each in one sum only and once; what a
worker is told is in a round is in its sum, within the delay bound, and what was dropped is in none; whoever has
applied a result has the same model.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
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
from mlfabric.model.round_options import MOST_KEPT, RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.dealt_bytes import SEGMENTS
from mlfabric.worker_daemon.rest_of_backward import EarlyOffers
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage

__all__ = ["StepJob", "StepWitness"]

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


class StepWitness:
    """Sees what every worker gives, gets and applies.

    Args:
        most_delay: how many rounds may be settled between the model that a gradient is computed from and its round.
        models: returns the digest of each worker's model that is alive, by the number of its life. What nobody has any
            more may be made again in another way: all who had it may have died.

    Attributes:
        finished: how many gradients of each life are in rounds.
        fetched, lent: how many states workers had from others, and how often the weights alone.
        failed: how many gradients were dropped.
    """

    def __init__(self, most_delay: int, models: Callable[[], dict[int, bytes]]) -> None:
        self.finished: Counter[int] = Counter()
        self.failed = self.fetched = self.lent = 0
        self._most_delay, self._living = most_delay, models
        self._results: dict[Gradient, bytes] = {}
        self._models: dict[bytes, bytes] = {}
        self._made: dict[bytes, tuple[bytes, bytes]] = {}
        """From which model, and with which result, each was made."""
        self._had_outcome: set[Gradient] = set()
        self._dropped: set[Gradient] = set()

    def applied(self, life: int, result: RoundResult, total: np.ndarray, before: bytes, digest: bytes) -> None:
        """Take what a worker has applied, and its model before and afterwards."""
        inside, bits = gradients_in(total), total.tobytes()
        lives = {each for each, _ in inside}
        assert (len(inside), len(lives)) == (result.updates, result.workers), (
            f"{sorted(inside)} are in round {result.version}; {result} was told"
        )
        assert abs(result.rates[0] - sum(lives) / len(lives)) < 1e-3, f"{result.rates} are the rates of {lives}"
        for gradient in sorted(inside):
            if self._results.setdefault(gradient, bits) != bits:
                found = sorted(number for number, model in self._living().items() if self._has(model, gradient))
                assert not found, f"{gradient} is in round {result.version}, and in another one that {found} have"
                self._results[gradient] = bits
            assert gradient not in self._dropped, f"{gradient} is in a result; its worker was told that it was dropped"
        self._made[digest] = before, bits
        agreed = self._models.setdefault(bits, digest)
        assert agreed == digest, f"life {life} has another model after round {result.version} than others have"

    def _has(self, model: bytes, gradient: Gradient) -> bool:
        """Tell whether a result that a gradient is in was applied to a model."""
        while model in self._made:
            model, bits = self._made[model]
            if gradient in gradients_in(np.frombuffer(bits, np.float32)):
                return True
        return False

    def included(self, gradients: frozenset[Gradient], result: RoundResult, total: np.ndarray, delay: int) -> None:
        """Take the news that these gradients of a worker are in a round."""
        inside = gradients_in(total)
        assert gradients <= inside, f"{sorted(gradients - inside)} are not in round {result.version}"
        assert 0 <= delay <= self._most_delay, f"{sorted(gradients)} have delay {delay}"
        self._have_outcome(gradients)
        for life, _ in gradients:
            self.finished[life] += 1

    def dropped(self, gradients: frozenset[Gradient]) -> None:
        """Take the news that these gradients are in no round and never will be."""
        self._have_outcome(gradients)
        self.failed += len(gradients)
        self._dropped |= gradients
        found = sorted(gradients & self._results.keys())
        assert not found, f"{found} are in a result; their worker is told that they were dropped"

    def _have_outcome(self, gradients: frozenset[Gradient]) -> None:
        again = sorted(gradients & self._had_outcome)
        assert not again, f"{again} had an outcome before"
        self._had_outcome |= gradients


@dataclass(kw_only=True)
class StepJob:
    """Workers that compute, offer what they have computed, and apply what was settled, again and again.

    Args:
        method, rounds: how rounds are made.
        rows: of each gradient.
        compute_s: the least and the most that a step takes.
        workers: how many begin together.
        overlap: gradients are offered while backward makes them.
        breaks: whether backward stalls and breaks off now and then.
        noise: the variance of the gradients that they tell of, where the square of their true mean is 1.
    """

    method: Method
    rounds: RoundOptions
    rows: int
    compute_s: tuple[float, float]
    workers: int
    overlap: bool = False
    breaks: bool = True
    noise: float = 8.0
    witness: StepWitness = field(init=False)
    _learners: dict[Life, _Learner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        most = {Method.ELASTIC: self.rounds.tau_max, Method.PARTIAL: self.rounds.full_every}
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


class _Learner:
    """The training thread of one worker."""

    def __init__(self, job: StepJob, life: Life, number: int) -> None:
        self.inbox = RoundInbox(job.workers, self._copy_state, SEGMENTS if job.overlap else 1)
        self._job, self._life = job, life
        self.digest = sha256(f"begins as {number}".encode()).digest()
        self._is_lent = False
        self._version = self._steps = 0
        self._offers = EarlyOffers()
        self._offered: np.ndarray = np.zeros(job.rows * ROW, np.float32)
        self._gradients: frozenset[Gradient] = frozenset()

    async def step(self) -> None:
        """Compute, offer, apply."""
        step = self._steps
        self._steps += 1
        own = self._gradients | {(self._life.number, step)}
        assert len(own) <= MOST_KEPT, f"life {self._life.number} keeps {sorted(own)}"
        await (self._step_with_overlap if self._job.overlap else self._step)(step, own)
        self._offers.begin(clock.monotonic_ns())

    async def _step(self, step: int, own: frozenset[Gradient]) -> None:
        computed_from = self._version
        await asyncio.sleep(self._life.draw.uniform(*self._job.compute_s))
        self._make(slice(None), gradient_of(self._life.number, step, self._job.rows))
        await self._offer_whole(own, computed_from)

    def _make(self, part: slice, gradient: np.ndarray) -> None:
        """Add a part of a gradient to what is kept of earlier ones."""
        self._offered[part] = self._offered[part] + gradient[part] if self._gradients else gradient[part]

    async def _offer_whole(self, own: frozenset[Gradient], computed_from: int) -> None:
        """Offer a gradient that is complete, unless it is clear already that it is in no round."""
        if await self.take_state():
            self._drop(own)
            return
        self._gradients = own
        await self._cross()
        await self._became_of(own, self._offer(own, computed_from))

    def _offer(
        self, own: frozenset[Gradient], computed_from: int, growth: GradientGrowth | None = None
    ) -> tuple[int, ReduceBuffers, asyncio.Future[Any]]:
        assert self._life.daemon is not None, "it has joined"
        given = self._offered.data.cast("B").toreadonly()
        result, rates = self.inbox.buffer(padded_bytes(given.nbytes)), (float(self._life.number),)
        squares = self._job.noise + 1.0, self._job.noise / self._job.workers + 1.0
        buffers = ReduceBuffers(given=given, result=result, dtype="float32", growth=growth)
        reduce, together = self._life.daemon.reduce, self._job.workers
        return computed_from, buffers, reduce(buffers, ReduceOp.SUM, together, computed_from, len(own), rates, squares)

    async def _became_of(
        self, own: frozenset[Gradient], offered: tuple[int, ReduceBuffers, asyncio.Future[Any]]
    ) -> None:
        """Wait until it is known what becomes of gradients, and apply what is settled."""
        computed_from, buffers, handle = offered
        life, outcome = self._life, await handle
        assert gradients_in(self._offered) == own, f"life {life.number}: its gradients {sorted(own)} were written to"
        if isinstance(outcome, act.PassOver):
            life.fabric.note(f"{life.name}: {sorted(own)}: {'kept' if outcome.keep else 'dropped'}: {outcome.reason}")
            self.inbox.give_back(buffers.result)
            await self._cross()
            await self._apply_all()
            if not outcome.keep:
                self._drop(own)
            return
        delay = outcome.version - 1 - computed_from
        self._job.witness.included(own, outcome, self._total(outcome), delay)
        life.fabric.note(f"{life.name}: {sorted(own)} are in round {outcome.version}, delay {delay}")
        self._gradients = frozenset()
        await self._cross()
        await self._apply_all()

    # Overlap with backward

    async def _step_with_overlap(self, step: int, own: frozenset[Gradient]) -> None:
        """Offer a gradient while it grows; offer it again if it was too late for that."""
        job, draw, computed_from = self._job, self._life.draw, self._version
        gradient, lasts_s = gradient_of(self._life.number, step, job.rows), draw.uniform(*job.compute_s)
        pieces = [slice(start, end) for start, end in pairwise(_ends_of_pieces(job.rows))]
        breaks_in = draw.randrange(len(pieces)) if job.breaks and draw.random() < BREAKS else None
        offered, growth, made_ns = None, None, dict[int, int]()
        await asyncio.sleep(FORWARD * lasts_s)
        for number, piece in enumerate(pieces):
            times = draw.uniform(*STALL_TIMES) if job.breaks and draw.random() < STALLS else 1.0
            await asyncio.sleep(times * (1 - FORWARD) * lasts_s / len(pieces))
            if number == breaks_in:
                await self._break_off(own, offered)
                return
            self._make(piece, gradient)
            made_ns[number] = now_ns = clock.monotonic_ns()
            is_late = job.method is Method.PARTIAL and not self.inbox.is_empty
            if offered is None and self.inbox.coming is None and not is_late:
                patience_s = self._offers.patience_s(number, now_ns)
                if patience_s is not None:
                    growth = GradientGrowth(progress=Progress(self._offered.nbytes), patience_s=patience_s)
                    offered = self._offer(own, computed_from, growth)
            if growth is not None and number < len(pieces) - 1:
                growth.progress.advance(4 * piece.stop)
        self._offers.ended(made_ns, clock.monotonic_ns())
        if offered is None or growth is None:
            await self._offer_whole(own, computed_from)
            return
        self._gradients = own
        growth.progress.advance(growth.progress.size_bytes)
        passed = await offered[2]
        if growth.is_late and isinstance(passed, act.PassOver) and not passed.keep:
            self._life.fabric.note(f"{self._life.name}: {sorted(own)} are offered again: {passed.reason}")
            self.inbox.give_back(offered[1].result)
            offered = self._offer(own, computed_from)
        await self._became_of(own, offered)

    async def _break_off(
        self, own: frozenset[Gradient], offered: tuple[int, ReduceBuffers, asyncio.Future[Any]] | None
    ) -> None:
        """Have a gradient that will not be whole be in no round; what was kept went into it and is lost."""
        assert self._life.daemon is not None, "it has joined"
        if offered is not None:
            _, buffers, handle = offered
            assert buffers.growth is not None, "it grew"
            self._life.daemon.withdraw(buffers.growth, "backward broke off")
            passed = await handle
            assert isinstance(passed, act.PassOver), f"{sorted(own)} are half made, and in {passed}"
            self._life.fabric.note(f"{self._life.name}: {sorted(own)}: {passed.reason}")
            self.inbox.give_back(buffers.result)
        self._drop(own)

    def _drop(self, gradients: frozenset[Gradient]) -> None:
        self._job.witness.dropped(gradients)
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
