"""One model's weights and optimizer state on a server: versions, steps, and nothing about who sends them.

Memory. Weights and each image of state (``n = rule.state_images``: none, one of momentum, two of ADAM) take
``P = layout.size_bytes``. The promise is twice (weights + state): ``K = 2 + n`` weight buffers (K P + n P); and P for
every further version that is being read while newer ones are made, see :mod:`mlfabric.server.versions`. In images of
state only the PARAMETER tensors mean something.

Steps come in two passes. The first works in the update's own image, in
chunks, and sums the norms; weights and state are only read, so a step that is not finite is given up with nothing
changed. The second writes weights and state. Only the second, when in place, keeps readers out, and it cannot fail.
``apply...`` makes both. ``prepare...`` makes the first: its step waits to be committed or discarded, so that several
shards commit once all are prepared; meanwhile readers and checkpoints go on, other steps are refused.

Threads. ``_changing`` is held by whoever needs weights and state to stand still or to change together: a pass, a
checkpoint.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import ModelSpec
from mlfabric.model.update_rules import RuleKind
from mlfabric.server.contents import Content, content_of_image, content_of_tensors, parameters
from mlfabric.server.model_images import Image, byte_view
from mlfabric.server.passes import Passes
from mlfabric.server.rule_kernels import Kernels, NotFinite, StepResult, mean_kernels, sum_kernels
from mlfabric.server.served_models import weight_buffers
from mlfabric.server.value_kernels import MeanKernel
from mlfabric.server.versions import Held, Versions

__all__ = ["Held", "ModelStore", "PreparedStep", "Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and optimizer state that belong together, by tensor name; shared memory, not to be written.

    Args:
        version: their number.
        model: all tensors.
        history: the PARAMETER tensors' history: of momentum, or ADAM's average of gradients; else empty.
        squares: ADAM's average of squared gradients; else empty.
        steps: how many steps ADAM made; else 0.
    """

    version: int
    model: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedStep:
    """A step that was made and not taken; its image must not be written until it is committed or discarded.

    Args:
        result: what committing it will come to.
    """

    result: StepResult
    _images: tuple[Image, ...] = field(repr=False)
    _kernels: Kernels = field(repr=False)


class _Order(NamedTuple):
    """A step to be made: images, what makes kernels given the number of the step, versions that it makes."""

    images: tuple[Image, ...]
    kernels: Callable[..., Kernels]
    versions: int


