"""What the whole fabric achieves, over real processes and sockets; each figure is made by a module of its own.

``mlfabric bench fabric --json FILE``; ``--set only=KEY`` makes what has that key, ``--set small=true`` all of it so
small that it says no more than that it works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mlfabric.errors import UsageError

__all__ = ["FIGURES", "Figures", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one function measures.

    Args:
        keys: which it returns at least.
        module: in this folder.
        function: of the module.
        small: arguments with which it takes seconds; without any it takes as long as good figures need.
    """

    keys: tuple[str, ...]
    module: str
    function: str = "run"
    small: Mapping[str, Any]


FIGURES = (
    Figures(
        keys=("sync_max_rel_diff",),
        module="fabric_methods",
        function="synchronous",
        small={"workers": (3,)},
    ),
    Figures(
        keys=("delay_excess_max",),
        module="fabric_methods",
        function="asynchronous",
        small={"updates": 200},
    ),
    Figures(keys=("ingress_bytes_ratio",), module="fabric_ingress", small={"rounds": 1}),
    Figures(
        keys=("sum_over_receive_time", "aggregator_peak_tensors"),
        module="summing",
        small={"rounds": 1, "shaped_rounds": 1, "megabytes": 1},
    ),
    Figures(keys=("lda_rel_gap",), module="lda", small={"seeds": 1, "sweeps": 3}),
    Figures(
        keys=("replica_traffic_ratio", "divergence_violations"),
        module="fabric_replica",
        small={"updates_per_worker": 40, "stops": 2},
    ),
)


def run(only: str = "", small: bool = False) -> dict[str, Any]:
    """Measure on this machine, one after the other.

    Args:
        only: a key: nothing else is measured than what it comes with; "" for all.
        small: a minute or two instead of ten; the figures mean nothing.

    Returns:
        All keys of ``FIGURES``, and the figures that they are made of.

    Raises:
        UsageError: there is no such key.
    """
    chosen = [figures for figures in FIGURES if not only or only in figures.keys]
    if not chosen:
        allowed = ", ".join(key for figures in FIGURES for key in figures.keys)
        raise UsageError(f"only={only!r}; allowed: {allowed}")
    found: dict[str, Any] = {}
    for figures in chosen:
        measure: Callable[..., Mapping[str, Any]] = getattr(
            import_module(f"benchmarks.{figures.module}"), figures.function
        )
        found.update(measure(**figures.small) if small else measure())
    return found
