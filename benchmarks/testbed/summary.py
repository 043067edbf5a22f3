"""The rows of the paper's table, from the runs that are there: each with our figure, the paper's and the required one.

Ratios are the ring's time divided by the other system's: above 1 the ring is slower.

A row is a function from all runs to plain values, named in ``ROWS``; a new row is a new function there, and a title for
it in the report. A verdict is None as long as the runs that it needs are not there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import ACCURACY_CELLS, CELLS, Cell
from benchmarks.testbed.comparing import Measured, Pair, estimate
from benchmarks.testbed.further_rows import backups, forwarded, reporting_lag, topics
from benchmarks.testbed.ideal import ideal_ratio, ideal_synchronous_ratio
from benchmarks.testbed.overlap_row import overlap
from benchmarks.testbed.rounds_row import rounds
from benchmarks.testbed.twin_row import twin
from benchmarks.testbed.verdicts import (
    Verdict,
    all_known,
    at_least,
    by_rate,
    by_target,
    estimated,
    mean_of,
    not_below,
    over_seeds,
)
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = ["ROWS", "Row", "row_values"]

Row = Callable[[Measured, float], dict[str, Any]]
"""Given all runs and the target accuracy."""

IDEAL_SEED = 0


def row_values(measured: Measured, target: float) -> dict[str, dict[str, Any]]:
    """Return all rows by name, as plain values.

    What must be reached is said of the paper's number of workers; with another there are no verdicts.
    """
    rows = {name: row(measured, target) for name, row in ROWS.items()}
    comparable = all(run.spec.workers == reference.WORKERS for run in measured.all)
    return rows if comparable else _without_verdicts(rows)


def asynchronous(measured: Measured, target: float) -> dict[str, Any]:
    """Time to the target with a delay bound of as many updates as workers (paper: 30), against the ring."""

    def one(cell: Cell) -> dict[str, Any]:
        ratio = measured.compared(cell, "fabric-async", by_target(target))
        required = reference.REQUIRED_ASYNCHRONOUS.get(cell.name)
        return {
            **estimated("ratio", ratio),
            **estimated("rate_ratio", measured.compared(cell, "fabric-async", by_rate)),
            "paper": reference.PAPER_ASYNCHRONOUS.get(cell.name),
            "ideal": _ideal(measured, cell, "fabric-async"),
            "ideal_known": reference.IDEAL_BOUND_30.get(cell.name),
            "required": required,
            "reached": at_least(ratio, required),
        }

    cells = _by_cell(measured, "fabric-async", one)
    return {"cells": cells, "reached": _all_nine(cells)}


def advised(measured: Measured, target: float) -> dict[str, Any]:
    """The same with the delay bound that `mlfabric advise` picks."""

    def one(cell: Cell) -> dict[str, Any]:
        ratio = measured.compared(cell, "fabric-advised", by_target(target))
        required = reference.ADVISED_MEAN_N3 if cell.network == "N3" else None
        return {
            **estimated("ratio", ratio),
            **estimated("rate_ratio", measured.compared(cell, "fabric-advised", by_rate)),
            "delay_bounds": sorted({str(run.spec.delay_bound) for run in measured.runs(cell, "fabric-advised")}),
            "ideal": _ideal(measured, cell, "fabric-advised"),
            "ideal_known_without_bound": reference.IDEAL_UNBOUNDED.get(cell.name),
            "required": required,
            "reached": at_least(ratio, required),
        }

    cells = _by_cell(measured, "fabric-advised", one)
    means = [values["ratio"]["mean"] for values in cells.values() if values["ratio"] is not None]
    mean = statistics.fmean(means) if means else None
    enough = mean is not None and mean >= reference.ADVISED_MEAN
    n3 = [cells[cell.name]["reached"] for cell in CELLS if cell.network == "N3" and cell.name in cells]
    complete = all(cell.name in cells and cells[cell.name]["ratio"] is not None for cell in CELLS)
    return {
        "cells": cells,
        "mean": mean,
        "mean_n3": mean_of(cells[n]["ratio"]["mean"] for n in cells if n.endswith("N3") and cells[n]["ratio"]),
        "required_mean": reference.ADVISED_MEAN,
        "required_n3": reference.ADVISED_MEAN_N3,
        "reached": (enough and all(n3)) if complete else None,
    }


def accuracy(measured: Measured, target: float) -> dict[str, Any]:
    """Accuracy at the end less the ring's: after equal time, and after as many gradients as the ring had."""
    found = {}
    cells = [cell for cell in measured.cells if cell.name in ACCURACY_CELLS] or measured.cells
    for system in ("fabric-async", "fabric-advised", "fabric-sync", "ps-async"):
        pairs = [pair for cell in cells for pair in measured.pairs(cell, system)]
        equal_time = over_seeds(pairs, _accuracy_difference)
        found[system] = {
            **estimated("difference", equal_time),
            **estimated("difference_at_equal_gradients", over_seeds(pairs, _accuracy_difference_at_equal_gradients)),
            "accuracy": mean_of(pair.other.curve.at_end() for pair in pairs),
            "ring_accuracy": mean_of(pair.baseline.curve.at_end() for pair in pairs),
            "required_low": reference.ACCURACY_MARGIN,
            "reached": not_below(equal_time, reference.ACCURACY_MARGIN),
        }
    promised = ("fabric-async", "fabric-advised")
    return {
        "systems": found,
        "cells": [cell.name for cell in cells],
        "reached": all_known(found[name]["reached"] for name in promised),
    }


