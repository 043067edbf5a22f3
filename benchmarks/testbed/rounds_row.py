"""The row of the table about training in rounds without a server: each system in each cell, beside the ring's run.

A figure is an entry of ``_figures``; what it has to reach, if anything, is said in ``reference.DEMANDS``. Means are
over pairs of runs of one seed, and stand with the range of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import RING, SYSTEMS
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.comparing import Measured, Pair
from benchmarks.testbed.markdown import NONE, Values, number, share, spread, table, verdict
from benchmarks.testbed.run_ends import RING_ITERATIONS
from benchmarks.testbed.runs import Consistency
from benchmarks.testbed.spec import CellResult
from benchmarks.testbed.verdicts import Verdict, all_known, at_least, by_rate, mean_of

__all__ = ["TITLE", "rounds", "shown", "shown_in_short"]

TITLE = "Rounds without a server: times as fast as the ring to an accuracy, and what was in a round"
_BEST = "ring-best"
"""Stands for the ring of the best workers with the number of them that is best in a cell."""
_WAITING, _GOES_ON = "-all", "-overlap"
"""Stands for the same system when all workers are waited for: its name ends so; that of one whose workers go on while
rounds are made ends in the other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of a run, most of them in comparison with another system's run of the same cell and seed.

    Args:
        value: of a pair; None where it has none.
        baseline: the other system; "" compares with none, ``_BEST`` with the best ring that shuts workers out,
            ``_WAITING`` with the same system when all are waited for.
    """

    value: Callable[[Pair], float | None]
    baseline: str = RING


def _figures(target: float) -> Mapping[str, _Figure]:
    return {
        "to_target": _Figure(value=_times_to(target)),
        "to_further_target": _Figure(value=_times_to(reference.FURTHER_TARGET)),
        "iterations": _Figure(value=by_rate),
        "accuracy": _Figure(value=_accuracy_difference),
        "least_share": _Figure(value=_least_share, baseline=""),
        "rounds_per_s": _Figure(value=lambda pair: pair.other.rounds / pair.other.elapsed_s, baseline=""),
        "contributions": _Figure(value=lambda pair: len(pair.other.commits.workers) / pair.other.rounds, baseline=""),
        "dropped": _Figure(value=lambda pair: pair.other.dropped_share, baseline=""),
        "slow_classes": _Figure(value=_slow_classes, baseline="synchronous"),
        "to_target_overlapped": _Figure(value=_times_to(target), baseline="ring-overlap"),
        "to_target_best": _Figure(value=_times_to(target), baseline=_BEST),
        "to_target_waiting": _Figure(value=_times_to(target), baseline=_WAITING),
        "to_further_target_waiting": _Figure(value=_times_to(reference.FURTHER_TARGET), baseline=_WAITING),
    }


def rounds(measured: Measured, target: float) -> dict[str, Any]:
    """Every system that trains in rounds, in every cell in which it was measured."""
    figures = _figures(target)
    best = {cell: _best_ring(measured, cell, target) for cell in measured.cells}
    names = [name for name, system in SYSTEMS.items() if system.consistency is Consistency.ROUNDS]
    systems = {
        name: {
            cell.name: _cell(measured, cell, name, figures, best[cell])
            for cell in measured.cells
            if measured.runs(cell, name)
        }
        for name in names
    }
    verdicts = (
        systems.get(name, {}).get(cell, {}).get("reached")
        for name, cells in reference.DEMANDS.items()
        for cell in cells
    )
    return {
        "systems": systems,
        "gradients": RING_ITERATIONS,
        "targets": [target, reference.FURTHER_TARGET],
        "reached": all_known(verdicts),
    }


def _best_ring(measured: Measured, cell: Cell, target: float) -> str:
    """Return which of the rings that shut workers out is at the target first, the mean of the seeds; "" if none is."""

    def mean_s(name: str) -> float:
        times = [run.curve.time_to(target) for run in measured.runs(cell, name)]
        return mean_of(math.inf if time_s is None else time_s for time_s in times) or math.inf

    names = [name for name, system in SYSTEMS.items() if system.members and mean_s(name) < math.inf]
    return min(names, key=mean_s, default="")


def _cell(measured: Measured, cell: Cell, system: str, figures: Mapping[str, _Figure], best: str) -> dict[str, Any]:
    stands_for = {"": system, _BEST: best, _WAITING: system.removesuffix(_GOES_ON) + _WAITING}
    baselines = {name: stands_for.get(f.baseline, f.baseline) for name, f in figures.items()}
    found = {name: measured.compared(cell, system, f.value, baselines[name]) for name, f in figures.items()}
    demands = reference.DEMANDS.get(system, {}).get(cell.name, {})
    verdicts: dict[str, Verdict] = {name: at_least(found[name], least) for name, least in demands.items()}
    return {
        **{name: None if value is None else value.as_json() for name, value in found.items()},
        "best_ring": best,
        "demands": dict(demands),
        "verdicts": verdicts,
        "reached": all_known(verdicts.values()) if demands else None,
    }


def _times_to(target: float) -> Callable[[Pair], float | None]:
    """Return how to tell how many times as long the baseline takes to an accuracy; 0 if only it ever gets there."""

    def times(pair: Pair) -> float | None:
        baseline_s, other_s = pair.baseline.curve.time_to(target), pair.other.curve.time_to(target)
        if not baseline_s:
            return None
        return baseline_s / other_s if other_s else 0.0

    return times


def _accuracy_difference(pair: Pair) -> float | None:
    """Return how much more accurate a model is than the baseline's when as many gradients are applied."""
    other, baseline = _accuracy_after(pair.other), _accuracy_after(pair.baseline)
    return None if other is None or baseline is None else other - baseline


