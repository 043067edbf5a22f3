"""The weights that a module has before the first worker brings them into the fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.worker_daemon.tensors import Trainable

__all__ = ["initialise"]


class Resettable(Protocol):
    """A module that can give its parameters their initial values again."""

    def reset_parameters(self) -> None:
        """Draw initial values from torch's random state."""


def initialise(model: Trainable, init: str | Path | int) -> None:
    """Give a model its initial weights.

    Args:
        model: changed in place.
        init: ``"first"`` leaves it as it is; an integer is a seed; anything else is the path of a state dict.

    Raises:
        UsageError: the model cannot be drawn anew, or the file cannot be read.
        LayoutError: the file has other tensors than the model.
    """
    if init == "first":
        return
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"init={init!r} needs a torch module; named tensors begin with 'first'")
    if isinstance(init, int):
        _seed(model, init)
    else:
        _load(model, Path(init))


def _seed(model: torch.nn.Module, seed: int) -> None:
    """Give every trainable parameter its module's default initial value under ``seed``."""
    resettable = [m for m in model.modules() if callable(getattr(m, "reset_parameters", None))]
    covered = {id(p) for m in resettable for p in m.parameters(recurse=False)}
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in covered]
    if missing:
        raise UsageError(f"init={seed}: no reset_parameters() covers {', '.join(missing)}; use 'first' or a file")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in resettable:
            cast(Resettable, module).reset_parameters()


def _load(model: torch.nn.Module, path: Path) -> None:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(
            f"init={str(path)!r}: {error.strerror or error}; give 'first', a seed or a state dict"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    names = set(state) if isinstance(state, dict) else set()
    missing = sorted({n for n, _ in model.named_parameters()} - names)
    if missing:
        raise LayoutError(f"init={str(path)!r} has no {', '.join(missing)}; give a state dict of this model")
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise LayoutError(f"init={str(path)!r} does not fit the model: {error}") from error
