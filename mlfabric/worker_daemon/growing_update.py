"""An update that leaves while backward still makes it, and when it had better be announced.

Its image begins with the last layers' tensors, whose gradients come first, so it can be sent from its beginning while
it grows. Announced too late, it waits for its turn when it could be on its way; too early, links and the others in its
sum wait for gradients. So it is announced as soon as the rest of backward is expected to take no longer than an update
takes from its announcement to its commit. Both are known from the updates before: how long the rest of backward took
after each tensor (``rest_of_backward``), and the shortest of the last few times to a commit, less what is to spare for
surprises. If the commit waited for the last gradients, that time is no longer than it had to be, and the next is
announced later by what is spared. The last byte waits for ``push`` in any case: until then it is not known whether the
gradients were left alone.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import torch

from mlfabric import clock
from mlfabric.channels.progress import Progress
from mlfabric.errors import UsageError
from mlfabric.protocol import Committed, DropReason
from mlfabric.worker_daemon.data_attempts import GivenUpError, Growth, Parcel
from mlfabric.worker_daemon.gradient_rules import Shaped, norm_of
from mlfabric.worker_daemon.rest_of_backward import RestOfBackward
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.thread import OutcomeFuture

__all__ = ["GrowingUpdate", "Times", "Timing", "not_finite"]

KEPT = 8
CAUTION = 0.9
UNKNOWN_NORM = 1e30
"""Of an update that is announced before it is complete: a bound on what a replica lacks counts it as too large."""


@dataclass(slots=True)
class Times:
    """What happened to an update when, on the monotonic clock; 0 before.

    Args:
        made_ns: by the places of its tensors in the layout.
    """

    made_ns: dict[int, int] = field(default_factory=dict)
    announced_ns: int = 0
    committed_ns: int = 0


class Timing:
    """When to announce updates, learnt from those before."""

    def __init__(self) -> None:
        self._rest = RestOfBackward()
        self._lasts_ns: deque[int] = deque(maxlen=KEPT)
        self._last = Times()

    def begin(self) -> None:
        """Say that a step begins: its model is installed."""
        self._rest.begin(clock.monotonic_ns())

    def is_due(self, tensor: int, now_ns: int) -> bool:
        """Tell whether to announce an update of which this tensor is the last that has been made."""
        rest_ns = self._rest.expected_ns(tensor, now_ns)
        return rest_ns is not None and bool(self._lasts_ns) and rest_ns <= CAUTION * min(self._lasts_ns)

    def pushed(self, update: Times) -> None:
        """Learn from an update that is pushed when its tensors were made, and how long the one before took."""
        self._rest.ended(update.made_ns, max(update.made_ns.values()))
        if self._last.committed_ns:
            self._lasts_ns.append(self._last.committed_ns - self._last.announced_ns)
        self._last = update


class GrowingUpdate:
    """One update while backward makes it; used by the training thread.

    Args:
        tensors: of the model; their layout has what is made first at its beginning.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        layout = tensors.layout
        self._tensors = tensors
        self._image = torch.zeros(layout.size_bytes, dtype=torch.uint8)
        self._taken: dict[int, tuple[torch.Tensor | None, int]] = {}
        self._shaped: dict[int, Shaped] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._settings = tensors.shaping.settings()
        self._contiguous = 0
        self._is_complete = False
        self._is_finite = True
        self.times = Times()
        self.announced: OutcomeFuture | None = None
        payload: memoryview = self._image.numpy().data
        self.growth = Growth(payload=payload, progress=Progress(layout.size_bytes))
        self.parcel = Parcel(pieces=[payload], digest=layout.digest, is_unchanged=lambda: True, growth=self.growth)

    @property
    def ready_bytes(self) -> int:
        """How much of the image may be sent, from its beginning; not all of it before it is complete and checked."""
        offsets, size_bytes = self._tensors.layout.offsets, self._tensors.layout.size_bytes
        if self._is_complete:
            return size_bytes
        return offsets[self._contiguous] if self._contiguous < len(offsets) else size_bytes - 1

    @property
    def norm(self) -> float:
        """What bounds the step of what is there, see :meth:`ModelTensors.norm`."""
        return self._tensors.norm([one.pushed for one in self._shaped.values()], self._values.values())

    @property
    def early_norm(self) -> float:
        """What bounds its step before it is complete; it may be too much."""
        return self._tensors.greatest_rate if self._tensors.layout.rate_groups else UNKNOWN_NORM

    def take(self, i: int) -> bool:
        """Copy the gradient of a parameter, shaped; return whether it is finite.

        Raises:
            UsageError: it was taken before, or a wrapped optimizer has got a setting that cannot be taken over.
            LayoutError: it is sparse.
        """
        name = self._tensors.layout.tensors[i].name
        if i in self._taken:
            raise UsageError(
                f"{name} got a gradient again before push: the first is on its way; accumulate under "
                "worker.accumulating(), all but the last time"
            )
        gradient, shaped = self._tensors.gradient(i), self._tensors.shaped(i)
        self._taken[i] = (gradient, 0 if gradient is None else gradient._version)
        self.times.made_ns[i] = clock.monotonic_ns()
        self._shaped[i] = shaped
        self._put(i, shaped.pushed)
        while self._contiguous in self._shaped:
            self._contiguous += 1
        finite = norm_of([shaped.pushed]) < float("inf")
        self._is_finite &= finite
        return finite

    def _put(self, i: int, piece: torch.Tensor | None) -> None:
        if piece is not None and piece.numel():
            spec, at = self._tensors.layout.tensors[i], self._tensors.layout.offsets[i]
            part = self._image[at : at + spec.size_bytes].view(piece.dtype)
            part.copy_(piece.reshape(-1))

    def announce(self, outcome: OutcomeFuture) -> None:
        """Note that it is announced, and later when it was committed."""
        self.announced, self.times.announced_ns = outcome, clock.monotonic_ns()
        outcome.add_done_callback(partial(_settled, self.times))

    def complete(self) -> bool:
        """Take what backward made no gradient of, and the buffers; return whether all is finite.

        Raises:
            UsageError: a gradient that was taken has been changed since, or a setting that it was taken with.
        """
        if self._tensors.shaping.settings() != self._settings:
            raise UsageError(
                "a parameter group was changed after backward, when the update was on its way; change it after step, "
                "or wrap without overlap"
            )
        for i, (gradient, version) in self._taken.items():
            now = self._tensors.gradient(i)
            if now is not gradient or (gradient is not None and gradient._version != version):
                name = self._tensors.layout.tensors[i].name
                raise UsageError(
                    f"the gradient of {name} was changed after backward, when it was on its way; leave it alone, or "
                    "register without overlap"
                )
        for i in self._tensors.parameters:
            if i not in self._taken:
                self.take(i)
        self._values = self._tensors.copied_values()
        for i, value in self._values.items():
            self._put(i, value)
        self._tensors.forget_gradients()
        self._is_complete = self._is_finite = math.isfinite(self.norm)
        if self._is_finite:
            self._tensors.shaping.keep(self._shaped.values())
        return self._is_finite


def _settled(times: Times, outcome: OutcomeFuture) -> None:
    if isinstance(outcome.result(), Committed):
        times.committed_ns = clock.monotonic_ns()


def not_finite(norm: float) -> GivenUpError:
    """Return why an update is given up that turned out to be NaN or Inf."""
    return GivenUpError(DropReason.NOT_FINITE, f"the gradient's norm is {norm}")
