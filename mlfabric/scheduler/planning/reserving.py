"""Who computes reservations: plain Python, or the compiled kernel for large batches through one link.

Both give the same profiles to the nanosecond. The kernel is used only once :func:`warm_up` has loaded it, so that no
plan ever waits for a compiler; until then everything is planned in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfabric.network import Network
from mlfabric.scheduler.planning.shortest import Demand, PythonReserver, Reserver

__all__ = ["KERNEL_FROM", "reserver_for", "warm_up"]

KERNEL_FROM = 8  # below, Python is faster than the way to the kernel and back (measured)

_loaded: list[Callable[[Sequence[Demand], Network], Reserver | None]] = []


def warm_up(log: Callable[[str], None]) -> None:
    """Load the compiled kernel for large batches, and compile it if this machine has not done so yet.

    Loading takes less than a second, compiling some tens of seconds, once for each version of mlfabric.

    Args:
        log: told in one line what is being waited for, and how it ended.
    """
    if not _loaded:
        # Imported only here: numba takes long to import.
        from mlfabric.scheduler.planning import compiled

        compiled.load(log)
        _loaded.append(compiled.kernel_reserver)


def reserver_for(demands: Sequence[Demand], network: Network) -> Reserver:
    """Return the fastest reserver that can plan these demands."""
    is_large = len(demands) >= KERNEL_FROM and sum(1 for d in demands if d.path) >= KERNEL_FROM
    fast = _loaded[0](demands, network) if _loaded and is_large else None
    return fast or PythonReserver(demands, network)