def _accuracy_after(run: CellResult) -> float | None:
    gradients = RING_ITERATIONS * run.spec.workers
    return run.curve.at_end(gradients) if run.curve.gradients[-1] >= gradients else None


def _least_share(pair: Pair) -> float:
    return pair.other.commits.least_share(pair.other.spec.workers)


def _slow_classes(pair: Pair) -> float | None:
    other, baseline = pair.other.slow_curve, pair.baseline.slow_curve
    return None if other is None or baseline is None else other.at_end() - baseline.at_end()


def shown_in_short(row: Values) -> str:
    """Return for each system that has demands how many of its cells reach them."""
    found = (
        (name, [cells.get(cell, {}).get("reached") for cell in reference.DEMANDS[name]])
        for name, cells in row["systems"].items()
        if name in reference.DEMANDS and cells
    )
    return ", ".join(f"{name} {reached.count(True)} of {len(reached)}" for name, reached in found) or NONE


def shown(row: Values) -> str:
    """Return the row's part of the report."""
    targets = [f"to {target * 100:g} %" for target in row["targets"]]
    columns = (
        "cell",
        "system",
        *targets,
        "gradients/s",
        "accuracy, points",
        "least share",
        "rounds/s",
        "in a round",
        "dropped",
        "missed",
        "reached",
    )
    made = table(columns, _lines(row["systems"]))
    return (
        f"{made}\n\nTimes as fast as the ring, and gradients per second over the ring's: means of the seeds with their "
        f"range. Accuracy: when {row['gradients']} times as many gradients are applied as there are workers, less the "
        "ring's then. Least share: the gradients of the worker with the fewest, over the mean of all workers. A time "
        f"of 0 is of a run that never got there.{_further(row['systems'])}"
    )


def _lines(systems: Values) -> Iterable[tuple[str, ...]]:
    for name, cells in systems.items():
        for cell, values in cells.items():
            yield (
                cell,
                SYSTEMS[name].label,
                spread(values["to_target"]),
                spread(values["to_further_target"]),
                spread(values["iterations"]),
                spread(values["accuracy"], as_points=True),
                spread(values["least_share"]),
                spread(values["rounds_per_s"]),
                spread(values["contributions"]),
                share(None if values["dropped"] is None else values["dropped"]["mean"]),
                _missed(values) or NONE,
                verdict(values["reached"]),
            )


def _missed(values: Values) -> str:
    """Return what a cell has to reach and does not."""
    missed = (name for name, reached in values["verdicts"].items() if reached is False)
    return ", ".join(f"{name.replace('_', ' ')} {number(values['demands'][name])}" for name in missed)


def _further(systems: Values) -> str:
    """Return what was measured in few cells only: slow hosts' classes, and overlap on both sides."""
    lines = [
        f"{cell}, {SYSTEMS[name].label}: {text}"
        for name, cells in systems.items()
        for cell, values in cells.items()
        for text in (
            "accuracy on the classes of slow hosts, less the synchronous one's, in points: "
            + spread(values["slow_classes"], as_points=True)
            if values["slow_classes"] is not None
            else "",
            "time to the target against the ring with overlap: " + spread(values["to_target_overlapped"])
            if values["to_target_overlapped"] is not None
            else "",
            f"the same against the {SYSTEMS[values['best_ring']].label}: " + spread(values["to_target_best"])
            if values["to_target_best"] is not None and values["best_ring"] != name
            else "",
            "time to the targets against the same with all waited for: "
            f"{spread(values['to_target_waiting'])}, {spread(values['to_further_target_waiting'])}"
            if values["to_target_waiting"] is not None
            else "",
        )
        if text
    ]
    return "\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""
