"""What workers do in the beginning of a run, as a picture (a Gantt chart); with matplotlib."""

from __future__ import annotations

from pathlib import Path

from mlfabric.errors import UsageError
from mlfabric.twin.outcome import Outcome

__all__ = ["draw_run"]

_COLOURS = {"compute": "#009e73", "wait": "#dddddd", "send": "#0072b2", "get": "#e69f00"}
_WORDS = {"compute": "computes", "wait": "waits", "send": "sends", "get": "gets the model"}
_TOP, _HEIGHT = {"compute": 0.0, "wait": 0.0, "send": 0.3, "get": 0.6}, {"compute": 0.9, "wait": 0.9}
_MOST_WORKERS = 60
_WIDTH_IN, _ROW_IN, _DPI = 11.0, 0.2, 120


def draw_run(outcome: Outcome, path: Path, until_s: float) -> None:
    """Write a picture of what workers do.

    Args:
        outcome: of a run that kept spans.
        path: of the file; its suffix says which format (png, svg, pdf).
        until_s: where the picture ends.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("a picture needs matplotlib; pip install 'mlfabric[demo]'") from error
    shown = min(len(outcome.hosts) - 1, _MOST_WORKERS)
    figure = Figure(figsize=(_WIDTH_IN, 1.4 + _ROW_IN * shown), layout="constrained")
    axes = figure.subplots()
    for what, colour in _COLOURS.items():
        spans = [span for span in outcome.spans if span.what == what and span.worker < shown]
        axes.barh(
            [span.worker + _TOP[what] for span in spans],
            [min(span.end_s, until_s) - span.start_s for span in spans],
            left=[span.start_s for span in spans],
            height=_HEIGHT.get(what, 0.3),
            align="edge",
            color=colour,
            label=_WORDS[what],
        )
    axes.set_yticks([worker + 0.45 for worker in range(shown)], list(outcome.hosts[:shown]), fontsize=7)
    axes.set_ylim(shown, 0)
    axes.set_xlim(0, until_s)
    axes.set_xlabel("seconds")
    left_out = len(outcome.hosts) - 1 - shown
    axes.set_title(f"{outcome.name}" + (f" ({left_out} more workers not shown)" if left_out else ""), loc="left")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    try:
        figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error