class ModelStore:
    """The weights, optimizer state and version of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._layout = spec.layout
        self._passes = Passes(spec.layout)
        self._versions = Versions(spec, kept=weight_buffers(spec))
        self._state: tuple[Image, ...] = ()
        self._steps = 0
        self._prepared: PreparedStep | None = None
        self._changing = threading.Lock()

    @property
    def is_initialised(self) -> bool:
        """Whether there are weights."""
        return self._versions.current is not None

    @property
    def version(self) -> int:
        """The number of the current version: 0 for the initial weights, one more with each applied update."""
        return self._versions.number

    # Coming into being

    def initialise(self, image: bytes | bytearray | memoryview) -> None:
        """Set the weights of version 0 to a copy of ``image``.

        Args:
            image: byte image of the model, ``layout.size_bytes`` long; padding is not taken.

        Raises:
            LayoutError: wrong length, or an element is NaN or Inf; nothing was changed.
        """
        source = self._whole(image)
        with self._changing:
            self._install(content_of_image(self.spec, source), version=0)

    def restore(
        self,
        *,
        version: int,
        model: Mapping[str, torch.Tensor],
        history: Mapping[str, torch.Tensor] = MappingProxyType({}),
        squares: Mapping[str, torch.Tensor] = MappingProxyType({}),
        steps: int = 0,
    ) -> None:
        """Set weights and optimizer state to copies of these tensors, as a :class:`Snapshot` gave them.

        Args:
            version: their number.
            model: one tensor for each of the layout, of the same shape and dtype.
            history, squares: one tensor for each PARAMETER of the layout; what the rule has no use for is not looked
                at.
            steps: how many steps ADAM made; else 0.

        Raises:
            LayoutError: names, shapes or dtypes differ, or an element is NaN or Inf; nothing was changed.
        """
        with self._changing:
            self._install(content_of_tensors(self.spec, model, history, squares, steps), version)

    def _whole(self, payload: bytes | bytearray | memoryview, images: int = 1) -> memoryview:
        """View so many images, one behind the other, as bytes."""
        view, allowed = byte_view(payload), images * self._layout.size_bytes
        if len(view) != allowed:
            raise LayoutError(f"{self.spec.name}: image of {len(view)} bytes; allowed: {allowed}")
        return view

    def _install(self, content: Content, version: int) -> None:
        assert not self.is_initialised, f"{self.spec.name} has weights already, at version {self.version}"
        self._state, self._steps = content.state, content.steps
        self._versions.install(content.weights, version)

    # Reading

    def acquire(self) -> Held | None:
        """Pin the current version.

        Returns:
            The pinned version, to be given to :meth:`release`; or None: there are no weights, or a commit is being made
            in place, whose end changes that.
        """
        return self._versions.acquire()

    def release(self, held: Held) -> None:
        """Unpin a version; its image must not be read any more."""
        self._versions.release(held)

    def tensors(self, held: Held) -> dict[str, torch.Tensor]:
        """Return a pinned version's tensors by name: shared memory, not to be written."""
        return held.buffer.tensors(self._layout)

    @contextmanager
    def standing(self) -> Iterator[Snapshot]:
        """Hold off steps and give weights and state that belong together; waits for a running step.

        Raises:
            UsageError: there are no weights yet.
        """
        with self._changing:
            weights = self._require_current()
            state = [*(parameters(image, self._layout) for image in self._state), {}, {}]
            yield Snapshot(
                version=self.version,
                model=weights.tensors(self._layout),
                history=state[0],
                squares=state[1],
                steps=self._steps,
            )

    def _require_current(self) -> Image:
        if self._versions.current is None:
            raise UsageError(f"{self.spec.name} has no weights yet; call initialise or restore first")
        return self._versions.current

    # Changing

    def apply(self, image: memoryview, lr: float, count: int = 1) -> StepResult | NotFinite:
        """Apply one update, or the mean of several as one step, making the next version.

        Waits for a running step or checkpoint.

        Args:
            image: byte image of the update: gradients of PARAMETER tensors, values of the others; of several their
                plain sum. It belongs to this call: it is used as scratch space and holds no update any more afterwards.
                Must be writable.
            lr: learning rate of this step; finite, >= 0.
            count: of updates, >= 1.

        Returns:
            The new version and the exact norms, or NotFinite with nothing changed.

        Raises:
            LayoutError: wrong length; nothing was changed.
            ConfigError: ``lr`` is out of range; nothing was changed.
            UsageError: no weights, or another step is prepared; nothing was changed.
        """
        return self._apply(self._mean(image, lr, count))

    def apply_sum(
        self, images: memoryview, lrs: Sequence[float], means: MeanKernel | None = None
    ) -> StepResult | NotFinite:
        """Apply a group of updates, making a version for each at once (design, section 5, "Momentum and sums").

        As :meth:`apply` but for

        Args:
            images: the group's sum: what :func:`mlfabric.model.stepping.member_coefficients` makes of its members, the
                first image and, if the server keeps momentum, the second behind it. ADAM: the plain sum of the members.
            lrs: learning rate of each member's step. ADAM makes one step of the mean, with the first of them.
            means: what makes buffers of the values that come; that of a value for each member unless given.

        Returns:
            The last of the new versions and the norm of the whole change, or NotFinite with nothing changed.
        """
        return self._apply(self._sum(images, lrs, means))

    def prepare(self, image: memoryview, lr: float, count: int = 1) -> PreparedStep | NotFinite:
        """Make the first pass of :meth:`apply`; the image belongs to the step until it is committed or discarded."""
        return self._prepare(self._mean(image, lr, count))

    def prepare_sum(self, images: memoryview, lrs: Sequence[float]) -> PreparedStep | NotFinite:
        """Make the first pass of :meth:`apply_sum`."""
        return self._prepare(self._sum(images, lrs))

    def commit(self, step: PreparedStep) -> StepResult:
        """Take a prepared step; waits for a running checkpoint.

        Raises:
            UsageError: it is not the one that is prepared.
        """
        with self._changing:
            self._settle(step)
            return self._take(step)

    def discard(self, step: PreparedStep) -> None:
        """Throw a prepared step away; nothing was changed.

        Raises:
            UsageError: it is not the one that is prepared.
        """
        with self._changing:
            self._settle(step)

    def _settle(self, step: PreparedStep) -> None:
        if step is not self._prepared:
            raise UsageError(f"{self.spec.name}: a step to version {step.result.version} that was settled before")
        self._prepared = None

    def _mean(self, image: memoryview, lr: float, count: int) -> _Order:
        kernels = partial(mean_kernels, self.spec.rule, lr=lr, count=count)
        return _Order(self._images(image, 1), kernels, versions=1)

    def _sum(self, images: memoryview, lrs: Sequence[float], means: MeanKernel | None = None) -> _Order:
        kernels = partial(sum_kernels, self.spec.rule, lrs=lrs, means=means)
        return _Order(self._images(images, self.spec.rule.sum_images), kernels, versions=len(lrs))

    def _images(self, payload: memoryview, count: int) -> tuple[Image, ...]:
        """View a payload as images, with nothing in their padding."""
        view, size = self._whole(payload, count), self._layout.size_bytes
        return tuple(Image(self._layout, view[n * size : (n + 1) * size]) for n in range(count))

    def _apply(self, order: _Order) -> StepResult | NotFinite:
        with self._changing:
            step = self._make(order)
            return step if isinstance(step, NotFinite) else self._take(step)

    def _prepare(self, order: _Order) -> PreparedStep | NotFinite:
        with self._changing:
            step = self._make(order)
            self._prepared = None if isinstance(step, NotFinite) else step
            return step

    def _make(self, order: _Order) -> PreparedStep | NotFinite:
        current = self._require_current()
        if self._prepared is not None:
            raise UsageError(f"{self.spec.name}: another step is prepared; commit or discard it first")
        kernels = order.kernels(steps=self._steps + 1)
        norms = self._passes.make(order.images, kernels, current, self._state)
        if isinstance(norms, str):
            return NotFinite(version=self.version, tensor=norms)
        result = StepResult(
            version=self.version + order.versions,
            step_norm=math.sqrt(norms.step_sq),
        )
        return PreparedStep(result=result, _images=order.images, _kernels=kernels)

    def _take(self, step: PreparedStep) -> StepResult:
        source, target = self._versions.begin_commit()
        self._passes.take(step._images, step._kernels, source, target, self._state)
        self._steps += self.spec.rule.kind is RuleKind.ADAM
        self._versions.end_commit(target, step.result.version)
        return step.result

    # Accounts

    def memory_bytes(self) -> dict[str, int]:
        """Return what is allocated, in bytes: ``model``, ``history`` (optimizer state).

        And ``copies``, what of it is beyond twice model and state; and the ``budget``, with one copy for every further
        version that is being read now.
        """
        size, images = self._layout.size_bytes, self.spec.rule.state_images
        buffers, further = self._versions.allocated()
        return {
            "model": buffers * size,
            "copies": further * size,
            "history": len(self._state) * size,
            "budget": (self._versions.needed() + images) * size,
        }
