"""The row of the paper's table that judges predictions of runs, the twin's and played ones, against measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import CELLS, ROUND_CELLS, Cell
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.markdown import NONE, Values, number, table, verdict
from benchmarks.testbed.predicting import PLAYED, WAYS
from benchmarks.testbed.verdicts import Verdict, all_known, mean_of

__all__ = ["TITLE", "judged", "shown", "shown_in_short", "twin"]

TITLE = "The twin: predicted time per iteration against the testbed's"


def twin(measured: Measured, target: float) -> dict[str, Any]:
    """Mean time per iteration that is predicted, over the measured one, in every cell; the same runs in both."""
    systems = {
        system: found
        for system in WAYS
        if (found := {c.name: v for c in measured.cells if (v := _cell(measured, c, system)) is not None})
    }
    verdicts = {
        system: judged({name: values["within"] for name, values in cells.items()}, is_played=system in PLAYED)
        for system, cells in systems.items()
    }
    return {
        "systems": {
            system: {
                "cells": cells,
                "within": sum(values["within"] for values in cells.values()),
                "mean_ratio": mean_of(values["ratio"] for values in cells.values()),
                "reached": verdicts[system],
            }
            for system, cells in systems.items()
        },
        "allowed_error": reference.TWIN_ERROR,
        "required_cells": reference.TWIN_CELLS,
        "reached": all_known(verdicts.get(system) for system in WAYS),
    }


def judged(within: Mapping[str, bool], *, is_played: bool) -> Verdict:
    """Tell whether enough cells are predicted well: most of all nine, of rounds those in which they are compared.

    None as long as those that lack decide.

    Args:
        within: by cell, whether it is predicted well.
        is_played: the system is one of rounds.
    """
    cells = ROUND_CELLS if is_played else [cell.name for cell in CELLS]
    wanted = len(cells) if is_played else reference.TWIN_CELLS
    found = [within[cell] for cell in cells if cell in within]
    if sum(found) >= wanted:
        return True
    return False if len(found) - sum(found) > len(cells) - wanted else None


def _cell(measured: Measured, cell: Cell, system: str) -> dict[str, Any] | None:
    """Return what was measured and predicted in a cell; None without a run of which both are known."""
    runs = [run for run in measured.runs(cell, system) if run.spec.file_name in measured.predicted]
    if not runs:
        return None
    all_took_s = [run.seconds_per_iteration for run in runs]
    took_s = statistics.fmean(all_took_s)
    predicted_s = statistics.fmean(measured.predicted[run.spec.file_name] for run in runs)
    ratio = predicted_s / took_s
    return {
        "seconds_per_iteration": took_s,
        "predicted": predicted_s,
        "ratio": ratio,
        "runs": len(runs),
        "within": abs(ratio - 1) <= reference.TWIN_ERROR or min(all_took_s) <= predicted_s <= max(all_took_s),
    }


def shown_in_short(row: Values) -> str:
    """Return how many cells of each system are predicted well."""
    found: Mapping[str, Values] = row["systems"]
    return ", ".join(f"{name} {v['within']} of {len(v['cells'])}" for name, v in found.items()) or NONE


def shown(row: Values) -> str:
    """Return the table of all cells, and how it is judged."""
    made = table(
        ("cell", "system", "measured, s", "predicted, s", "predicted / measured", "within"),
        (
            (
                cell,
                SYSTEMS[system].label,
                number(values["seconds_per_iteration"]),
                number(values["predicted"]),
                number(values["ratio"]),
                verdict(values["within"]),
            )
            for system, found in row["systems"].items()
            for cell, values in found["cells"].items()
        ),
    )
    allowed, cells = row["allowed_error"] * 100, row["required_cells"]
    return (
        f"{made}\n\nTo be within {allowed:g} %, or inside the range of the runs, in at least {cells} of the nine cells "
        f"of each system, of those of rounds without a server in {', '.join(ROUND_CELLS)}: {shown_in_short(row)}. "
        "Means of the same runs; predictions have the same weather and stragglers."
    )
