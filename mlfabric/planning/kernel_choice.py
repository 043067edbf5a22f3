"""Whether kernels run compiled, or as plain Python from the same source.

They run compiled only once :func:`warm_up` has loaded them, so that no update ever waits for a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlfabric.planning.fluid.jit import plain

__all__ = ["fastest", "is_planner_compiled", "is_planner_loaded", "warm_up"]

_loaded: list[bool] = []


def warm_up(log: Callable[[str], None]) -> None:
    """Load all compiled kernels, and compile them if this machine has not done so yet.

    Loading takes less than a second, compiling up to a minute, once for each version of mlfabric.

    Args:
        log: called with one line about what is being loaded or compiled, and how it ended.
    """
    if not _loaded:
        from mlfabric.planning.fluid import ready

        ready.load(log)
        _loaded.append(True)


def is_planner_compiled() -> bool:
    """Say whether :func:`warm_up` has only to load what is on disk."""
    from mlfabric.planning.fluid import ready

    return ready.is_compiled()


def is_planner_loaded() -> bool:
    """Say whether :func:`warm_up` is done: only then can sums and distribution be planned without a compiler."""
    return bool(_loaded)


def fastest(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function if it is loaded, else the same in plain Python."""
    return kernel if _loaded else plain(kernel)
