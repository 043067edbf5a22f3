"""Loads all compiled code before it is needed: each stage names a function that runs its kernels once on a tiny
case."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mlfabric.planning.fluid.jit import is_cold, set_warm

__all__ = ["STAGES", "is_compiled", "load"]

STAGES = tuple(
    f"mlfabric.planning.{name}"
    for name in (
        "all_reduce",
        "fluid.spread_kernel",
        "placements",
        "trees",
    )
)
"""Modules whose function ``warm()`` runs all kernels of a stage once, on arrays of the types that they will get."""


def is_compiled() -> bool:
    """Say whether all machine code is on disk and up to date."""
    _stages()
    return not is_cold()


def load(log: Callable[[str], None], *, backwards: bool = False) -> None:
    """Load the machine code of all stages, or compile it and keep it on disk.

    Args:
        log: called with one line about what is being loaded or compiled, and how it ended.
        backwards: begin with the last stage.
    """
    stages = _stages()[:: -1 if backwards else 1]
    was_cold = is_cold()
    if was_cold:
        log("compiling the planner; this happens once and takes a minute or two")
    with _collecting_no_garbage():
        for stage in stages:
            stage.warm()
    set_warm()
    log("compiled the planner" if was_cold else "loaded the planner")


@contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Suspend garbage collection: loading makes many objects that stay; scanning them takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _stages() -> list[Any]:
    return [import_module(name) for name in STAGES]
