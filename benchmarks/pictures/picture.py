"""A plan as a picture: which link carries what when (a Gantt chart), and when what is committed; with matplotlib."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pictures.lanes import Bar, Lane, groups_of, lanes_of
from mlfabric.errors import UsageError
from mlfabric.network import LinkId, Network
from mlfabric.network.links import CORE
from mlfabric.planning.plan import Kind, Plan, Toward, Transfer
from mlfabric.planning.words import Names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a642", "#7a5195")
_REPLICA = ("#7d6ca3", "#a395c2")
_MODEL, _LINE, _DROP = "#8da9c4", "#444444", "#d55e00"
_SECTIONS = {Toward.PRIMARY: "to the server", Toward.WORKERS: "to the workers", Toward.REPLICA: "to the replica"}
_MOST_LANES = 130
_BAR_SHARE = 0.86
_WIDTH_IN = 11.0
_LABEL_SHARE = 0.009
_DPI = 120
_HATCH_PT = 0.6
_MOST_NAMED = 3
_NEAR_THE_END = 0.93


def draw(plan: Plan, path: Path, network: Network | None = None) -> None:
    """Write a picture of a plan.

    Args:
        path: of the file; its suffix says which format (png, svg, pdf).
        network: to scale each lane by its link's capacity; without it, by the most that the plan takes of it.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("a picture needs matplotlib; pip install 'mlfabric[demo]'") from error
    lanes = lanes_of(plan, network)
    shown = lanes[:_MOST_LANES]
    row_in = min(0.24, max(0.13, 11 / max(1, len(shown))))
    figure = Figure(figsize=(_WIDTH_IN, 1.9 + row_in * (len(shown) + 2)), layout="constrained")
    _Drawing(plan, figure, shown, len(lanes) - len(shown), row_in).draw()
    try:
        with rc_context({"hatch.linewidth": _HATCH_PT}):
            figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise UsageError(f"picture {path}: {error}; give a file that can be written, as plan.png") from error


