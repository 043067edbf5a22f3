"""One model's weights and optimizer history on a server: versions, steps, and nothing about who sends them.

Memory. A model and its history are byte images of ``P = layout.size_bytes``. The promise is twice (model + history):
``K = 2`` weight buffers without a history (2 P), ``K = 3`` with one (3 P + P). Buffers are allocated when first
needed. In the history only the PARAMETER tensors mean something.

Versions. Readers pin the current version and a pinned buffer is never written. A commit whose buffer nobody pins is
made in place, else in a free buffer, which becomes current. A version may be pinned if that leaves a buffer for
the next commit (one that is pinned already may always be shared), so between commits there always is one.

Steps come in two passes, over runs of tensors that are stepped alike. The first turns the update's own image into the
step, in chunks, and sums the norms; weights and history are only read, so a step that is not finite is given up with
nothing changed. The second adds the step to the weights. Only the second, when in place, keeps readers out, and it
cannot fail.

Threads. ``_changing`` is held by whoever needs weights and history to stand still or to change together: a step, a
checkpoint. ``_lock`` guards pins and the current version and is never held for long, so an event loop may acquire
and release while a step runs in another thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from mlfabric.errors import LayoutError, RefusedError, UsageError
from mlfabric.server.images import Image, Run, runs_of
from mlfabric.server.rules import NotFinite, StepResult, chunks, make_step, step_coefficients, take_step
from mlfabric.specs import ModelSpec, TensorKind

__all__ = ["Held", "ModelStore", "Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A pinned version of the weights: bit for bit the same until it is released, not to be used after that.

    Args:
        version: its number.
        image: its bytes, read-only.
    """

    version: int
    image: memoryview
    _buffer: Image = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and history that belong together, by tensor name; shared memory, not to be written.

    Args:
        version: their number.
        model: all tensors.
        history: the PARAMETER tensors' history; empty without momentum.
    """

    version: int
    model: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]


class ModelStore:
    """The weights, optimizer history and version of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._layout = spec.layout
        self._runs = runs_of(spec.layout)
        self._limit = 3 if spec.rule.momentum > 0 else 2
        self._buffers: list[Image] = []
        self._current: Image | None = None
        self._history: Image | None = None
        self._version = 0
        self._held: set[Held] = set()
        self._in_place = False
        self._lock = threading.Lock()
        self._changing = threading.Lock()

    @property
    def is_initialised(self) -> bool:
        """Whether there are weights."""
        return self._current is not None

    @property
    def version(self) -> int:
        """The number of the current version: 0 for the initial weights, one more with each applied update."""
        return self._version

    # Coming into being

    def check_image(self, length: int, digest: int) -> None:
        """Check what a sender says about an image before its bytes are taken.

        Args:
            length: of the image, in bytes.
            digest: of the sender's layout.

        Raises:
            LayoutError: it is not an image of this model.
        """
        if digest != self._layout.digest:
            raise LayoutError(
                f"{self.spec.name}: image of another layout, digest {digest:#x}; allowed: {self._layout.digest:#x}, "
                "the model's; names, shapes, dtypes and kinds must agree"
            )
        if length != self._layout.size_bytes:
            raise LayoutError(f"{self.spec.name}: image of {length} bytes; allowed: {self._layout.size_bytes}")

    def initialise(self, image: bytes | bytearray | memoryview) -> None:
        """Set the weights of version 0 to a copy of ``image``.

        Args:
            image: byte image of the model, ``layout.size_bytes`` long; padding is not taken.

        Raises:
            LayoutError: wrong length, or an element is NaN or Inf; nothing was changed.
            RefusedError: there are weights already; nothing was changed.
        """
        source = _byte_view(image)
        self.check_image(len(source), self._layout.digest)
        with self._changing:
            self._refuse_second_weights()
            weights = Image.zeros(self._layout)
            for tensor, start in zip(self._layout.tensors, self._layout.offsets, strict=True):
                end = start + tensor.size_bytes
                weights.data[start:end] = source[start:end]
            self._install(weights, self._new_history(), version=0)

    def restore(
        self, *, version: int, model: Mapping[str, torch.Tensor], history: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Set weights and history to copies of these tensors.

        Args:
            version: their number.
            model: one tensor for each of the layout, of the same shape and dtype.
            history: one tensor for each PARAMETER of the layout. Empty or None starts with a history of
                zeros; without momentum it is not looked at.

        Raises:
            LayoutError: names, shapes or dtypes differ, or an element is NaN or Inf; nothing was changed.
            RefusedError: there are weights already; nothing was changed.
        """
        with self._changing:
            self._refuse_second_weights()
            weights, kept = Image.zeros(self._layout), self._new_history()
            _copy_tensors(f"{self.spec.name}, model", model, weights.tensors(self._layout))
            if kept is not None and history:
                _copy_tensors(f"{self.spec.name}, history", history, self._parameters(kept))
            self._install(weights, kept, version)

    def _refuse_second_weights(self) -> None:
        if self._current is not None:
            raise RefusedError(f"{self.spec.name} has weights already, at version {self._version}; they were kept")

    def _new_history(self) -> Image | None:
        return Image.zeros(self._layout) if self.spec.rule.momentum > 0 else None

    def _install(self, weights: Image, history: Image | None, version: int) -> None:
        for what, image in (("weight", weights), ("history", history)):
            for tensor, flat in zip(self._layout.tensors, image.flat if image else (), strict=image is not None):
                if not _all_finite(flat):
                    raise LayoutError(f"{self.spec.name}: the {what} {tensor.name} has NaN or Inf; send finite values")
        with self._lock:
            self._buffers.append(weights)
            self._history, self._version, self._current = history, version, weights

    # Reading

    def can_acquire(self) -> bool:
        """Tell whether the current version can be pinned now, leaving a buffer for the next commit."""
        with self._lock:
            return self._may_pin()

    def acquire(self) -> Held | None:
        """Pin the current version.

        Returns:
            The pinned version, to be given to :meth:`release`; or None while :meth:`can_acquire` is false: there are no
            weights, a commit is being made in place, or too many older versions are pinned. The end of a
            step or a release changes that.
        """
        with self._lock:
            if not self._may_pin():
                return None
            current = self._require_current()
            current.pins += 1
            held = Held(version=self._version, image=current.data.toreadonly(), _buffer=current)
            self._held.add(held)
            return held

    def release(self, held: Held) -> None:
        """Unpin a version; its image must not be read any more."""
        with self._lock:
            assert held in self._held, f"{self.spec.name}: version {held.version} was released twice"
            self._held.remove(held)
            held._buffer.pins -= 1

    def tensors(self, held: Held) -> dict[str, torch.Tensor]:
        """Return a pinned version's tensors by name: shared memory, not to be written."""
        return held._buffer.tensors(self._layout)

    @contextmanager
    def standing(self) -> Iterator[Snapshot]:
        """Hold off steps and give weights and history that belong together; waits for a running step.

        Raises:
            UsageError: there are no weights yet.
        """
        with self._changing:
            weights = self._require_current()
            history = self._parameters(self._history) if self._history else {}
            yield Snapshot(version=self._version, model=weights.tensors(self._layout), history=history)

    def _may_pin(self) -> bool:
        if self._current is None or self._in_place:
            return False
        pinned = sum(1 for b in self._buffers if b.pins)
        return self._current.pins > 0 or pinned + 1 < self._limit

    def _parameters(self, image: Image) -> dict[str, torch.Tensor]:
        kinds = {t.name: t.kind for t in self._layout.tensors}
        return {n: t for n, t in image.tensors(self._layout).items() if kinds[n] is TensorKind.PARAMETER}

    def _require_current(self) -> Image:
        if self._current is None:
            raise UsageError(f"{self.spec.name} has no weights yet; call initialise or restore first")
        return self._current

    # Changing

    def can_apply(self) -> bool:
        """Tell whether :meth:`apply` would start at once: there are weights and no step or checkpoint is running."""
        return self._current is not None and not self._changing.locked()

    def apply(self, image: memoryview, lr: float) -> StepResult | NotFinite:
        """Apply one update, making the next version; waits for a running step or checkpoint.

        Args:
            image: byte image of the update: gradients of PARAMETER tensors, changes of BUFFER tensors. It belongs to
                this call: it is used as scratch space and holds no update any more afterwards. Must be writable.
            lr: learning rate of this step; finite, >= 0.

        Returns:
            The new version and the exact norms, or NotFinite with nothing changed.

        Raises:
            UsageError: wrong length, not writable, no weights, or ``lr`` out of range; nothing was changed.
        """
        view = _byte_view(image)
        self.check_image(len(view), self._layout.digest)
        if view.readonly:
            raise UsageError(f"{self.spec.name}: the update's image is read-only; give a buffer that apply may write")
        with self._changing:
            update = Image(self._layout, view)
            update.clear_padding()
            norms = self._prepare(update, lr)
            if isinstance(norms, NotFinite):
                return norms
            self._commit(update)
            return StepResult(version=self._version, update_norm=norms[0], step_norm=norms[1])

    def _prepare(self, update: Image, lr: float) -> tuple[float, float] | NotFinite:
        """Turn the update into the step and return both norms; weights and history are only read."""
        current = self._require_current()
        coefficients = {kind: step_coefficients(self.spec.rule, kind, lr=lr) for kind in TensorKind}
        update_sq = step_sq = 0.0
        for run in self._runs:
            more = make_step(coefficients[run.kind], run.of(update.data), run.of(current.data), self._history_of(run))
            update_sq, step_sq = update_sq + more[0], step_sq + more[1]
            if not (math.isfinite(update_sq) and math.isfinite(step_sq)):
                return NotFinite(version=self._version, tensor=self._first_not_finite(run, update, current))
        return math.sqrt(update_sq), math.sqrt(step_sq)

    def _commit(self, step: Image) -> None:
        source, target = self._begin_commit()
        for run in self._runs:
            take_step(run.of(step.data), run.of(source.data), run.of(target.data), self._history_of(run))
        with self._lock:
            self._current, self._in_place = target, False
            self._version += 1

    def _begin_commit(self) -> tuple[Image, Image]:
        """Choose the buffer of the next version: the current one if nobody reads it, else a free one."""
        with self._lock:
            source = self._require_current()
            if not source.pins:
                self._in_place = True
                return source, source
            free = next((b for b in self._buffers if b is not source and not b.pins), None)
            if free is None:
                assert len(self._buffers) < self._limit, f"{self.spec.name}: all {self._limit} buffers are pinned"
                free = Image.zeros(self._layout)
                self._buffers.append(free)
            return source, free

    def _history_of(self, run: Run) -> torch.Tensor | None:
        return run.of(self._history.data) if self._history and run.kind is TensorKind.PARAMETER else None

    def _first_not_finite(self, run: Run, step: Image, weights: Image) -> str:
        """Name the tensor that is to blame; the last of the run if none is alone (a sum that overflowed)."""
        for i in run.tensors:
            if not _all_finite(step.flat[i]) or not _all_finite(step.flat[i] + weights.flat[i]):
                return self._layout.tensors[i].name
        return self._layout.tensors[run.tensors[-1]].name

    # Accounts

    def memory_bytes(self) -> dict[str, int]:
        """Return what is allocated, in bytes: ``model``, ``history``, their ``total``, and the ``budget`` for it."""
        size = self._layout.size_bytes
        with self._lock:
            model, history = len(self._buffers) * size, size if self._history else 0
        return {"model": model, "history": history, "total": model + history, "budget": 2 * (self._limit - 1) * size}


def _byte_view(image: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(image)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _copy_tensors(what: str, given: Mapping[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Copy ``given`` into the memory of ``wanted`` if names, shapes and dtypes agree."""
    if given.keys() != wanted.keys():
        raise LayoutError(f"{what}: tensors {sorted(given.keys() ^ wanted.keys())} are missing or too many")
    for name, target in wanted.items():
        source = given[name]
        if source.shape != target.shape or source.dtype != target.dtype:
            raise LayoutError(
                f"{what}: {name} is {source.dtype}{list(source.shape)}; allowed: {target.dtype}{list(target.shape)}"
            )
        target.copy_(source)


def _all_finite(flat: torch.Tensor) -> bool:
    return all(bool(flat[part].isfinite().all()) for part in chunks(flat.numel()))
