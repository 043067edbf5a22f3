"""``delay.png`` and ``timeline.png``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mlfabric.demo.demo_events import Applied, Event, Moved, NotApplied
from mlfabric.demo.demo_summary import Results
from mlfabric.demo.scenario import Scenario

__all__ = ["draw_delays", "draw_timeline"]

PUSH, GET, DROP, OPEN = "#0072b2", "#56b4e9", "#d55e00", "#bbbbbb"
WINDOW_S = 3.0
LANE = 0.36
DPI = 120


def draw_delays(results: Results, path: Path) -> None:
    """Draw how many updates were applied with which delay, and the bound."""
    delays, bound = results.delays(), results.counted.tau_max
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(list(delays), list(delays.values()), color=PUSH, width=0.8)
    axes.axvline(bound + 0.5, color=DROP, linewidth=2)
    axes.annotate(
        f"bound: {bound}", (bound + 0.5, 0.95), xycoords=("data", "axes fraction"), color=DROP, ha="right", va="top",
        xytext=(-5, 0), textcoords="offset points",
    )  # fmt: skip
    axes.set_xticks(range(bound + 2))
    axes.set_xlim(-0.6, bound + 1.6)
    axes.set_xlabel("delay: versions between reading the model and applying the update")
    axes.set_ylabel("updates")
    counted = results.counted
    axes.set_title(f"{counted.applied} updates applied, {counted.dropped} dropped before they could break the bound")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)


def draw_timeline(results: Results, path: Path) -> None:
    """Draw who sent what to whom and when: a few seconds in detail, and the whole run."""
    events, scenario = results.events, results.scenario
    origin_ns = min(_began_ns(event) for event in events)
    middle_s = _middle_s(events, origin_ns)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    detail, whole = figure.subplots(2, 1, height_ratios=[2, 1])
    for axes in (detail, whole):
        for rank in range(scenario.workers):
            _draw_worker(axes, [e for e in events if e.worker == f"worker-{rank}"], rank, origin_ns)
        _dress(axes, scenario)
    detail.set_xlim(middle_s - WINDOW_S / 2, middle_s + WINDOW_S / 2)
    detail.set_title("Transfers between the workers and server-0")
    whole.axvspan(middle_s - WINDOW_S / 2, middle_s + WINDOW_S / 2, color="#f0e442", alpha=0.6, zorder=0)
    whole.set_title("The whole run (shaded: the part above)")
    whole.set_xlabel("seconds")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=DPI)


def _draw_worker(axes: Axes, events: Sequence[Event], rank: int, origin_ns: int) -> None:
    def span(began_ns: int, ended_ns: int) -> tuple[float, float]:
        return (began_ns - origin_ns) / 1e9, (ended_ns - began_ns) / 1e9

    settled = [e for e in events if isinstance(e, (Applied, NotApplied))]
    moved = [e for e in events if isinstance(e, Moved)]
    axes.broken_barh([span(e.pushed_ns, e.at_ns) for e in settled], (rank - 0.2, 0.04), color=OPEN)
    pushes = [span(e.started_ns, e.ended_ns) for e in moved if e.is_push]
    gets = [span(e.started_ns, e.ended_ns) for e in moved if not e.is_push]
    axes.broken_barh(pushes, (rank - LANE, LANE), color=PUSH)
    axes.broken_barh(gets, (rank, LANE), color=GET)
    dropped_s = [(e.at_ns - origin_ns) / 1e9 for e in settled if isinstance(e, NotApplied)]
    axes.plot(dropped_s, [rank - LANE / 2] * len(dropped_s), "x", color=DROP, markersize=7, markeredgewidth=2)


def _dress(axes: Axes, scenario: Scenario) -> None:
    rates = scenario.rates or ("",) * scenario.workers
    names = [
        f"worker-{rank}" + (f"\n{slowness:g}x slower" if slowness != 1 else "") + (f"\n{rate}bit/s" if rate else "")
        for rank, (slowness, rate) in enumerate(zip(scenario.slowness, rates, strict=True))
    ]
    axes.set_yticks(range(scenario.workers), names, fontsize=8)
    axes.set_ylim(scenario.workers - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _legend() -> list[Patch | Line2D]:
    return [
        Patch(color=PUSH, label="push: update to server-0"),
        Patch(color=GET, label="get: model from server-0"),
        Line2D([], [], color=OPEN, linewidth=2, label="push handed over until settled"),
        Line2D([], [], color=DROP, marker="x", linestyle="", markeredgewidth=2, label="update dropped"),
    ]


def _middle_s(events: Sequence[Event], origin_ns: int) -> float:
    """Return the middle of the part to show in detail: the drop that is nearest to the middle of the run."""
    middle_s = (max(_began_ns(event) for event in events) - origin_ns) / 2e9
    dropped_s = [(e.at_ns - origin_ns) / 1e9 for e in events if isinstance(e, NotApplied)]
    return min(dropped_s, key=lambda at_s: abs(at_s - middle_s), default=middle_s)


def _began_ns(event: Event) -> int:
    return event.started_ns if isinstance(event, Moved) else event.at_ns