class _Drawing:
    """One picture: commits above, then lanes by purpose."""

    def __init__(self, plan: Plan, figure: Figure, lanes: list[Lane], hidden: int, row_in: float) -> None:
        self.plan, self.figure, self.lanes, self.hidden = plan, figure, lanes, hidden
        self.axes: Axes = figure.add_subplot()
        self.names = Names(plan)
        self.groups = groups_of(plan)
        self.font = min(8.0, 34 * row_in)
        ends = [t.arrive_ns for t in plan.transfers] + [c.commit_ns for c in plan.commits]
        self.span_ms = max(self.ms(max(ends, default=plan.state.now_ns)), 1e-6)

    def ms(self, at_ns: int) -> float:
        """Milliseconds since the plan was made."""
        return (at_ns - self.plan.state.now_ns) / 1e6

    def draw(self) -> None:
        ticks = self._draw_commits()
        row, section = 0.3, None
        for lane in self.lanes:
            row += 1.0
            if lane.toward is not section:
                row += 0.9
                self._head(row, lane.toward)
                section = lane.toward
            self._draw_lane(row, lane)
            ticks.append((row, _lane_name(lane.link)))
        self._dress(row, ticks)
        self._legend()

    def _head(self, row: float, toward: Toward) -> None:
        self.axes.axhline(row - 0.62, color=_LINE, linewidth=0.5)
        text = _SECTIONS[toward] if self.plan.state.server else "the sum" if toward is Toward.PRIMARY else "the result"
        self.axes.text(0, row - 0.66, text, fontsize=self.font, style="italic", color=_LINE, va="bottom", ha="left")

    def _draw_commits(self) -> list[tuple[float, str]]:
        """Draw a tick for each commit, a line from arrival to commit where it waits, names where there is room."""
        if not self.plan.commits:
            return []
        written_ms = -self.span_ms
        for commit in self.plan.commits:
            at_ms, colour = self.ms(commit.commit_ns), self._group_colour(commit.group)
            self.axes.plot([at_ms, at_ms], [-0.4, 0.4], color=colour, linewidth=2, solid_capstyle="butt")
            if commit.commit_ns > commit.arrive_ns:
                self.axes.plot(
                    [self.ms(commit.arrive_ns), at_ms], [0.25, 0.25], color=colour, linewidth=1, linestyle=":"
                )
        for at_ns, together in groupby(self.plan.commits, key=lambda commit: commit.commit_ns):
            at_ms, name = self.ms(at_ns), self.names.all([c.update for c in together], 2)
            if at_ms - written_ms > self.span_ms * _LABEL_SHARE * (len(name) + 1):
                align = "right" if at_ms > _NEAR_THE_END * self.span_ms else "center"
                self.axes.text(at_ms, -0.45, name, fontsize=self.font, ha=align, va="bottom")
                written_ms = at_ms
        return [(0.0, "commits" if self.plan.state.server else "results")]

    def _draw_lane(self, row: float, lane: Lane) -> None:
        labelled: dict[int, Bar] = {}
        for bar in lane.bars:
            transfer = self.plan.transfers[bar.transfer]
            self._draw_bar(row, bar, transfer)
            widest = labelled.get(bar.transfer)
            if widest is None or bar.end_ns - bar.start_ns > widest.end_ns - widest.start_ns:
                labelled[bar.transfer] = bar
        for bar in labelled.values():
            self._label(row, bar)

    def _draw_bar(self, row: float, bar: Bar, transfer: Transfer) -> None:
        start_ms, width_ms = self.ms(bar.start_ns), (bar.end_ns - bar.start_ns) / 1e6
        summed = transfer.kind is Kind.SUM
        self.axes.broken_barh(
            [(start_ms, width_ms)],
            (row + _BAR_SHARE * (0.5 - bar.bottom - bar.height), _BAR_SHARE * bar.height),
            facecolor=self._colour(bar.transfer, transfer),
            edgecolor="white",
            linewidth=0.4,
            hatch="////" if summed else None,
            alpha=1.0 if transfer.planned else 0.45,
        )

    def _label(self, row: float, bar: Bar) -> None:
        transfer = self.plan.transfers[bar.transfer]
        text = self._bar_name(transfer)
        wide = (bar.end_ns - bar.start_ns) / 1e6 > self.span_ms * _LABEL_SHARE * len(text)
        if wide and bar.height > 0.55:
            middle_ms = self.ms((bar.start_ns + bar.end_ns) // 2)
            at = row + _BAR_SHARE * (0.5 - bar.bottom - bar.height / 2)
            box: dict[str, Any] = {"facecolor": self._colour(bar.transfer, transfer), "edgecolor": "none", "pad": 1.2}
            self.axes.text(
                middle_ms, at, text, fontsize=self.font * 0.9, color="white", ha="center", va="center_baseline",
                bbox=box if transfer.kind is Kind.SUM else None,
            )  # fmt: skip

    def _bar_name(self, transfer: Transfer) -> str:
        if transfer.kind is Kind.MODEL:
            whole = "model" if self.plan.state.server else "result"
            return self.names.of(transfer.get) if transfer.get is not None else whole
        if transfer.kind is Kind.RING:
            return "parts"
        few = len(transfer.members) <= _MOST_NAMED
        return " + ".join(map(self.names.of, transfer.members)) if few else f"sum of {len(transfer.members)}"

    def _colour(self, index: int, transfer: Transfer) -> str:
        if transfer.kind is Kind.MODEL:
            return _MODEL
        if transfer.toward is Toward.REPLICA:
            return _REPLICA[self.groups.get(index, 0) % len(_REPLICA)]
        return self._group_colour(self.groups.get(index, index))

    def _group_colour(self, group: int) -> str:
        return _COLOURS[group % len(_COLOURS)]

    def _dress(self, bottom: float, ticks: list[tuple[float, str]]) -> None:
        axes = self.axes
        axes.set_yticks([row for row, _ in ticks], [name for _, name in ticks], fontsize=self.font)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(bottom + 0.7, -1.4)
        axes.set_xlim(0, 1.01 * self.span_ms)
        axes.set_xlabel(
            "milliseconds since the plan was made" + f" ({self.hidden} more lanes not shown)" * bool(self.hidden)
        )
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(self.plan.explain().splitlines()[0], fontsize=10, loc="left", wrap=True)

    def _legend(self) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        kinds = {t.kind for t in self.plan.transfers}
        handles: list[Patch | Line2D] = []
        if Kind.UPDATE in kinds:
            handles.append(Patch(color=_COLOURS[0], label="one update (a colour for each group)"))
        if Kind.SUM in kinds:
            handles.append(Patch(facecolor=_COLOURS[0], edgecolor="white", hatch="////", label="a sum"))
        if Kind.MODEL in kinds:
            handles.append(Patch(color=_MODEL, label="a model" if self.plan.state.server else "the result"))
        if any(t.toward is Toward.REPLICA for t in self.plan.transfers):
            handles.append(Patch(color=_REPLICA[0], label="for the replica (two shades: step by step)"))
        if any(not t.planned for t in self.plan.transfers):
            handles.append(Patch(color=_COLOURS[0], alpha=0.45, label="on its way before this plan"))
        if any(c.commit_ns > c.arrive_ns for c in self.plan.commits):
            handles.append(Line2D([], [], color=_LINE, linestyle=":", label="there, waits to be committed"))
        if self.plan.drops:
            names = self.names.all(left.update for left in self.plan.drops)
            handles.append(Line2D([], [], color=_DROP, marker="x", linestyle="", label=f"dropped: {names}"))
        if self.plan.deferred:
            names = self.names.all(d.what for d in self.plan.deferred)
            handles.append(Line2D([], [], color=_LINE, marker="|", linestyle="", label=f"deferred: {names}"))
        self.figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


def _lane_name(link: LinkId) -> str:
    if CORE in link:
        return str(link)
    return f"{link.tail} → {link.head}"
