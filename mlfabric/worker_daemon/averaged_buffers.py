"""A model's floating-point buffers (batch-norm statistics), of which workers have the mean."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["AveragedBuffers"]


class AveragedBuffers:
    """Those of one model; not those with NaN or Inf when this is made, which are masks that no step changes.

    A module may assign a buffer anew.

    Args:
        given: the model whose buffers are offered for rounds.
        taken: the model that has the means; the same one unless given.
    """

    def __init__(self, given: torch.nn.Module, taken: torch.nn.Module | None = None) -> None:
        self._given, self._taken = given, given if taken is None else taken
        buffers = self._taken.named_buffers()
        self._names = [name for name, b in buffers if b.is_floating_point() and bool(b.isfinite().all())]
        self._sound = [buffer.detach().clone() for buffer in self.given()]

    def given(self) -> list[torch.Tensor]:
        """Return what is offered."""
        return self._of(self._given)

    def taken(self) -> list[torch.Tensor]:
        """Return where the means go."""
        return self._of(self._taken)

    def _of(self, model: torch.nn.Module) -> list[torch.Tensor]:
        present = dict(model.named_buffers())
        return [present[name] for name in self._names]

    @torch.no_grad()
    def are_sound(self) -> bool:
        """Tell whether all that is offered is finite; if not, let it be what it was when it last was."""
        given = self.given()
        is_sound = _are_finite(given)
        came, goes = (given, self._sound) if is_sound else (self._sound, given)
        for one, other in zip(came, goes, strict=True):
            other.copy_(one)
        return is_sound


def _are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
