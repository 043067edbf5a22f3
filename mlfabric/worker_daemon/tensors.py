"""PyTorch modules as layouts, updates and models; the only place where the worker's side touches tensors.

Stated treatments (design, section 6):

* A trainable parameter is a PARAMETER: its gradient travels. Without a gradient (not used in this step) zeros travel,
  so momentum and weight decay act on it as on the others.
* A floating-point buffer (batch-norm statistics) is a BUFFER: its value travels, and the model's becomes the mean of
  the values that are committed together. A buffer of int32 or int64 (batches seen) is a COUNTER: the model's becomes
  the greatest. A module's buffers of other dtypes, such as bool, stay as each worker has them, and so do those that
  have NaN or Inf when the module is registered: masks, which no step changes.
* A frozen parameter does not travel; a digest of all their values does, so that workers whose frozen parameters differ
  are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch.utils.hooks import RemovableHandle

from mlfabric.errors import LayoutError
from mlfabric.model.specs import ALIGNMENT_BYTES, COUNTER_BYTES, Layout, RuleSpec, TensorKind, TensorSpec
from mlfabric.worker_daemon.data_attempts import Parcel
from mlfabric.worker_daemon.given_tensors import GivenTensors, allowed_norm, install
from mlfabric.worker_daemon.gradient_rules import Given, Shaped, Shaping, norm_of

__all__ = ["ModelTensors", "Trainable"]

Trainable = torch.nn.Module | Mapping[str, torch.Tensor]
"""A module, or named tensors: each ``torch.nn.Buffer`` among them is a buffer, the others are parameters."""

RATES = "(rates)"
"""The name of the rates that updates bring, if they bring any; no module can have it."""
_PADDING = memoryview(bytes(ALIGNMENT_BYTES))
_Named = list[tuple[str, torch.Tensor, TensorKind]]


class ModelTensors:
    """A model's travelling tensors in the layout's order.

    Args:
        model: the module or named tensors to train.
        shaping: what is made of gradients before they travel; nothing unless given.
        backwards: begin the layout with the last parameters, whose gradients come first; buffers are at its end.

    Raises:
        LayoutError: nothing is trainable, or a tensor's dtype cannot travel.
    """

    def __init__(self, model: Trainable, shaping: Shaping | None = None, *, backwards: bool = False) -> None:
        named = _backwards(_named(model)) if backwards else _named(model)
        self.backwards = backwards
        if not any(tensor.numel() for _, tensor, kind in named if kind is TensorKind.PARAMETER):
            raise LayoutError(
                "the model has no trainable parameter; set requires_grad on those to be trained, or give a mapping of "
                "names to tensors"
            )
        self.shaping = shaping or Shaping(RuleSpec())
        self.layout = _layout(named, self.shaping)
        self.frozen_digest = _frozen_digest(model)
        self._tensors = [t for _, t, _ in named]
        kinds = [kind for _, _, kind in named]
        self.parameters = [i for i, kind in enumerate(kinds) if kind is TensorKind.PARAMETER]
        self._buffers = [i for i, kind in enumerate(kinds) if kind is not TensorKind.PARAMETER]

    def named(self) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield what is registered of each tensor, and the tensor."""
        return zip(self.layout.tensors, self._tensors, strict=False)

    def check_finite(self) -> None:
        """Refuse weights that no model can begin with.

        Raises:
            LayoutError: a tensor has NaN or Inf; names the first.
        """
        for spec, tensor in self.named():
            if not bool(tensor.isfinite().all()):
                raise LayoutError(f"{spec.name} has NaN or Inf when the model is registered; allowed: finite values")

    def follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Go on with these tensors, of the same kinds, shapes and dtypes: a module has assigned its buffers anew."""
        self._tensors = list(tensors)

    def values(self) -> Parcel:
        """Return the tensors' present values, as initial weights; nothing is copied from a CPU tensor."""
        rates = [None] if self.layout.rate_groups else []
        return self._parcel([*(t.detach() for t in self._tensors), *rates], [])

    def take_update(self) -> tuple[Parcel, float]:
        """Take the gradients away from the parameters, and copy the buffers; return them with the update's norm.

        See :meth:`norm`. ``grad`` of each parameter is None afterwards; the tensors that it was in must not be written
        to until the push is settled.
        """
        shaped = self.shaping.shape([self._given(i) for i in self.parameters])
        parcel, norm = self._filled(shaped)
        self.forget_gradients()
        return parcel, norm

    def take_given(self, given: Mapping[str, torch.Tensor], norm: float | None) -> tuple[Parcel, float]:
        """Return an update of tensors that stand in for the gradients, with its norm; gradients stay as they are.

        See :meth:`norm`; it is the one given if that is greater. The tensors must not be written to until the push is
        settled.

        Raises:
            LayoutError: a name is missing or unknown, or a tensor's shape, dtype or device cannot be used.
            UsageError: NaN or Inf, or a norm that is too small.
                After each of these nothing was changed.
        """
        update = GivenTensors(self.layout, given, frozenset({TensorKind.PARAMETER}))
        update.check_finite()
        shaped = self.shaping.shape([self._given(i, update.tensors[i]) for i in self.parameters])
        least = allowed_norm(norm, [one.pushed for one in shaped])
        parcel, found = self._filled(shaped)
        return parcel, found if norm is None else max(least, found)

    def _filled(self, shaped: Sequence[Shaped]) -> tuple[Parcel, float]:
        """Return an update with copies of the buffers, and its norm; go on from it if that is finite."""
        values = self.copied_values()
        pushed = [one.pushed for one in shaped]
        norm = self.norm(pushed, values.values())
        if math.isfinite(norm):
            self.shaping.keep(shaped)
        pieces = {**dict(zip(self.parameters, pushed, strict=True)), **values}
        watched = [piece for piece in pushed if piece is not None]
        return self._parcel([pieces[i] for i in range(len(self.layout.tensors))], watched), norm

    def norm(self, pushed: Iterable[torch.Tensor | None], values: Iterable[torch.Tensor]) -> float:
        """Return what bounds an update's step: the l2 norm of what is pushed of parameters, or its greatest rate.

        After clipping and momentum. It is not finite if anything of the update is not.
        """
        length = norm_of(pushed)
        if not math.isfinite(norm_of(v for v in values if v.is_floating_point())):
            return math.nan
        return self.greatest_rate if self.layout.rate_groups and math.isfinite(length) else length

    @property
    def greatest_rate(self) -> float:
        """The greatest learning rate that an update brings which is begun now; 0 if it brings none."""
        return max((rate for rate, _ in self.shaping.rates()), default=0.0)

    def _given(self, i: int, instead: torch.Tensor | None = None) -> Given:
        weights = self._tensors[i].detach()
        gradient = self.gradient(i) if instead is None else instead.to(weights.device)
        return Given(self.layout.tensors[i].name, None if gradient is None else gradient.detach(), weights)

    def gradient(self, i: int) -> torch.Tensor | None:
        """Return the gradient of the parameter at a place of the layout.

        Raises:
            LayoutError: it is sparse.
        """
        gradient = self._tensors[i].grad
        if gradient is not None and gradient.is_sparse:
            raise LayoutError(f"{self.layout.tensors[i].name}: a sparse gradient cannot travel; use sparse=False")
        return gradient

    def forget_gradients(self) -> None:
        """Take the gradients away from the parameters."""
        for i in self.parameters:
            self._tensors[i].grad = None

    def copied_values(self) -> dict[int, torch.Tensor]:
        """Return copies of what is no parameter, by their places in the layout: buffers, counters, rates."""
        values = {i: self._tensors[i].detach().clone() for i in self._buffers}
        if self.layout.rate_groups:
            values[len(self._tensors)] = torch.tensor(self.shaping.rates(), dtype=torch.float64)
        return values

    def shaped(self, i: int) -> Shaped:
        """Return what is to travel of the parameter at a place of the layout; not clipped.

        Raises:
            LayoutError: its gradient is sparse.
            UsageError: a wrapped optimizer has got a setting that cannot be taken over.
        """
        return self.shaping.shape_one(self._given(i))

    def when_made(self, made: Callable[[int], None]) -> Callable[[], None]:
        """Have it said when backward has made the gradient at a place of the layout; return what ends that."""
        register: Callable[..., RemovableHandle] = torch.Tensor.register_post_accumulate_grad_hook
        handles = [register(self._tensors[i], partial(_say, made, i)) for i in self.parameters]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def place_of(self, tensor: torch.Tensor) -> int:
        """Return a parameter's place in the layout.

        Raises:
            LayoutError: it is none of the model's.
        """
        for i in self.parameters:
            if self._tensors[i] is tensor:
                return i
        raise LayoutError(f"a tensor of shape {tuple(tensor.shape)} is no parameter of the registered model")

    def install(self, image: memoryview) -> None:
        """Copy a model's image into the tensors."""
        install(image, self.layout, dict(enumerate(self._tensors)))

    def _parcel(self, tensors: Sequence[torch.Tensor | None], watched: Sequence[torch.Tensor]) -> Parcel:
        pieces: list[memoryview] = []
        for tensor, spec in zip(tensors, self.layout.tensors, strict=True):
            pieces.append(memoryview(bytes(spec.size_bytes)) if tensor is None else _bytes_of(tensor))
            padding = -spec.size_bytes % ALIGNMENT_BYTES
            if padding:
                pieces.append(_PADDING[:padding])
        versions = [t._version for t in watched]
        return Parcel(
            pieces=pieces,
            digest=self.layout.digest,
            is_unchanged=lambda: [t._version for t in watched] == versions,
        )


