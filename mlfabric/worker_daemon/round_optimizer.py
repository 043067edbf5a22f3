"""An optimizer whose ``step`` takes part in rounds without a server.

Each worker has the model and steps with its own torch optimizer, whichever that is: once for each settled round, with
the mean of that round's gradients, in the rounds' order. So all workers have the same weights at the same version. In
gossip each worker steps a model of its own, and rounds average models (``gossip_model.py``).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from mlfabric.arguments import integer_of
from mlfabric.errors import UsageError
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.protocol import SetThreshold
from mlfabric.shell.forking import tell_copies
from mlfabric.worker_daemon.argument_types import MOST_COUNTED
from mlfabric.worker_daemon.attempts import GradientGrowth
from mlfabric.worker_daemon.averaged_buffers import AveragedBuffers
from mlfabric.worker_daemon.dealt_bytes import SEGMENTS
from mlfabric.worker_daemon.early_gradients import EarlyGradients
from mlfabric.worker_daemon.flat_gradients import FlatGradients
from mlfabric.worker_daemon.gossip_model import GossipModel
from mlfabric.worker_daemon.group_rates import rates_of
from mlfabric.worker_daemon.round_inbox import RoundInbox
from mlfabric.worker_daemon.round_steps import RoundSteps, at_once
from mlfabric.worker_daemon.step_roles import Offered, RoundOutcome, RoundTally
from mlfabric.worker_daemon.taken_over import TakenOver
from mlfabric.worker_daemon.thread import ThreadDaemon
from mlfabric.worker_daemon.trained_model import ThreadWaits, TrainedModel

__all__ = ["Parts", "RoundOptimizer"]

Parts = Sequence[Sequence[torch.nn.Parameter]]


class RoundOptimizer(TakenOver):
    """A worker in the shape of an optimizer, without a server; made by ``mlfabric.wrap``.

    Args:
        optimizer: steps the model; any of torch's that needs no closure.
        model: what is trained.
        start: joins the fabric: is given the inbox, returns the daemon.
        together, passes_late, most_kept: see ``RoundSteps``.
        waits: a step waits until it is known what becomes of its gradient.
        overlap: gradients leave while backward makes the others.
        gossips: each worker has a model of its own, and rounds average these.
        parts: parameters of which each round has one part, in turn; None if each has all.
        own: the model whose buffers the worker offers, if it is another one.
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
        most_kept: int = MOST_KEPT,
        overlap: bool = False,
        gossips: bool = False,
        parts: Parts | None = None,
        own: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(optimizer)
        parts = parts or [[p for group in optimizer.param_groups for p in group["params"]]]
        flats = FlatGradients.in_parts(parts, model, AveragedBuffers(model if own is None else own, model))
        self._flat = flats[0]
        trained = GossipModel(optimizer, model) if gossips else TrainedModel(optimizer, model, flats)
        self._gossips, self._put = gossips, trained.put
        self._steps: RoundSteps[torch.Tensor] = RoundSteps(
            trained,
            ThreadWaits(),
            together=together,
            passes_late=passes_late,
            waits_for_rounds=waits,
            most_kept=most_kept,
            may_miss=gossips,
            in_parts=len(parts) > 1,
            segments=SEGMENTS if overlap else 1,
        )
        self._left = False
        self._early: EarlyGradients | None = None
        self._daemon = start(self._steps.inbox)
        self._daemon.join()
        atexit.register(self.leave)
        tell_copies(self)
        at_once(self._steps.begin(self._daemon))
        if overlap:
            self._early = EarlyGradients(self._flat, self._daemon, self._offer_early, self._give_up)
        self._begin_step()

    def _begin_step(self) -> None:
        if self._early is not None:
            self._early.begin(fresh=self._steps.is_fresh)

    @property
    def version(self) -> int:
        """How many rounds the model has applied."""
        return self._steps.version

    @property
    def last(self) -> RoundOutcome | None:
        """What became of the last step's gradient, or of the newest one of which that is known; None before that."""
        return self._steps.last

    @property
    def tally(self) -> RoundTally:
        """What became of all of this worker's gradients."""
        return self._steps.tally

    @property
    def waiting(self) -> int:
        """How many of this worker's gradients are in no round yet, as far as it knows."""
        return self._steps.waiting

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Offer the gradients for a round, and apply all rounds that are settled; return the closure's loss, if any.

        Returns once the round is settled that these gradients are in, or they are known to be in none; see ``last``.
        If it is not to wait, it hands them over and returns; while earlier ones are on their way, they are added up.
        In gossip it steps this worker's model, waits for the round before unless nobody is waited for, moves the model
        by that round's mean, and hands it over for the next round.

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
                self._step()
            finally:
                self._begin_step()
        return loss

    def _step(self) -> None:
        early = None if self._early is None else self._early.complete(rates_of(self._taken_over))
        if early is None:
            at_once(self._steps.step(self._put))
        else:
            offered, is_finite = early
            at_once(self._steps.end_growing(offered, is_finite=is_finite))

    @property
    def overlaps(self) -> bool:
        """Whether gradients leave while backward makes the others."""
        return self._early is not None

    @property
    def threshold(self) -> SetThreshold | None:
        """The last threshold that the scheduler has set for steps (DropCompute); None before."""
        return self._daemon.threshold

    def steps_timed(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int]) -> None:
        """Tell the scheduler what steps have taken; see :class:`mlfabric.protocol.StepsTimed`."""
        self._daemon.steps_timed(micro_batches, computed_ns, rest_ns)

    def weigh(self, weight: int) -> None:
        """Say of how many equal parts the next step's gradient is the sum, as micro-batches or tokens; 1 unless said.

        The mean of a round divides by the sum of these; in gossip all models count the same.

        Args:
            weight: >= 1.

        Raises:
            UsageError: it is something else, or gradients leave while backward makes them.
        """
        if self.overlaps:
            raise UsageError("weigh with overlap; allowed: without, as the gradient may be on its way")
        self._steps.weight = integer_of("weight", weight, least=1, most=MOST_COUNTED)

    # Overlap with backward

    def _offer_early(self, growth: GradientGrowth) -> Offered[torch.Tensor] | None:
        return None if self._left else self._steps.offer_growing(growth)

    def _give_up(self, offered: Offered[torch.Tensor], reason: str) -> None:
        at_once(self._steps.give_up(offered, reason))

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

    # Gossip

    def agree(self) -> None:
        """Let this worker's model become the mean of all workers' models: to evaluate or save it, and at the end.

        All workers call it, and may go on to train: it returns once all that are in the job have called it. Who has
        left is not waited for.

        Raises:
            UsageError: the method is not gossip: all workers have the same model.
            FabricClosedError: the worker has left the fabric.
        """
        if not self._gossips:
            raise UsageError("agree with a method whose workers share one model; allowed: with gossip")
        with torch.no_grad():
            at_once(self._steps.agree())

    # Leaving

    def leave(self, detail: str = "done") -> None:
        """Leave the fabric; a second call does nothing. The end of the process does it, too."""
        if not self._left:
            self._left = True
            if self._early is not None:
                self._early.stop()
            atexit.unregister(self.leave)
            self._daemon.leave(detail, 0.0)

    def finish(self, *, waits: bool = False) -> None:
        """Apply the rounds whose results are here: for an evaluation, or to save the model.

        Args:
            waits: for what becomes of gradients that are on their way, before that.
        """
        with torch.no_grad():
            at_once(self._steps.finish() if waits else self._steps.apply_all())

    @property
    def is_interrupted(self) -> bool:
        """Whether a step's wait for its round was interrupted, as by Ctrl-C."""
        return self._steps.is_interrupted

    def catch_up(self) -> bool:
        """Apply the rounds whose results are here; return whether anything has become known of rounds."""
        with torch.no_grad():
            return at_once(self._steps.catch_up())

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
