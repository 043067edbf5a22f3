"""Gradients that are offered for a round while backward makes them. For the training thread, and for autograd's.

Of a gradient that is on its way nothing may change any more, and what is behind its parameters (which of them had one,
and the values of buffers) is known at ``step`` alone: so its last bytes wait for that in any case, and a round with it
cannot be settled before. If it turns out that it will never be whole, it is withdrawn; the round is made without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from mlfabric import clock
from mlfabric.channels.progress import Progress
from mlfabric.errors import UsageError
from mlfabric.worker_daemon.attempts import GradientGrowth
from mlfabric.worker_daemon.flat_gradients import FlatGradients
from mlfabric.worker_daemon.rest_of_backward import EarlyOffers
from mlfabric.worker_daemon.round_steps import NOT_FINITE
from mlfabric.worker_daemon.step_roles import Offered
from mlfabric.worker_daemon.thread import ThreadDaemon

__all__ = ["EarlyGradients"]


@dataclass(slots=True)
class _Step:
    """What backward has made in one step.

    ``taken`` has each gradient with its count of writes; ``inside`` are the places that are in the flat tensor, and the
    first ``whole`` of all places are.
    """

    taken: dict[int, tuple[torch.Tensor | None, int]] = field(default_factory=dict)
    made_ns: dict[int, int] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    whole: int = 0
    growth: GradientGrowth | None = None
    offered: Offered[torch.Tensor] | None = None


class EarlyGradients:
    """Those of one worker.

    Args:
        flat: where everything lies.
        daemon: of the worker.
        offer: offers what grows, if it can be offered now.
        give_up: has an offered gradient be in no round for this reason, and waits for that.
    """

    def __init__(
        self,
        flat: FlatGradients,
        daemon: ThreadDaemon,
        offer: Callable[[GradientGrowth], Offered[torch.Tensor] | None],
        give_up: Callable[[Offered[torch.Tensor], str], None],
    ) -> None:
        self._flat, self._daemon = flat, daemon
        self._offer, self._give_up = offer, give_up
        self._offers, self._lock = EarlyOffers(), threading.Lock()
        self._step: _Step | None = None
        self._fresh, self._is_accumulating = True, False
        self._handles = flat.when_made(self.made)

    def begin(self, *, fresh: bool) -> None:
        """Say that a step begins; ``fresh``: its gradient is not added to those of earlier steps."""
        self._fresh = fresh
        self._offers.begin(clock.monotonic_ns())

    def stop(self) -> None:
        """Hear no more of backward."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let what backward makes in this context stay here."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    @torch.no_grad()
    def made(self, i: int) -> None:
        """Take the gradient of the parameter at a place, and let it leave if it is time.

        Raises:
            UsageError: it was made before in this step, or is sparse.
        """
        if self._is_accumulating:
            return
        with self._lock:
            try:
                self._take(i)
            except UsageError as error:
                self._drop(str(error))
                raise

    def _take(self, i: int) -> None:
        gradient, step = self._flat.parameters[i].grad, self._step
        if step is not None and i in step.taken:
            if step.taken[i][0] is gradient:
                raise UsageError(
                    f"{self._flat.name_of(i)} got a gradient again before step: the first is on its way; accumulate "
                    "under accumulating(), all but the last time, or wrap without overlap"
                )
            self._drop("its step was skipped")
            step = None
        step = self._step = step or _Step()
        now_ns = clock.monotonic_ns()
        step.taken[i], step.made_ns[i] = (gradient, 0 if gradient is None else gradient._version), now_ns
        if step.offered is not None:
            self._put(step, step.offered, [i])
        elif (patience_s := self._offers.patience_s(i, now_ns)) is not None:
            self._begin(step, patience_s)

    def _begin(self, step: _Step, patience_s: float) -> None:
        growth = GradientGrowth(progress=Progress(self._flat.size_bytes), patience_s=patience_s)
        step.offered = self._offer(growth)
        if step.offered is not None:
            step.growth = growth
            self._put(step, step.offered, list(step.taken))

    def _put(self, step: _Step, offered: Offered[torch.Tensor], places: list[int]) -> None:
        """Copy gradients, and let them leave unless they are not finite."""
        assert step.growth is not None, "it was offered with it"
        for i in places:
            self._flat.add_one(offered.gathered, i, fresh=self._fresh)
            step.inside.add(i)
        if not all(self._flat.is_finite(offered.gathered, i) for i in places):
            self._daemon.withdraw(step.growth, NOT_FINITE)
            return
        while step.whole in step.inside:
            step.whole += 1
        if step.whole:
            self._daemon.grown(step.growth, self._flat.ends_bytes[step.whole - 1])

    def _drop(self, reason: str) -> None:
        step, self._step = self._step, None
        if step is not None and step.offered is not None:
            self._give_up(step.offered, reason)
            self._fresh = True

    def complete(self, rates: tuple[float, ...]) -> tuple[Offered[torch.Tensor], bool] | None:
        """End a step; return its gradient if it was offered, and whether it is finite; else it is withdrawn.

        Args:
            rates: of the optimizer as they are now.

        Raises:
            UsageError: a gradient or a rate was changed since it was taken, or what ``FlatGradients.add_into`` raises.
        """
        step, is_finite = self._step, True
        if step is None:
            return None
        try:
            self._check_unchanged(step, rates)
            if step.offered is not None:
                is_finite = self._flat.add_into(step.offered.gathered, fresh=self._fresh, but=step.inside)
        except UsageError as error:
            self._drop(str(error))
            raise
        self._step = None
        self._offers.ended(step.made_ns, clock.monotonic_ns())
        if step.offered is None or step.growth is None:
            return None
        if is_finite:
            self._daemon.grown(step.growth, self._flat.size_bytes)
        else:
            self._daemon.withdraw(step.growth, NOT_FINITE)
        return step.offered, is_finite

    def _check_unchanged(self, step: _Step, rates: tuple[float, ...]) -> None:
        for i, (gradient, version) in step.taken.items():
            now = self._flat.parameters[i].grad
            if now is not gradient or (gradient is not None and gradient._version != version):
                raise UsageError(
                    f"the gradient of {self._flat.name_of(i)} was changed after backward, when it was on its way, as "
                    "by clipping or a gradient scaler; leave it alone, or wrap without overlap"
                )
        if step.offered is not None and step.offered.contribution.rates != rates:
            raise UsageError(
                "a parameter group was changed after backward, when the gradient was on its way; change it after step, "
                "or wrap without overlap"
            )
