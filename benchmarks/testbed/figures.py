"""The table's pictures: accuracy over time in every cell, and ratios to the ring beside the ideal and the paper's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.judging import isotonic
from mlfabric.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ACCURACY", "RATIOS", "draw_accuracy", "draw_ratios"]

ACCURACY, RATIOS = "accuracy.png", "ratios.png"
_COLOURS = {
    "ring": "#444444",
    "tree": "#b5a642",
    "ps-sync": "#cc79a7",
    "ps-async": "#e69f00",
    "synchronous": "#d55e00",
    "elastic": "#000000",
    "fabric-sync": "#56b4e9",
    "fabric-async": "#0072b2",
    "fabric-advised": "#009e73",
}
"""Of the systems that are in the pictures."""
_DPI = 120
_BAR = 0.2


def draw_accuracy(measured: Measured, target: float, path: Path) -> None:
    """Draw each run's smoothed accuracy over undilated time, a panel for each cell.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure_class = _figure_class()
    columns = min(3, max(1, len(measured.cells)))
    rows = math.ceil(len(measured.cells) / columns)
    figure = figure_class(figsize=(1.5 + 3.6 * columns, 1.2 + 2.7 * rows), layout="constrained")
    panels = figure.subplots(max(1, rows), columns, squeeze=False)
    for axes, cell in zip(panels.flat, measured.cells, strict=False):
        _draw_cell(axes, measured, cell, target)
    for axes in panels.flat[len(measured.cells) :]:
        axes.set_axis_off()
    handles = {line.get_label(): line for axes in panels.flat for line in axes.get_legend_handles_labels()[0]}
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=_DPI)


def _draw_cell(axes: Axes, measured: Measured, cell: Cell, target: float) -> None:
    for name, colour in _COLOURS.items():
        for number, run in enumerate(measured.runs(cell, name)):
            label = SYSTEMS[name].label if number == 0 else None
            smooth = isotonic(run.curve.accuracy)
            axes.plot(run.curve.time_s, smooth, color=colour, linewidth=1.2, alpha=0.8, label=label)
    axes.axhline(target, color="#d55e00", linewidth=0.8, linestyle="--")
    axes.set_title(cell.name)
    axes.set_xlabel("seconds, undilated")
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)


def draw_ratios(rows: dict[str, Any], path: Path) -> None:
    """Draw for each cell how many times as long the ring takes, with confidence intervals.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=(11, 4.5), layout="constrained")
    axes: Axes = figure.add_subplot()
    cells = list({name: None for row in _RATIO_ROWS for name in rows[row]["cells"]})
    for offset, (row, label, colour) in enumerate(
        (
            ("asynchronous_vs_ring", "asynchronous, bound = workers", _COLOURS["fabric-async"]),
            ("advised_vs_ring", "asynchronous, bound as advised", _COLOURS["fabric-advised"]),
            ("synchronous_vs_ring", "synchronous", _COLOURS["fabric-sync"]),
        )
    ):
        _draw_bars(axes, cells, rows[row]["cells"], offset - 1, label, colour)
    _draw_marks(axes, cells, rows["asynchronous_vs_ring"]["cells"], "paper", -1, "paper, asynchronous", "x")
    for row, offset, label in zip(_RATIO_ROWS, (-1, 0, 1), ("ideal", "", ""), strict=True):
        _draw_marks(axes, cells, rows[row]["cells"], "ideal", offset, label, "_")
    axes.axhline(1, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(cells)), cells)
    axes.set_ylabel("ring's time / ours")
    axes.spines[["top", "right"]].set_visible(False)
    if cells:
        axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    figure.savefig(path, dpi=_DPI)


_RATIO_ROWS = ("asynchronous_vs_ring", "advised_vs_ring", "synchronous_vs_ring")


def _draw_bars(axes: Axes, cells: list[str], found: dict[str, Any], offset: int, label: str, colour: str) -> None:
    known = [(i, found[cell]["ratio"]) for i, cell in enumerate(cells) if found.get(cell, {}).get("ratio")]
    if known:
        means = [ratio["mean"] for _, ratio in known]
        spread = [(r["ci95_high"] or r["mean"]) - r["mean"] for _, r in known]
        at = [i + offset * (_BAR + 0.05) for i, _ in known]
        axes.bar(at, means, width=_BAR, color=colour, label=label, yerr=spread, error_kw={"linewidth": 0.8})


def _draw_marks(
    axes: Axes, cells: list[str], found: dict[str, Any], key: str, offset: int, label: str, marker: str
) -> None:
    known = [(i, found[cell][key]) for i, cell in enumerate(cells) if found.get(cell, {}).get(key) is not None]
    if known:
        at = [i + offset * (_BAR + 0.05) for i, _ in known]
        values = [value for _, value in known]
        axes.plot(at, values, marker, color="#d55e00", markersize=9, markeredgewidth=1.8, label=label or "_nolegend_")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("--report needs matplotlib; pip install 'mlfabric[demo]'") from error
    return Figure
