"""An optimizer whose ``step`` takes part in rounds without a server.

Each worker has the model and steps with its own torch optimizer, whichever that is: once for each settled round, with
the mean of that round's gradients, in the rounds' order. So all workers have the same weights at the same version.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from mlfabric.errors import FabricError, TransferError, UsageError
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.shell.forking import tell_copies
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers
from mlfabric.worker_daemon.dealt_bytes import SEGMENTS
from mlfabric.worker_daemon.early_gradients import NOT_FINITE, EarlyGradients, Offered
from mlfabric.worker_daemon.flat_gradients import FlatGradients
from mlfabric.worker_daemon.group_rates import rates_of, with_rates
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult, StateImage
from mlfabric.worker_daemon.state_image import read_state, write_state
from mlfabric.worker_daemon.taken_over import TakenOver
from mlfabric.worker_daemon.thread import ThreadDaemon

__all__ = ["RoundOptimizer", "RoundOutcome", "RoundTally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What became of a step's gradient.

    Args:
        included: it is in a round.
        version: how many rounds the model has applied now.
        workers: how many contributed to the round that it is in; 0 if it is in none.
        delay: how many rounds were settled between the model that it was computed from and its own.
        reason: why it is not in a round; "" if it is.
    """

    included: bool
    version: int
    workers: int
    delay: int
    reason: str = ""


@dataclass(slots=True)
class RoundTally:
    """How many of this worker's gradients were in a round, were kept for the next one, or dropped."""

    included: int = 0
    kept: int = 0
    dropped: int = 0