def synchronous(measured: Measured, target: float) -> dict[str, Any]:
    """Synchronous training, reduction and distribution overlapped, against the ring: time per iteration."""

    def one(cell: Cell) -> dict[str, Any]:
        ratio = measured.compared(cell, "fabric-sync", by_rate)
        return {
            **estimated("ratio", ratio),
            "ideal": ideal_synchronous_ratio(COMPUTE[cell.compute], NETWORK[cell.network]),
            "required": reference.REQUIRED_SYNCHRONOUS,
            "reached": at_least(ratio, reference.REQUIRED_SYNCHRONOUS),
        }

    cells = _by_cell(measured, "fabric-sync", one)
    return {"cells": cells, "paper": reference.PAPER_SYNCHRONOUS_RANGE, "reached": _all_nine(cells)}


def tree(measured: Measured, target: float) -> dict[str, Any]:
    """Communication time of synchronous training against a static tree's, C2-N2: the share that is saved."""
    cell = Cell(compute="C2", network="N2")
    saved = measured.compared(
        cell, "fabric-sync", lambda pair: 1 - pair.other.communication_s / pair.baseline.communication_s, "tree"
    )
    return {
        **estimated("communication_saved_share", saved),
        **estimated("ratio", measured.compared(cell, "fabric-sync", by_rate, "tree")),
        "paper": reference.PAPER_TREE_GAIN,
        "required": reference.PAPER_TREE_GAIN,
        "reached": at_least(saved, reference.PAPER_TREE_GAIN),
    }


def dropped(measured: Measured, target: float) -> dict[str, Any]:
    """Share of updates that were dropped, in all and of each worker."""
    cells: dict[str, dict[str, Any]] = {}
    for cell in measured.cells:
        for system in ("fabric-async", "fabric-advised"):
            runs = measured.runs(cell, system)
            if runs:
                shares = [run.dropped_share_by_worker() for run in runs]
                by_worker = [statistics.fmean(row) for row in zip(*shares, strict=True)]
                cells.setdefault(cell.name, {})[system] = {
                    "share": statistics.fmean(run.dropped_share for run in runs),
                    "share_by_worker": by_worker,
                    "largest_share": max(by_worker),
                    "applied_of_least": min(min(run.commits.by_worker(run.spec.workers)) for run in runs),
                }
    known = [values["applied_of_least"] > 0 for systems in cells.values() for values in systems.values()]
    return {"cells": cells, "paper_share_c1_n1": reference.PAPER_DROPPED, "reached": all(known) if known else None}


def speed(measured: Measured, target: float) -> dict[str, Any]:
    """Seconds per iteration of every system in every cell, undilated, and the time to the target."""
    cells: dict[str, dict[str, Any]] = {}
    for cell in measured.cells:
        for system in SYSTEMS:
            runs = measured.runs(cell, system)
            if runs:
                met = [t for t in (run.curve.time_to(target) for run in runs) if t is not None]
                cells.setdefault(cell.name, {})[system] = {
                    **estimated("seconds_per_iteration", estimate([run.seconds_per_iteration for run in runs])),
                    **estimated("seconds_to_target", estimate(met)),
                    "runs": len(runs),
                    "runs_that_met_the_target": len(met),
                    "delay_p50": statistics.fmean(run.commits.delay_quantile(0.5) for run in runs),
                    "delay_p99": statistics.fmean(run.commits.delay_quantile(0.99) for run in runs),
                }
    return {"cells": cells, "ring_known": dict(reference.RING_S), "reached": None}


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "asynchronous_vs_ring": asynchronous,
        "advised_vs_ring": advised,
        "accuracy_at_the_end": accuracy,
        "synchronous_vs_ring": synchronous,
        "synchronous_vs_tree": tree,
        "dropped": dropped,
        "forwarded": forwarded,
        "reporting_lag": reporting_lag,
        "topics": topics,
        "backups": backups,
        "rounds": rounds,
        "overlap": overlap,
        "twin": twin,
        "speed": speed,
    }
)


def _accuracy_difference(pair: Pair) -> float:
    return pair.other.curve.at_end() - pair.baseline.curve.at_end()


def _accuracy_difference_at_equal_gradients(pair: Pair) -> float:
    most = float(min(pair.other.curve.gradients[-1], pair.baseline.curve.gradients[-1]))
    return pair.other.curve.at_end(most) - pair.baseline.curve.at_end(most)


def _ideal(measured: Measured, cell: Cell, system: str) -> float | None:
    """Return the ideal of the runs' delay bound, which all of a cell have in common unless advice has changed."""
    bounds = {run.spec.delay_bound for run in measured.runs(cell, system) if run.spec.workers == reference.WORKERS}
    setting = COMPUTE[cell.compute], NETWORK[cell.network]
    return mean_of(ideal_ratio(*setting, bound, IDEAL_SEED) for bound in bounds)


def _by_cell(measured: Measured, system: str, one: Callable[[Cell], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {cell.name: one(cell) for cell in measured.cells if measured.pairs(cell, system)}


def _all_nine(cells: Mapping[str, Mapping[str, Any]]) -> Verdict:
    return all_known(cells.get(cell.name, {}).get("reached") for cell in CELLS)


def _without_verdicts(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: None if key == "reached" else _without_verdicts(value) for key, value in values.items()}
    return values