def _named(model: Trainable) -> _Named:
    if isinstance(model, torch.nn.Module):
        parameters = [(n, cast(torch.Tensor, p)) for n, p in model.named_parameters() if p.requires_grad]
        buffers = [(n, b) for n, b in model.named_buffers() if _is_value(b) or _is_counter(b)]
    else:
        parameters = [(n, t) for n, t in model.items() if t.requires_grad and not isinstance(t, torch.nn.Buffer)]
        buffers = [(n, t) for n, t in model.items() if isinstance(t, torch.nn.Buffer)]
    kinds = [TensorKind.COUNTER if _is_counter(b) else TensorKind.BUFFER for _, b in buffers]
    named = [(n, t, TensorKind.PARAMETER) for n, t in parameters]
    return [*named, *((n, t, kind) for (n, t), kind in zip(buffers, kinds, strict=True))]


def _is_value(buffer: torch.Tensor) -> bool:
    return buffer.dtype.is_floating_point and bool(buffer.isfinite().all())


def _is_counter(buffer: torch.Tensor) -> bool:
    return _dtype_of(buffer) in COUNTER_BYTES


def _dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _layout(named: _Named, shaping: Shaping) -> Layout:
    """Return the layout of these tensors, and of the rates that updates bring.

    Raises:
        LayoutError: a dtype cannot travel.
    """
    tensors = [
        TensorSpec(
            name=name,
            shape=tuple(tensor.shape),
            dtype=_dtype_of(tensor),
            kind=kind,
            group=shaping.group_of(name) if kind is TensorKind.PARAMETER else 0,
        )
        for name, tensor, kind in named
    ]
    if rates := shaping.rates():
        tensors.append(TensorSpec(name=RATES, shape=(len(rates), 2), dtype="float64", kind=TensorKind.RATES))
    return Layout(tuple(tensors))


def _say(made: Callable[[int], None], i: int, tensor: torch.Tensor) -> None:
    made(i)


def _backwards(named: _Named) -> _Named:
    parameters = [one for one in named if one[2] is TensorKind.PARAMETER]
    return [*reversed(parameters), *(one for one in named if one[2] is not TensorKind.PARAMETER)]


def _frozen_digest(model: Trainable) -> str:
    named = model.named_parameters() if isinstance(model, torch.nn.Module) else model.items()
    frozen = [(n, t) for n, t in named if not (t.requires_grad or isinstance(t, torch.nn.Buffer))]
    if not frozen:
        return ""
    digest = hashlib.sha256()
    for name, tensor in frozen:
        digest.update(name.encode())
        digest.update(_bytes_of(tensor.detach()))
    return digest.hexdigest()[:16]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """View a tensor's bytes; only a tensor that is not contiguous or not on the CPU is copied."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