class RoundOptimizer(TakenOver):
    """A worker in the shape of an optimizer, without a server; made by ``mlfabric.wrap``.

    Args:
        optimizer: steps the model; any of torch's that needs no closure.
        model: what is trained.
        passes_late: a gradient that has missed a round is kept for the next step, so it is not offered while it grows
            (``partial``).
        waits: a step waits until it is known what becomes of its gradient.
        overlap: gradients leave while backward makes the others.
        measures: the scheduler is told how noisy gradients are (``elastic`` with chosen members).
        start: joins the fabric: is given the inbox, returns the daemon.
        together: how many workers begin together, >= 1.

    Attributes:
        version: how many rounds the model has applied.
        last: what became of the last step's gradient, or of the newest one of which that is known; None before that.
        tally: what became of all of them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        start: Callable[[RoundInbox], ThreadDaemon],
        *,
        together: int,
        passes_late: bool,
        waits: bool,
        overlap: bool,
        measures: bool,
    ) -> None:
        super().__init__(optimizer)
        self.version = 0
        self.last: RoundOutcome | None = None
        self.tally = RoundTally()
        self._model = model
        self._passes_late, self._waits = passes_late, waits
        self._measures = measures
        self._mean_square = 0.0
        self._is_lent = False
        self._together = together
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._flat = FlatGradients(parameters, model)
        self._gathered = self._flat.empty()
        self._count = 0
        """How many gradients are in ``_gathered``, which were not offered, or not in vain."""
        self._spare = self._gathered if waits else self._flat.empty()
        self._sent: Offered | None = None
        """What is on its way, if steps do not wait for that."""
        self._state_lock = threading.Lock()
        self._inbox = RoundInbox(together, self._copy_state, SEGMENTS if overlap else 1)
        self._news = threading.Event()
        self._inbox.news = self._news.set
        self._left = False
        self._daemon = start(self._inbox)
        self._daemon.join()
        atexit.register(self.leave)
        tell_copies(self)
        self._take_state()
        self._early = self._overlapping() if overlap else None

    def _overlapping(self) -> EarlyGradients:
        early = EarlyGradients(self._flat, self._daemon, self._offer_early, self._give_up)
        early.begin(self._gathered, fresh=True)
        return early

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Offer the gradients for a round, and apply all rounds that are settled; return the closure's loss, if any.

        Returns once the round is settled that these gradients are in, or they are known to be in none; see ``last``.
        If it is not to wait, it hands them over and returns; while earlier ones are on their way, they are added up.

        Raises:
            UsageError: no parameter has a gradient, or one has a sparse gradient; nothing was changed. With overlap
                also: gradients or parameter groups were changed after backward; the gradient is in no round.
            FabricClosedError: the worker has left the fabric.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        vars(self._taken_over)["_opt_called"] = True  # a scheduler that was built on it warns unless it makes steps
        with torch.no_grad():
            try:
                self.last = self._step()
            finally:
                if self._early is not None:
                    self._early.begin(self._gathered, fresh=not self._count)
        return loss

    def _step(self) -> RoundOutcome | None:
        early = None if self._early is None else self._early.complete(rates_of(self._taken_over))
        if early is not None:
            return self._went_early(*early)
        computed_from = self.version
        if self._take_state():
            return self._drop_gathered("the model was fetched from a peer meanwhile", computed_from)
        if not self._flat.add_into(self._gathered, fresh=not self._count):
            self._apply_all()
            return self._drop_gathered(NOT_FINITE, computed_from)
        self._count += 1
        if self._waits:
            return self._became_of(self._offer(computed_from))
        if self._sent is not None and not self._sent.outcome.done() and self._sent.updates + self._count < MOST_KEPT:
            self._apply_all()
            return self.last
        before = self._became_of_sent()
        self._sent = self._offer(computed_from)
        return before

    def _became_of_sent(self) -> RoundOutcome | None:
        """Wait until it is known what becomes of what is on its way, if anything is."""
        sent, self._sent = self._sent, None
        if sent is not None:
            return self._became_of(sent)
        self._apply_all()
        return self.last

    def _offer(self, computed_from: int, growth: GradientGrowth | None = None) -> Offered:
        """Offer what is gathered, and gather in other memory from now on."""
        gathered, updates = self._gathered, self._count + (growth is not None)
        self._gathered, self._spare, self._count = self._spare, gathered, 0
        return self._give(gathered, updates, computed_from, growth)

    def _give(
        self, gathered: torch.Tensor, updates: int, computed_from: int, growth: GradientGrowth | None = None
    ) -> Offered:
        given = memoryview(gathered.view(torch.uint8).numpy().data)
        result = self._inbox.buffer(self._flat.size_bytes)
        buffers = ReduceBuffers(given=given, result=result, dtype=self._flat.dtype, growth=growth)
        rates = rates_of(self._taken_over)
        squares = (self._flat.square(gathered), self._mean_square) if self._measures else (0.0, 0.0)
        told_from = computed_from if self._waits else self.version  # all would be late when they are offered
        outcome = self._daemon.offer(buffers, self._together, told_from, updates, rates, squares)
        return Offered(buffers, computed_from, rates, outcome, gathered, updates)

    def _became_of(self, offered: Offered) -> RoundOutcome:
        """Wait until it is known what becomes of gradients, and apply what is settled."""
        computed_from, growth, outcome = offered.computed_from, offered.buffers.growth, self._outcome_of(offered)
        if isinstance(outcome, act.PassOver):
            self._inbox.give_back(offered.buffers.result)
            if growth is not None and growth.is_late and not outcome.keep:  # it is whole now
                return self._became_of(self._give(offered.gathered, offered.updates, computed_from))
            self._apply_all()
            if outcome.keep:
                self._keep(offered)
                return self._outcome(outcome.reason, computed_from)
            return self._dropped(outcome.reason, computed_from, offered.updates)
        self.tally.included += offered.updates
        self._apply_all()
        delay = outcome.version - 1 - computed_from
        return RoundOutcome(included=True, version=self.version, workers=outcome.workers, delay=delay)

    def _outcome_of(self, offered: Offered) -> RoundResult | act.PassOver:
        """Wait for it. What is settled meanwhile is applied: the next round may wait for who fetches that from here."""
        offered.outcome.add_done_callback(lambda _: self._news.set())
        while not offered.outcome.done():
            self._news.wait()
            self._news.clear()
            if not offered.outcome.done():
                self._apply_all()
        return offered.outcome.result()

    def _keep(self, offered: Offered) -> None:
        """Go on with gradients that are in no round: those of later steps were gathered meanwhile."""
        self.tally.kept += 1
        if self._count:
            self._flat.add_earlier(self._gathered, offered.gathered)
        else:
            self._gathered, self._spare = offered.gathered, self._gathered
        self._count += offered.updates

    # Overlap with backward

    def _offer_early(self, growth: GradientGrowth) -> Offered | None:
        """Offer a gradient while it grows, unless it is clear already that it is in no round."""
        is_late = self._passes_late and (self._sent is not None or not self._inbox.is_empty)
        if self._left or is_late or self._inbox.coming is not None:
            return None
        return self._offer(self.version, growth)

    def _went_early(self, offered: Offered, is_finite: bool) -> RoundOutcome | None:
        """Say what became of a gradient that was offered while it grew."""
        if not is_finite:
            offered.outcome.result()
            self._inbox.give_back(offered.buffers.result)
            self._apply_all()
            return self._dropped(NOT_FINITE, offered.computed_from, offered.updates)
        if self._waits:
            return self._became_of(offered)
        self._sent = offered
        self._apply_all()
        return self.last

    def _give_up(self, offered: Offered, reason: str) -> None:
        """Have a gradient that will not be whole be in no round, and wait for that."""
        assert offered.buffers.growth is not None, "it grew"
        self._daemon.withdraw(offered.buffers.growth, reason)
        offered.outcome.result()
        self._inbox.give_back(offered.buffers.result)
        self.last = self._dropped(reason, offered.computed_from, offered.updates)

    def ready(self, parameter: torch.Tensor) -> None:
        """Say that a parameter's gradient is final, so that it may leave before the others are: with overlap only.

        Autograd's backward says so by itself; this is for gradients that are computed in other ways.

        Raises:
            UsageError: there is no overlap, or the optimizer does not step the parameter, or its gradient was said to
                be final before in this step.
        """
        if self._early is None:
            raise UsageError("ready without overlap; wrap with overlap=True")
        self._early.made(self._flat.place_of(parameter))

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let gradients accumulate: what backward makes in this context stays here, with overlap, too."""
        with nullcontext() if self._early is None else self._early.accumulating():
            yield

    def _drop_gathered(self, reason: str, computed_from: int) -> RoundOutcome:
        """Have a step's gradient be in no round, with those that it was to be added to."""
        updates, self._count = self._count + 1, 0
        return self._dropped(reason, computed_from, updates)

    def _dropped(self, reason: str, computed_from: int, updates: int) -> RoundOutcome:
        self.tally.dropped += updates
        return self._outcome(reason, computed_from)

    def _outcome(self, reason: str, computed_from: int) -> RoundOutcome:
        delay = self.version - computed_from
        return RoundOutcome(included=False, version=self.version, workers=0, delay=delay, reason=reason)

    # Settled rounds

    def _apply_all(self) -> None:
        """Install the state that was fetched, if any, and apply the rounds whose results are here."""
        gradients = [parameter.grad for parameter in self._flat.parameters]
        try:
            while not self._inbox.is_empty:
                self._take_state()
                result = self._inbox.take()
                if result is not None and result.version > self.version:
                    self._apply(result)
                if result is not None:
                    self._inbox.give_back(result.total)
        finally:
            for parameter, gradient in zip(self._flat.parameters, gradients, strict=True):
                parameter.grad = gradient
        self._daemon.applied(self.version)

    def _apply(self, result: RoundResult) -> None:
        if result.version != self.version + 1:
            raise FabricError(f"round {result.version} came to a model of version {self.version}")
        with self._state_lock:
            with self._inbox.in_order(result) as total:
                self._flat.spread(total, result.workers, result.updates)
                self._mean_square = self._flat.square(total) if self._measures else 0.0
                with with_rates(self._taken_over, result.rates):
                    self._taken_over.step()
            self.version = result.version

    # State for and from peers

    def _copy_state(self, is_loan: bool) -> StateImage:
        with self._state_lock:
            if self._is_lent and not is_loan:
                raise TransferError("the weights that are here are lent; there is no optimizer state to them")
            image = write_state(self._model, None if is_loan else self._taken_over)
            return StateImage(version=self.version, image=image)

    def _take_state(self) -> bool:
        """Install the state that was fetched, waiting while it comes; return whether there was any."""
        state = self._inbox.take_state()
        if state is not None:
            with self._state_lock:
                if state.image is not None:
                    read_state(state.image, self._model, None if state.is_loan else self._taken_over)
                self._is_lent = state.is_loan
                self.version = state.version
            self._daemon.applied(self.version)
        return state is not None

    # Leaving

    def leave(self, detail: str = "done") -> None:
        """Leave the fabric; a second call does nothing. The end of the process does it, too."""
        if not self._left:
            self._left = True
            if self._early is not None:
                self._early.stop()
            atexit.unregister(self.leave)
            self._daemon.leave(detail, 0.0)

    def finish(self) -> None:
        """Apply the rounds whose results are here: for an evaluation, or to save the model."""
        with torch.no_grad():
            self._apply_all()

    @property
    def waiting(self) -> int:
        """How many of this worker's gradients are in no round yet, as far as it knows."""
        return self._count + (0 if self._sent is None else self._sent.updates)

    @property
    def has_left(self) -> bool:
        """Whether this worker has left the fabric."""
        return self._left

    def in_a_copy(self) -> None:
        """Have nothing to leave, in a process that was forked from the worker's."""
        self._left = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: what travels was settled when the model was registered.

        Raises:
            UsageError: always, once it is made.
        """
        if hasattr(self, "_flat"):
            raise UsageError("add_param_group after wrap; allowed: all groups before")
        super().add_param_group(param_group)
