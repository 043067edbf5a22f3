"""Who computes: plain Python, or the compiled kernels for large batches.

Both give the same plans to the nanosecond. The kernels are used only once :func:`warm_up` has loaded them, so that no
update ever waits for a compiler; until then updates and gets are ordered in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mlfabric.network import Network
from mlfabric.scheduler.planning.shortest import Demand, PythonReserver, Reserver
from mlfabric.scheduler.planning.values import Candidate, DropRule, Ordering

if TYPE_CHECKING:
    from mlfabric.scheduler.planning.fluid.world import World

__all__ = ["KERNEL_FROM", "is_planner_compiled", "is_planner_loaded", "kernels_for", "reserver_for", "warm_up"]

KERNEL_FROM = 12  # below, Python is faster than the way to the kernels and back (measured)


class Kernels(Protocol):
    """What ``columns`` offers once its kernels are loaded."""

    def reserver(self, demands: Sequence[Demand], network: Network) -> Reserver:
        """Return the reserver for many transfers."""
        ...

    def order(
        self,
        candidates: Sequence[Candidate],
        network: Network,
        destination: str,
        *,
        v_init: int,
        tau_max: int | None,
        now_ns: int,
        rule: DropRule,
        world: World | None,
    ) -> Ordering:
        """Order a large batch; see ``ordering.order``."""
        ...


_loaded: list[Kernels] = []


def warm_up(log: Callable[[str], None]) -> None:
    """Load all compiled kernels, and compile them if this machine has not done so yet.

    Loading takes less than a second, compiling a minute or more, once for each version of mlfabric.

    Args:
        log: told in one line what is being waited for, and how it ended.
    """
    if not _loaded:
        # Imported only here: numba takes long to import.
        from mlfabric.scheduler.planning import columns
        from mlfabric.scheduler.planning.fluid import ready

        ready.load(log)
        _loaded.append(columns)


def is_planner_compiled() -> bool:
    """Say whether :func:`warm_up` has only to load what is on disk."""
    from mlfabric.scheduler.planning.fluid import ready

    return ready.is_compiled()


def is_planner_loaded() -> bool:
    """Say whether :func:`warm_up` is done: only then can sums and distribution be planned without a compiler."""
    return bool(_loaded)


def kernels_for(count: int) -> Kernels | None:
    """Return the kernels, if they are loaded and worth it for so many transfers."""
    return _loaded[0] if _loaded and count >= KERNEL_FROM else None


def reserver_for(demands: Sequence[Demand], network: Network) -> Reserver:
    """Return the fastest reserver that can plan these demands."""
    kernels = kernels_for(len(demands))
    return PythonReserver(demands, network) if kernels is None else kernels.reserver(demands, network)
