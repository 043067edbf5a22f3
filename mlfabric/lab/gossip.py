"""Gossip jobs, and the witness of their models.

A worker's model counts the steps that are in it: element ``life`` of each row goes up by 1 with each step of that life,
and means make shares of these counts. Behind the counts, what is offered says which offer of whose it is, so a sum
tells of which offers it is.

What must hold: a result is a sum, in all rows, of offers that were made, the receiver's own among them, as many as it
is told; and no offer is given away more than once: the parts of it that all the means have come to 1 once all have
them. So the mean over all workers stays what it is. What is offered for a round of all is in no other one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlfabric.lab.fabric import Life
from mlfabric.lab.loop_waits import LoopWaits
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.gossip_model import steps_kept
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult
from mlfabric.worker_daemon.round_steps import RoundSteps
from mlfabric.worker_daemon.step_roles import Offered, RoundOutcome

__all__ = ["GossipJob", "GossipWitness"]

LIVES = 64
ROW = 2 * LIVES + 1
"""Counts, offers, and the number of the row."""
MOST_LATE_S = 0.005
NEAR = 1e-6
AGREES_EVERY = 6
"""After so many offers a worker asks for the mean of all, in a run in which workers do."""
Offer = tuple[int, int]
"""The number of a life, and of its offer, from 1."""


class GossipWitness:
    """Sees what every worker offers and gets.

    Attributes:
        finished: how many offers of each life are in rounds.
        failed: how many steps were not made, as the model was fetched meanwhile.
        fetched: how many models workers had from others.
        given: which part of each offer is in means that its receivers have.
    """

    def __init__(self) -> None:
        self.finished: Counter[int] = Counter()
        self.failed = self.fetched = 0
        self.given: dict[Offer, float] = {}
        self._offers: dict[Offer, np.ndarray] = {}
        self._for_all: set[Offer] = set()

    def offered(self, offer: Offer, table: np.ndarray, *, for_all: bool) -> None:
        """Take what a worker offers."""
        self._offers[offer] = table[0, :LIVES].copy()
        self.given[offer] = 0.0
        self._for_all |= {offer} if for_all else set()

    def got(self, own: Offer, total: np.ndarray, result: RoundResult) -> None:
        """Take a result."""
        counts, serials = total[:, :LIVES], total[0, LIVES : 2 * LIVES]
        inside = [(int(life), int(serials[life])) for life in np.flatnonzero(serials)]
        is_whole = (total[:, LIVES : 2 * LIVES] == serials).all() and np.allclose(counts, counts[0], atol=NEAR)
        assert is_whole, "the rows of a result are sums of different offers"
        assert own in inside, f"{own} is not among {inside}"
        assert len(inside) == result.weight, f"{inside} are in a result of {result.weight}"
        assert (total[:, -1] == len(inside) * np.arange(len(total))).all(), "rows of a result were exchanged"
        wanted = sum(self._offers[offer] for offer in inside)
        assert np.allclose(counts[0], wanted, atol=NEAR), f"{own} has another sum of {inside}"
        assert len(self._for_all.intersection(inside)) in (0, len(inside)), f"only some of {inside} are for all"
        for offer in inside:
            self.given[offer] += 1 / len(inside)
            assert self.given[offer] < 1 + NEAR, f"{offer} was given away more than once: {self.given[offer]}"
        self.finished[own[0]] += 1


@dataclass(kw_only=True)
class GossipJob:
    """Workers that step models of their own, and average them, again and again.

    Args:
        method, rounds: how rounds are made.
        rows: of each model.
        compute_s: the least and the most that a step takes.
        workers: how many begin together.
        agrees: now and then a worker asks for the mean of all, and so must all others.
    """

    method: Method
    rounds: RoundOptions
    rows: int
    compute_s: tuple[float, float]
    workers: int
    agrees: bool = False
    witness: GossipWitness = field(default_factory=GossipWitness)
    learners: dict[Life, _Learner] = field(default_factory=dict)

    @property
    def spec(self) -> ModelSpec:
        """What its workers register."""
        layout = Layout((TensorSpec(name="w", shape=(self.rows * ROW,), dtype="float64"),))
        return ModelSpec(name="net", layout=layout, method=self.method, rounds=self.rounds)

    def inbox(self, life: Life) -> RoundInbox:
        """Return where results go at a worker."""
        self.learners[life] = _Learner(self, life)
        return self.learners[life].steps.inbox

    async def train(self, life: Life) -> None:
        """Make steps."""
        assert life.number < LIVES, "there are more lives than a row has room for"
        learner = self.learners[life]
        await learner.steps.begin(learner)
        while not life.leaves:
            await learner.step()

    def progress(self, life: Life) -> int:
        """Return how many offers of a worker are in rounds."""
        return self.witness.finished[life.number]


class _Learner:
    """The training thread of one worker."""

    def __init__(self, job: GossipJob, life: Life) -> None:
        self._job, self._life = job, life
        self.model = np.zeros((job.rows, LIVES))
        self._offers, self._offered = 0, self.empty()
        self.size_bytes, self.dtype = self._offered.nbytes, "float64"
        self.steps = RoundSteps(
            self,
            LoopWaits(lambda: life.draw.uniform(0.0, MOST_LATE_S)),
            together=job.workers,
            passes_late=False,
            waits_for_rounds=False,
            most_kept=steps_kept(job.method),
            may_miss=True,
        )

    async def step(self) -> None:
        """Compute, step, offer; apply what is settled."""
        await asyncio.sleep(self._life.draw.uniform(*self._job.compute_s))
        failed = self._job.witness.failed
        self._job.witness.failed += 1
        await self.steps.step(self._put)
        self._life.fabric.note(f"{self._life.name}: {'no' if self._job.witness.failed > failed else 'a'} step")
        if self._job.agrees and self._offers % AGREES_EVERY == 0:
            await self.steps.agree()

    def _put(self, gathered: np.ndarray, fresh: bool) -> bool:
        self.model[:, self._life.number] += 1.0
        self._job.witness.failed -= 1
        return True

    # What is trained

    def empty(self) -> np.ndarray:
        """Return memory for what is offered, in whole units of alignment."""
        return np.zeros((self._job.rows, ROW + 1))

    def bytes_of(self, gathered: np.ndarray) -> memoryview:
        """Offer the present model."""
        self._offers += 1
        gathered[:, :LIVES], gathered[:, LIVES:] = self.model, 0.0
        gathered[:, LIVES + self._life.number], gathered[:, -1] = self._offers, np.arange(self._job.rows)
        self._offered = gathered
        return gathered.data.cast("B").toreadonly()

    def add_earlier(self, gathered: np.ndarray, earlier: np.ndarray) -> None:
        """Nothing is to be done about it."""

    def rates(self) -> tuple[float, ...]:
        """Return nothing."""
        return ()

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Move the model by what the mean differs from what was offered."""
        if not total:
            return
        table = np.frombuffer(total, np.float64).reshape(self._offered.shape)
        self._job.witness.got((self._life.number, self._offers), table, result)
        self.model += (table / result.weight - self._offered)[:, :LIVES]
        self._life.fabric.note(f"{self._life.name}: round {result.version}, a mean of {result.weight}")

    def write(self) -> memoryview:
        """Return the model."""
        return memoryview(self.model.tobytes())

    def read(self, image: memoryview) -> None:
        """Install the model of a peer."""
        self.model = np.frombuffer(image, np.float64).reshape(self.model.shape).copy()
        self._life.fabric.note(f"{self._life.name} has the model of a peer")
        self._job.witness.fetched += 1

    def included(self, offered: Offered[np.ndarray], outcome: RoundOutcome) -> None:
        """Nothing is to be done about it."""

    def dropped(self, gathered: np.ndarray) -> None:
        """Nothing is to be done about it."""

    # The daemon

    def offer(self, contribution: Contribution) -> asyncio.Future[Any]:
        """Offer a model for a round."""
        assert self._life.daemon is not None, "it has joined"
        offer = self._life.number, self._offers
        self._job.witness.offered(offer, self._offered, for_all=contribution.for_all)
        return self._life.daemon.offer(contribution)

    def withdraw(self, growth: object, reason: str) -> None:
        """Nothing is offered while it grows."""
        raise AssertionError(reason)

    def applied(self, version: int) -> None:
        """Say that all rounds up to this version are applied."""
        assert self._life.daemon is not None, "it has joined"
        self._life.daemon.applied(version)
