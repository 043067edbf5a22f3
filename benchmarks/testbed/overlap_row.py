"""The row of the paper's table about overlap within the step: each way to train with it against the same without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.comparing import Estimate, Measured, Pair
from benchmarks.testbed.markdown import NONE, Values, interval, number, table, verdict
from benchmarks.testbed.verdicts import Verdict, all_known, by_rate, by_target, estimated, mean_of, over_seeds

__all__ = ["TITLE", "WITHOUT", "overlap", "shown", "shown_in_short"]

TITLE = "Overlap within the step, on both sides: how many times as fast as without"

WITHOUT: Mapping[str, str] = MappingProxyType(
    {
        "ring-overlap": "ring",
        "elastic-overlap": "elastic",
        "fabric-sync-overlap": "fabric-sync",
        "fabric-overlap": "fabric-async",
    }
)
"""What each system with overlap is without it."""

RING = "ring-overlap"


def overlap(measured: Measured, target: float) -> dict[str, Any]:
    """Time per iteration and to the target with and without overlap, and against the ring with overlap.

    Reached if each side, over all cells, makes its iterations in less time with overlap than without.
    """
    systems = {system: _system(measured, system, target) for system in WITHOUT}
    return {"systems": systems, "reached": all_known(values["reached"] for values in systems.values())}


def _system(measured: Measured, system: str, target: float) -> dict[str, Any]:
    without = WITHOUT[system]
    gain = over_seeds((pair for cell in measured.cells for pair in measured.pairs(cell, system, without)), by_rate)
    cells = {c.name: _cell(measured, c, system, target) for c in measured.cells if measured.runs(c, system)}
    return {"cells": cells, "without": without, **estimated("gain", gain), "reached": _is_gain(gain)}


def _cell(measured: Measured, cell: Cell, system: str, target: float) -> dict[str, Any]:
    to_target, without = by_target(target), WITHOUT[system]
    return {
        "seconds_per_iteration": mean_of(run.seconds_per_iteration for run in measured.runs(cell, system)),
        "seconds_per_iteration_without": mean_of(run.seconds_per_iteration for run in measured.runs(cell, without)),
        **estimated("gain", measured.compared(cell, system, by_rate, without)),
        **estimated("gain_to_target", measured.compared(cell, system, to_target, without)),
        **estimated("ring_ratio", _against_ring(measured, cell, system, by_rate)),
        **estimated("ring_ratio_to_target", _against_ring(measured, cell, system, to_target)),
    }


def _against_ring(
    measured: Measured, cell: Cell, system: str, value: Callable[[Pair], float | None]
) -> Estimate | None:
    """Return how many times as long the ring takes that overlaps, too."""
    return None if system == RING else measured.compared(cell, system, value, RING)


def _is_gain(gain: Estimate | None) -> Verdict:
    return None if gain is None else gain.mean > 1


def shown_in_short(row: Values) -> str:
    """Return the gain of each system in one line."""
    found = ((name, values["gain"]) for name, values in row["systems"].items())
    return ", ".join(f"{name} {interval(gain)}" for name, gain in found if gain is not None) or NONE


def shown(row: Values) -> str:
    """Return the row's part of the report."""
    columns = (
        "system",
        "cell",
        "s/iteration",
        "without overlap",
        "without / with",
        "the same to target",
        "overlapped ring / ours",
        "the same to target",
    )
    made = table(columns, (line for name, values in row["systems"].items() for line in _lines(name, values["cells"])))
    reached = ", ".join(
        f"{SYSTEMS[name].label} {interval(values['gain'])} ({verdict(values['reached'])})"
        for name, values in row["systems"].items()
    )
    return (
        f"{made}\n\nOver all cells, without / with: {reached}.\n\nA step's forward is a third of its computation; in "
        "the rest backward makes each bucket's gradient in its share of the time, the last layers' first. The ring has "
        "the buckets of DistributedDataParallel for a model of 100 MB."
    )


def _lines(name: str, cells: Values) -> Iterable[tuple[str, ...]]:
    for cell, values in cells.items():
        yield (
            SYSTEMS[name].label,
            cell,
            number(values["seconds_per_iteration"]),
            number(values["seconds_per_iteration_without"]),
            interval(values["gain"]),
            interval(values["gain_to_target"]),
            interval(values["ring_ratio"]),
            interval(values["ring_ratio_to_target"]),
        )
