"""All that is compiled, loaded before it is needed: each stage names what runs its kernels once on a tiny case."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlfabric.scheduler.planning.fluid.jit import is_cold, set_warm

__all__ = ["STAGES", "is_compiled", "load"]

STAGES = tuple(
    f"mlfabric.scheduler.planning.{name}"
    for name in (
        "all_reduce",
        "columns",
        "fluid.handing_kernel",
        "fluid.parts_kernel",
        "fluid.spread_kernel",
        "fluid.taking",
        "search",
        "stored",
        "trees",
    )
)
"""Modules whose function ``warm()`` runs all kernels of a stage once, on arrays of the types that they will get."""


def is_compiled() -> bool:
    """Say whether all machine code is on disk and up to date."""
    _stages()
    return not is_cold()


def load(log: Callable[[str], None]) -> None:
    """Load the machine code of all stages, or compile it and keep it on disk."""
    stages = _stages()
    was_cold = is_cold()
    if was_cold:
        log("compiling the planner; this happens once and takes a minute or two")
    for stage in stages:
        stage.warm()
    set_warm()
    log("compiled the planner" if was_cold else "loaded the planner")


def _stages() -> list[Any]:
    return [import_module(name) for name in STAGES]
