"""How figures are written in the report: tables, numbers, shares, intervals, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["NONE", "Values", "interval", "number", "points", "share", "spread", "table", "verdict"]

Values = Mapping[str, Any]
NONE = "-"
HEAD_LINES = 2


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or that nothing was measured."""
    lines = [columns, ["---"] * len(columns), *rows]
    if len(lines) == HEAD_LINES:
        return "Not measured."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(value: Values | None, *, as_share: bool = False) -> str:
    """Return an estimate and its confidence interval, if it has one."""
    if value is None:
        return NONE
    text = share if as_share else number
    if value["ci95_low"] is None:
        return text(value["mean"])
    return f"{text(value['mean'])} ({text(value['ci95_low'])} to {text(value['ci95_high'])})"


def spread(value: Values | None, *, as_points: bool = False) -> str:
    """Return a mean and the range of the values that it is of, if it is of several."""
    if value is None:
        return NONE
    mean, low, high = (
        f"{one * 100:+.2f}" if as_points else number(one)
        for one in (value["mean"], min(value["pairs"]), max(value["pairs"]))
    )
    return f"{mean} ({low} to {high})" if len(value["pairs"]) > 1 else mean


def points(value: Values | None) -> str:
    """Return a difference of accuracies in percentage points."""
    if value is None:
        return NONE
    spread = (
        "" if value["ci95_low"] is None else f" ({value['ci95_low'] * 100:+.2f} to {value['ci95_high'] * 100:+.2f})"
    )
    return f"{value['mean'] * 100:+.2f}{spread}"


def number(value: float | None) -> str:
    """Return a number with two places."""
    return NONE if value is None else f"{value:.2f}"


def share(value: Any) -> str:
    """Return a share, or an estimate of one, in percent."""
    if isinstance(value, Mapping):
        return interval(value, as_share=True)
    return NONE if value is None else f"{value * 100:.1f} %"


def verdict(reached: bool | None) -> str:
    """Return whether something is reached."""
    return {True: "yes", False: "NO", None: NONE}[reached]
