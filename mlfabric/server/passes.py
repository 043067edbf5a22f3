"""The two passes of a step over a whole model, run by run of tensors that are stepped alike.

The rates that updates bring come first: their mean is what parameters step with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlfabric.model.images import Run, runs_of
from mlfabric.model.specs import Layout, TensorKind
from mlfabric.server.kernels import AdamKernel, Kernel, Norms
from mlfabric.server.model_images import Image
from mlfabric.server.rule_kernels import Kernels

__all__ = ["Passes"]


class Passes:
    """Steps of models of one layout; holds no tensor. In images of state only the PARAMETER tensors mean something."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._runs = sorted(runs_of(layout), key=lambda run: run.kind is not TensorKind.RATES)

    def make(self, images: Sequence[Image], kernels: Kernels, weights: Image, state: Sequence[Image]) -> Norms | str:
        """Make a step in the update's images; weights and state are only read.

        Returns:
            The norms; or, if one of them is not finite, the name of the tensor to blame.
        """
        norms = Norms()
        for image in images:
            image.clear_padding()
        for run in self._runs:
            updates, kernel = [run.of(image.data) for image in images], self._kernel(run, kernels, images)
            norms = norms.plus(kernel.make(updates, run.of(weights.data), _state_of(run, state)))
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
            self._kernel(run, kernels, images).take(updates, weights, after, _state_of(run, state))

    def _kernel(self, run: Run, kernels: Kernels, images: Sequence[Image]) -> Kernel:
        """Return what steps a run; of parameters with the mean of the updates' rates, if they bring any."""
        kernel = kernels[run.kind]
        if run.kind is not TensorKind.PARAMETER or not self._layout.rate_groups:
            return kernel
        assert isinstance(kernel, AdamKernel), "updates bring rates for adam alone"
        rate, decay = images[0].flat[-1].view(-1, 2)[run.group].tolist()
        return kernel.at(rate, decay)

    def _first_not_finite(
        self, run: Run, images: Sequence[Image], kernels: Kernels, weights: Image, state: Sequence[Image]
    ) -> str:
        """Name the tensor that is to blame; the last of the run if none is alone (a sum that overflowed)."""
        for i in run.tensors:
            updates = [image.flat[i] for image in images]
            past = [image.flat[i] for image in state] if run.kind is TensorKind.PARAMETER else []
            if not self._kernel(run, kernels, images).is_finite(updates, weights.flat[i], past):
                return self._layout.tensors[i].name
        return self._layout.tensors[run.tensors[-1]].name


def _state_of(run: Run, state: Sequence[Image]) -> list[torch.Tensor]:
    return [run.of(image.data) for image in state] if run.kind is TensorKind.PARAMETER else []
