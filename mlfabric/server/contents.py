"""Weights and optimizer state that a store begins with, made of what was sent or read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from mlfabric.errors import LayoutError
from mlfabric.model.specs import Layout, ModelSpec, TensorKind
from mlfabric.server.kernels import all_finite
from mlfabric.server.model_images import Image, copy_tensors

__all__ = ["Content", "content_of_image", "content_of_tensors", "parameters"]


class Content(NamedTuple):
    """Weights, the images of state that the model's rule has, and how many steps ADAM made."""

    weights: Image
    state: tuple[Image, ...]
    steps: int


def content_of_image(spec: ModelSpec, source: memoryview) -> Content:
    """Copy weights from a byte image, without its padding; state is as before the first step.

    Args:
        source: ``layout.size_bytes`` bytes.

    Raises:
        LayoutError: an element is NaN or Inf.
    """
    weights = Image.zeros(spec.layout)
    weights.data[:] = source
    weights.clear_padding()
    return _finite(spec, Content(weights, _new_state(spec), 0))


def content_of_tensors(
    spec: ModelSpec,
    model: Mapping[str, torch.Tensor],
    history: Mapping[str, torch.Tensor],
    squares: Mapping[str, torch.Tensor],
    steps: int,
) -> Content:
    """Copy weights and state from tensors.

    Args:
        model: one tensor for each of the layout, of the same shape and dtype.
        history, squares: one tensor for each PARAMETER of the layout; what the rule has no use for is not looked at.
        steps: ADAM's; else 0.

    Raises:
        LayoutError: names, shapes or dtypes differ, or an element is NaN or Inf.
    """
    weights, state = Image.zeros(spec.layout), _new_state(spec)
    copy_tensors(f"{spec.name}, model", model, weights.tensors(spec.layout))
    given = (("history", history), ("squares", squares))[: len(state)]
    for image, (what, tensors) in zip(state, given, strict=True):
        copy_tensors(f"{spec.name}, {what}", tensors, parameters(image, spec.layout))
    return _finite(spec, Content(weights, state, steps))


def parameters(image: Image, layout: Layout) -> dict[str, torch.Tensor]:
    """Return the PARAMETER tensors in their shapes, sharing memory."""
    kinds = {t.name: t.kind for t in layout.tensors}
    return {n: t for n, t in image.tensors(layout).items() if kinds[n] is TensorKind.PARAMETER}


def _new_state(spec: ModelSpec) -> tuple[Image, ...]:
    return tuple(Image.zeros(spec.layout) for _ in range(spec.rule.state_images))


def _finite(spec: ModelSpec, content: Content) -> Content:
    for what, image in zip(("weight", "history", "square"), (content.weights, *content.state), strict=False):
        for tensor, flat in zip(spec.layout.tensors, image.flat, strict=True):
            if not all_finite(flat):
                raise LayoutError(f"{spec.name}: the {what} {tensor.name} has NaN or Inf; send finite values")
    return content
