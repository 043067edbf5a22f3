"""The two passes of a step over a whole model, run by run of tensors that are stepped alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlfabric.images import Run, runs_of
from mlfabric.server.images import Image
from mlfabric.server.kernels import Norms
from mlfabric.server.rules import Kernels
from mlfabric.specs import Layout, TensorKind

__all__ = ["Passes"]


class Passes:
    """Steps of models of one layout; holds no tensor. In images of state only the PARAMETER tensors mean something."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._runs = runs_of(layout)

    def make(self, images: Sequence[Image], kernels: Kernels, weights: Image, state: Sequence[Image]) -> Norms | str:
        """Make a step in the update's images; weights and state are only read.

        Returns:
            The norms; or, if one of them is not finite, the name of the tensor to blame.
        """
        norms = Norms()
        for image in images:
            image.clear_padding()
        for run in self._runs:
            updates = [run.of(image.data) for image in images]
            norms = norms.plus(kernels[run.kind].make(updates, run.of(weights.data), _state_of(run, state)))
            if not norms.are_finite:
                return self._first_not_finite(run, images, kernels, weights, state)
        return norms

    def take(
        self, images: Sequence[Image], kernels: Kernels, source: Image, target: Image, state: Sequence[Image]
    ) -> None:
        """Write the weights that follow ``source`` to ``target``, which may be the same, and the new state."""
        for run in self._runs:
            updates = [run.of(image.data) for image in images]
            weights, after = run.of(source.data), run.of(target.data)
            kernels[run.kind].take(updates, weights, after, _state_of(run, state))

    def _first_not_finite(
        self, run: Run, images: Sequence[Image], kernels: Kernels, weights: Image, state: Sequence[Image]
    ) -> str:
        """Name the tensor that is to blame; the last of the run if none is alone (a sum that overflowed)."""
        for i in run.tensors:
            updates = [image.flat[i] for image in images]
            past = [image.flat[i] for image in state] if run.kind is TensorKind.PARAMETER else []
            if not kernels[run.kind].is_finite(updates, weights.flat[i], past):
                return self._layout.tensors[i].name
        return self._layout.tensors[run.tensors[-1]].name


def _state_of(run: Run, state: Sequence[Image]) -> list[torch.Tensor]:
    return [run.of(image.data) for image in state] if run.kind is TensorKind.PARAMETER else []
