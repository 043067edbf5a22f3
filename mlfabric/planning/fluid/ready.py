"""Loads all compiled code before it is needed: each stage names a function that runs its kernels once on a tiny
case."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from mlfabric.planning.fluid.jit import is_cold, is_kept, set_warm

__all__ = ["STAGES", "is_compiled", "load"]

STAGES = tuple(
    f"mlfabric.planning.{name}"
    for name in (
        "trees",
        "fluid.spread_kernel",
        "placements",
    )
)
"""Modules whose function ``warm()`` runs all kernels of a stage once, on arrays of the types that they will get.

The first two share much that the last two do not need, and take about as long to compile as these.
"""


def is_compiled() -> bool:
    """Say whether all machine code is on disk and up to date."""
    _stages()
    return not is_cold()


def load(log: Callable[[str], None], *, backwards: bool = False) -> None:
    """Load the machine code of all stages, or compile it and keep it on disk.

    Unless ``backwards``, a second process compiles meanwhile from the last stage on. What it has kept is only loaded
    here; it ends with this function or with this process.

    Args:
        log: called with one line about what is being loaded or compiled, and how it ended.
        backwards: begin with the last stage.
    """
    stages = _stages()[:: -1 if backwards else 1]
    was_cold = is_cold()
    if was_cold:
        log("compiling the planner; this happens once and takes up to a minute")
    helped = _from_the_other_end() if was_cold and is_kept() and not backwards else nullcontext()
    with helped, _collecting_no_garbage():
        for stage in stages:
            stage.warm()
    set_warm()
    log("compiled the planner" if was_cold else "loaded the planner")


@contextmanager
def _from_the_other_end() -> Iterator[None]:
    """Let another process compile from the last stage on; Ctrl-C at a terminal reaches only this one."""
    command = [sys.executable, "-m", "mlfabric.planning.fluid", "backwards"]
    with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True) as helper:
        try:
            yield
        finally:
            helper.kill()


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
