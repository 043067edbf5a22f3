"""What the whole fabric achieves, over real processes and sockets; each figure is made by a module of its own.

``mlfabric bench fabric --json FILE``; ``--set only=KEY`` makes what has that key.
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
        function: of the module; called without arguments.
    """

    keys: tuple[str, ...]
    module: str
    function: str = "run"


FIGURES = (
    Figures(keys=("sync_max_rel_diff",), module="fabric_modes", function="synchronous"),
    Figures(keys=("delay_excess_max",), module="fabric_modes", function="asynchronous"),
    Figures(keys=("ingress_bytes_ratio",), module="fabric_ingress"),
    Figures(keys=("sum_over_receive_time", "aggregator_peak_tensors"), module="summing"),
    Figures(keys=("lda_rel_gap",), module="lda"),
    Figures(keys=("replica_traffic_ratio", "divergence_violations"), module="fabric_replica"),
    Figures(keys=("allreduce_vs_gloo_equal", "allreduce_vs_gloo_slow_link"), module="fabric_allreduce"),
)


def run(only: str = "") -> dict[str, Any]:
    """Measure on this machine, one after the other.

    Args:
        only: a key: nothing else is measured than what it comes with; "" for all.

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
        measure: Callable[[], Mapping[str, Any]] = getattr(
            import_module(f"benchmarks.{figures.module}"), figures.function
        )
        found.update(measure())
    return found
