"""What a worker does with its steps' gradients: it offers them for rounds, and applies the rounds that are settled.

One for training threads and for workers in virtual time. What is trained, and how to wait, is given. All waits are in
coroutines: in virtual time others go on meanwhile; in a training thread they block it, so that :func:`at_once` runs a
coroutine to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from mlfabric.errors import FabricError
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.round_actions import PassOver
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage
from mlfabric.worker_daemon.step_roles import Daemon, Offered, RoundOutcome, RoundTally, Trained, Waits

__all__ = ["NOT_FINITE", "RoundSteps", "at_once"]

NOT_FINITE = "it has NaN or Inf"
FETCHED = "the model was fetched from a peer meanwhile"

T = TypeVar("T")
G = TypeVar("G")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose waits block the thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("a wait that does not block the thread")


class RoundSteps(Generic[G]):
    """The steps of one worker.

    An interrupted wait, as by Ctrl-C, is made up for by the next step.

    Args:
        trained: what it trains.
        waits: how it waits.
        together: how many workers begin together, >= 1.
        passes_late: gradients that have missed a round are kept for the next step, so they are not offered while they
            grow (``partial``).
        waits_for_rounds: a step waits until it is known what becomes of its gradients; where gradients are offered
            while they grow it has to.
        most_kept: where steps do not wait for rounds, so many gradients are added up while an earlier one is on its
            way, before a step waits for that; 1 if each step waits for the round before.
        may_miss: the model may have missed rounds, as it is the worker's own (gossip).
        in_parts: each round has one part of the model, in turn: what is computed for one round fits no other.
        segments: see ``RoundInbox``.

    Attributes:
        inbox: what comes of rounds.
        version: how many rounds the model has applied.
        weight: of how many equal parts the next gradient is the sum, as micro-batches or tokens, >= 1; 1 again after
            that. The mean of a round divides by the sum of these.
        last: what became of the last step's gradient, or of the newest one of which that is known; None before that.
        tally: what became of all of this worker's gradients.
    """

    _daemon: Daemon

    def __init__(
        self,
        trained: Trained[G],
        waits: Waits,
        *,
        together: int,
        passes_late: bool,
        waits_for_rounds: bool,
        most_kept: int = MOST_KEPT,
        may_miss: bool = False,
        in_parts: bool = False,
        segments: int = 1,
    ) -> None:
        self._trained, self._waits = trained, waits
        self._together, self._passes_late, self._waits_for_rounds = together, passes_late, waits_for_rounds
        self._most_kept, self._may_miss, self._in_parts = most_kept, may_miss, in_parts
        self.inbox = RoundInbox(together, self._copy_state, segments)
        self.inbox.news = waits.wake
        self.version = 0
        self.weight = 1
        self.last: RoundOutcome | None = None
        self.tally = RoundTally()
        self._gathered = trained.empty()
        self._count = self._weight = 0
        """How many gradients are gathered: not offered yet, or offered and kept; and of how many parts."""
        self._spare = self._gathered if waits_for_rounds else trained.empty()
        self._sent: Offered[G] | None = None
        """What is on its way; between steps only if they do not wait for that, or such a wait was interrupted."""
        self._state_lock = threading.Lock()

    async def begin(self, daemon: Daemon) -> None:
        """Begin with a daemon that has joined."""
        self._daemon = daemon
        await self._take_state()

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of earlier steps is gathered."""
        return not self._count

    @property
    def waiting(self) -> int:
        """How many gradients are in no round yet, as far as this worker knows."""
        return self._count + (0 if self._sent is None else self._sent.updates)

    @property
    def is_interrupted(self) -> bool:
        """Whether a step's wait for its round was interrupted."""
        return self._waits_for_rounds and self._sent is not None

    # Steps

    async def step(self, put: Callable[[G, bool], bool]) -> None:
        """Offer a gradient that is complete, and apply all rounds that are settled.

        Args:
            put: puts it into the memory that is given: overwrites what is there if the flag is true, else adds to it;
                returns whether the sum is finite. If it raises an error, nothing becomes of the gradient. It is not
                called if the model was fetched meanwhile: then the gradient is dropped.
        """
        computed_from, weight = self.version, self._take_weight()
        if self._waits_for_rounds:
            await self._settle_sent()
        if await self._take_state():
            earlier, _ = self._take_gathered()
            self._dropped(self._gathered if earlier else None, earlier + 1, FETCHED, computed_from)
        elif not self._put(put):
            earlier, _ = self._take_gathered()
            await self.apply_all()
            self._dropped(self._gathered, earlier + 1, NOT_FINITE, computed_from)
        else:
            self._count, self._weight = self._count + 1, self._weight + weight
            await self._go_on(computed_from)

    def _put(self, put: Callable[[G, bool], bool]) -> bool:
        with self._state_lock:  # in gossip it makes a step
            return put(self._gathered, self.is_fresh)

    def _take_weight(self) -> int:
        weight, self.weight = self.weight, 1
        return weight

    def _take_gathered(self) -> tuple[int, int]:
        """Return how many gradients are gathered, and of how many parts; then there are none."""
        counted = self._count, self._weight
        self._count = self._weight = 0
        return counted

    async def _go_on(self, computed_from: int) -> None:
        """Offer what is gathered, unless it may wait for what is on its way."""
        if self._waits_for_rounds:
            await self._waits.crossing()
            self._sent = self._offer(computed_from)
            await self._settle_sent()
        elif self._sent is not None and self._may_add_to(self._sent):
            await self.apply_all()
        else:
            await (self.apply_all() if self._sent is None else self._settle_sent())
            self._sent = self._offer(computed_from)

    def _may_add_to(self, sent: Offered[G]) -> bool:
        return not sent.outcome.done() and sent.updates + self._count < self._most_kept

    def _offer(self, computed_from: int, growth: GradientGrowth | None = None) -> Offered[G]:
        """Offer what is gathered, and gather in other memory from now on."""
        gathered, (updates, weight) = self._gathered, self._take_gathered()
        self._gathered, self._spare = self._spare, gathered
        if growth is not None:
            updates, weight = updates + 1, weight + self._take_weight()
        return self._give(gathered, updates, weight, computed_from, growth)

    def _give(
        self,
        gathered: G,
        updates: int,
        weight: int,
        computed_from: int,
        growth: GradientGrowth | None = None,
        *,
        for_all: bool = False,
    ) -> Offered[G]:
        trained = self._trained
        given, result = trained.bytes_of(gathered), self.inbox.buffer(trained.size_bytes)
        counts_from_offer = not self._waits_for_rounds and not self._in_parts
        contribution = Contribution(
            buffers=ReduceBuffers(given=given, result=result, dtype=trained.dtype, growth=growth),
            together=self._together,
            computed_from=self.version if counts_from_offer else computed_from,
            updates=updates,
            weight=weight,
            rates=trained.rates(),
            for_all=for_all,
        )
        return Offered(gathered, computed_from, contribution, self._daemon.offer(contribution))

    async def finish(self) -> None:
        """Wait until it is known what becomes of what is on its way, and apply all rounds whose results are here."""
        await self._settle_sent()
        await self.apply_all()

    async def catch_up(self) -> bool:
        """Apply all rounds whose results are here, without waiting for more; return whether anything was known."""
        is_known = self._sent is not None and self._sent.outcome.done()
        if not is_known and self.inbox.is_empty:
            return False
        await (self._settle_sent() if is_known else self.apply_all())
        return True

    async def agree(self) -> None:
        """Offer what is here for a round of all workers, and wait for that."""
        await self._settle_sent()
        await self._take_state()
        updates, weight = self._take_gathered()
        self._sent = self._give(self._gathered, max(1, updates), max(1, weight), self.version, for_all=True)
        self._gathered, self._spare = self._spare, self._gathered
        await self._settle_sent()

    async def _settle_sent(self) -> None:
        """Wait until it is known what becomes of what is on its way, if anything is, and apply what is settled."""
        while (sent := self._sent) is not None:
            found, growth = await self._outcome_of(sent), sent.buffers.growth
            if not isinstance(found, PassOver):
                self._sent = None
                await self._included(sent, found)
                return
            self.inbox.give_back(sent.buffers.result)
            if growth is not None and growth.is_late and not found.keep:  # it is whole now
                self._sent = self._give(sent.gathered, sent.updates, sent.contribution.weight, sent.computed_from)
                continue
            self._sent = None
            if found.keep:
                self._keep(sent)
                await self.apply_all()
                self.last = self._in_none(found.reason, sent.computed_from)
            else:
                await self.apply_all()
                self._drop(sent, found.reason)

    async def _included(self, sent: Offered[G], result: RoundResult) -> None:
        self.tally.included += sent.updates
        await self.apply_all()
        delay = result.version - 1 - sent.computed_from
        self.last = RoundOutcome(included=True, version=self.version, workers=result.workers, delay=delay)
        self._trained.included(sent, self.last)

    async def _outcome_of(self, offered: Offered[G]) -> RoundResult | PassOver:
        """Wait for it. What is settled meanwhile is applied: the next round may wait for who fetches that from here."""
        offered.outcome.add_done_callback(lambda _: self._waits.wake())
        while not offered.outcome.done():
            await self._waits.news()
            if not offered.outcome.done():
                await self.apply_all()
        return offered.outcome.result()

    def _keep(self, offered: Offered[G]) -> None:
        """Go on with gradients that are in no round: those of later steps were gathered meanwhile."""
        self.tally.kept += 1
        if self._count:
            self._trained.add_earlier(self._gathered, offered.gathered)
        else:
            self._gathered, self._spare = offered.gathered, self._gathered
        self._count, self._weight = self._count + offered.updates, self._weight + offered.contribution.weight

    def _drop(self, offered: Offered[G], reason: str) -> None:
        self._dropped(offered.gathered, offered.updates, reason, offered.computed_from)

    def _dropped(self, gathered: G | None, updates: int, reason: str, computed_from: int) -> None:
        """Have so many gradients be in no round; ``gathered`` has those that were put anywhere, None if none was."""
        self.tally.dropped += updates
        self.last = self._in_none(reason, computed_from)
        if gathered is not None:
            self._trained.dropped(gathered)

    def _in_none(self, reason: str, computed_from: int) -> RoundOutcome:
        delay = self.version - computed_from
        return RoundOutcome(included=False, version=self.version, workers=0, delay=delay, reason=reason)

    # Gradients that are offered while they grow

    def offer_growing(self, growth: GradientGrowth) -> Offered[G] | None:
        """Offer a gradient that is still being made, unless it is clear already that it is in no round."""
        assert self._waits_for_rounds, "what is on its way would be written to"
        is_late = self._sent is not None or (self._passes_late and not self.inbox.is_empty)
        return None if is_late or self.inbox.coming is not None else self._offer(self.version, growth)

    async def end_growing(self, offered: Offered[G], *, is_finite: bool) -> None:
        """End the step of a gradient that was offered while it grew; it is complete, or was withdrawn."""
        if not is_finite:
            await self._passed_over(offered)
            await self.apply_all()
            self._drop(offered, NOT_FINITE)
        else:
            self._sent = offered
            await self._settle_sent()

    async def give_up(self, offered: Offered[G], reason: str) -> None:
        """Have a gradient that will not be whole be in no round, and wait for that."""
        assert offered.buffers.growth is not None, "it grew"
        self._daemon.withdraw(offered.buffers.growth, reason)
        await self._passed_over(offered)
        self._drop(offered, reason)

    async def _passed_over(self, offered: Offered[G]) -> None:
        found = await self._waits.known(offered.outcome)
        assert isinstance(found, PassOver), f"what is not whole is in {found}"
        self.inbox.give_back(offered.buffers.result)

    # Settled rounds

    async def apply_all(self) -> None:
        """Install the state that was fetched, if any, and apply the rounds whose results are here."""
        await self._waits.crossing()
        while not self.inbox.is_empty:
            await self._take_state()
            result = self.inbox.take()
            if result is not None:
                await self._waits.crossing()
                if result.version > self.version:
                    self._apply(result)
                self.inbox.give_back(result.total)
        await self._waits.crossing()
        self._daemon.applied(self.version)

    def _apply(self, result: RoundResult) -> None:
        if result.version != self.version + 1 and not self._may_miss:
            raise FabricError(f"round {result.version} came to a model of version {self.version}")
        with self._state_lock:
            with self.inbox.in_order(result) as total:
                self._trained.apply(result, total)
            self.version = result.version

    # State for and from peers

    def _copy_state(self) -> StateImage:
        with self._state_lock:
            return StateImage(version=self.version, image=self._trained.write())

    async def _take_state(self) -> bool:
        """Install the state that was fetched, waiting while it comes; return whether there was any."""
        coming = self.inbox.coming
        if coming is None:
            return False
        state = await self._waits.known(coming)
        await self._waits.crossing()
        self.inbox.took(coming)
        with self._state_lock:
            if state.image is not None:
                self._trained.read(state.image)
            self.version = state.version
        await self._waits.crossing()
        self._daemon.applied(self.version)
        return True
