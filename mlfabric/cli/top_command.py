"""``mlfabric top``: what the status page shows, in a terminal."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from statistics import median, median_high
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from mlfabric.cli import options as opt
from mlfabric.cli import tables
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.security import CLIENT, Security
from mlfabric.v1 import fabric_pb2

__all__ = ["add_to", "fitting", "top_view"]

Entry = Mapping[str, Any]
MOST_KEPT = 5000
ROUNDS_SHOWN, NOTES_SHOWN, LINKS_SHOWN = 6, 6, 6
NAME_WIDTH, LEAST_BAR_WIDTH = 16, 20
_IN, _GET, _OPEN = ("█", "blue"), ("▒", "green"), ("░", "bright_black")
_DROPPED, _BROKEN = ("x", "yellow"), ("!", "red")
_LOOKS = {"settled": _IN, "committed": _IN, "served": _GET, "dropped": _DROPPED, "": _OPEN}
_KEY = (
    *((_IN, "in the model"), (_GET, "only the model or the result fetched")),
    *((_DROPPED, "dropped"), (_BROKEN, "void or broken"), (_OPEN, "under way")),
)
_COLUMNS = " ▁▂▃▄▅▆▇█"


def top(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    span: Annotated[float, typer.Option(min=1.0, help="Seconds that the timeline shows.")] = 30.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
) -> None:
    """Show live what the fabric does, until Ctrl-C.

    A timeline of transfers and rounds, what members wait for, delays and divergence with their bounds, the slowest
    links, the last rounds and decisions with their reasons. Where the output is no terminal it is shown once.
    """
    asker = StatusReader(scheduler, security=Security.of(tls, CLIENT, insecure=insecure))
    asyncio.run(_watch(asker, span, every))


async def _watch(asker: StatusReader, span_s: float, every_s: float) -> None:
    screen = tables.console()
    kept, known = deque[Entry](maxlen=MOST_KEPT), 0
    async with asker as reader:
        found = await reader.read(history_since=known)
        kept.extend(map(json.loads, found.entries))
        if not screen.is_terminal:
            screen.print(top_view(found, kept, span_s, screen.width))
            return
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                live.update(fitting(screen, top_view(found, kept, span_s, screen.width)), refresh=True)
                await asyncio.sleep(every_s)
                known = found.next_entry
                found = await reader.read(history_since=known)
                if found.next_entry < known:  # another scheduler, which counts anew
                    kept.clear()
                kept.extend(map(json.loads, found.entries))


def fitting(screen: Console, view: RenderableType) -> RenderableType:
    """Leave out the lines that the terminal has no room for, and say how many."""
    lines = screen.render_lines(view, pad=False)
    left_out = len(lines) - screen.height + 1
    if left_out <= 1:
        return view
    shown = [segment for line in lines[:-left_out] for segment in (*line, Segment.line())]
    return Group(Segments(shown), Text(f"{left_out} more lines: a higher window shows them", style="reverse"))


def top_view(
    status: fabric_pb2.GetStatusResponse, entries: Iterable[Entry], span_s: float, width: int
) -> RenderableType:
    """Return what is shown.

    Args:
        status: the present one, with what is not over.
        entries: what is over, oldest first.
        span_s: seconds that the timeline shows.
        width: of the terminal, in characters.
    """
    over = _present(entries)
    states = Counter(member.state for member in status.members)
    here = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    models = ", ".join(f"{m.name}: {m.method}, version {m.version.number}" for m in status.models)
    parts: list[RenderableType] = [
        Text(f"members: {here or 'none'}; {models or 'no model yet'}", style="bold"),
        _timeline(status, [*over, *map(json.loads, status.open)], span_s, max(LEAST_BAR_WIDTH, width - NAME_WIDTH - 1)),
        _members(status),
        _models(status, over),
    ]
    rounds = [entry for entry in over if entry["kind"] == "round"][-ROUNDS_SHOWN:]
    if rounds:
        parts += [_rounds(reversed(rounds))]
    if status.links:
        parts += [_links(status)]
    notes = islice((note for entry in reversed(over) for note in _notes(entry)), NOTES_SHOWN)
    return Group(*parts, Text("Last decisions", style="bold"), *(Text(note, overflow="ellipsis") for note in notes))


def _present(entries: Iterable[Entry]) -> list[Entry]:
    """Leave out what is of models that have ended, where others of the same name have begun."""
    begun, kept = set[str](), list[Entry]()
    for entry in reversed(list(entries)):
        if entry.get("model") not in begun:
            kept.append(entry)
        begun.update(entry.get("begins", ()))
    return kept[::-1]


def _timeline(status: fabric_pb2.GetStatusResponse, entries: list[Entry], span_s: float, width: int) -> Group:
    """Return a row for each worker, in which each character stands for the same time, and what they mean."""
    now, cell = status.now_ms, 1000 * span_s / width
    began = now - 1000 * span_s
    states = {member.name: member.state for member in status.members}
    rows = {worker.name: [" "] * width for worker in status.workers if states.get(worker.name) != "left"}
    colours = {name: [""] * width for name in rows}
    for entry in entries:
        for worker, since, until in _bars(entry, now):
            if until >= began:
                row, hues = rows.setdefault(worker, [" "] * width), colours.setdefault(worker, [""] * width)
                first, last = (min(width - 1, max(0, int((at - began) / cell))) for at in (since, until))
                look, hue = _LOOKS.get(entry["outcome"], _BROKEN)
                if look == _IN[0] and worker in entry.get("receivers", ()):
                    look, hue = _GET
                row[first : last + 1] = [look] * (last + 1 - first)
                hues[first : last + 1] = [hue] * (last + 1 - first)
    made = Table(box=None, padding=0, show_header=False)
    made.add_column(width=NAME_WIDTH, overflow="ellipsis", no_wrap=True)
    made.add_column(no_wrap=True)
    for name in sorted(rows):
        line = Text.assemble(*zip(rows[name], colours[name], strict=True))
        made.add_row(name, line)
    began_text = f"-{span_s:g} s"
    made.add_row("", Text(began_text + "now".rjust(width - len(began_text)), style="dim"))
    key = Text.assemble(*(part for (look, hue), words in _KEY for part in ((look, hue), f" {words}  ")))
    return Group(made, key)


def _bars(entry: Entry, now: float) -> Iterable[tuple[str, float, float]]:
    """Give whose bar begins and ends when."""
    ended = entry.get("ended") or now
    match entry["kind"]:
        case "round":
            for worker in (*entry["members"], *entry["receivers"]):
                yield worker, entry["began"], entry["arrived"].get(worker, ended)
        case "update" | "get" if entry["planned"] is not None:
            yield entry["worker"], entry["planned"][0], max(entry["planned"][0], entry.get("received") or ended)


def _members(status: fabric_pb2.GetStatusResponse) -> Table:
    tallies = {worker.name: worker for worker in status.workers}
    rows = [
        (
            *(member.name, "lost" if member.state == "left" and member.activity else member.state),
            *_tally(tallies, member.name),
            _warned(tallies.get(member.name)) or member.activity,
        )
        for member in status.members
    ]
    columns = ("name", "state", "in the model>", "dropped>", "what it does, or waits for")
    return tables.table("Members", columns, rows, one_line=True)


def _warned(worker: fabric_pb2.WorkerStatus | None) -> str:
    return "" if worker is None else worker.warning


def _tally(tallies: Mapping[str, fabric_pb2.WorkerStatus], name: str) -> tuple[str, str]:
    found = tallies.get(name)
    return ("", "") if found is None else (str(found.committed), f"{found.dropped} ({found.dropped_share:.0%})")


def _models(status: fabric_pb2.GetStatusResponse, over: Iterable[Entry]) -> Table:
    delays: dict[str, list[int]] = {model.name: [] for model in status.models}
    for entry in over:
        if entry.get("outcome") in ("settled", "committed") and entry["model"] in delays:
            delays[entry["model"]] += entry["delays"].values() if entry["kind"] == "round" else [entry["delay"]]
    columns = ("name", "version>", "delay median>", "most>", "bound>", "0 1 2 ...", "its replica is behind")
    rows = [(m.name, str(m.version.number), *_late(delays[m.name], m.tau_max), _behind(m)) for m in status.models]
    return tables.table("Models", columns, rows, one_line=True)


def _late(delays: list[int], bound: int) -> tuple[str, str, str, str]:
    """Return the median, the most, the bound, and how often each delay came, as columns."""
    counts = Counter(delays)
    if not counts:
        return "-", "-", str(bound), ""
    most, high = max(counts), max(counts.values())
    drawn = "".join(_COLUMNS[-(-counts[at] * (len(_COLUMNS) - 1) // high)] for at in range(most + 1))
    return f"{median(delays):g}", str(most), str(bound), drawn


def _behind(model: fabric_pb2.ModelStatus) -> str:
    if not model.HasField("replica_lead"):
        return ""
    updates = f"{model.replica_lead} updates" + (
        f" of {model.replica_lead_max}" if model.HasField("replica_lead_max") else ""
    )
    distance = f", l2 {model.divergence:.3g}" + (
        f" of {model.divergence_max:.3g}" if model.HasField("divergence_max") else ""
    )
    return updates + distance


def _links(status: fabric_pb2.GetStatusResponse) -> Table:
    """Return the slowest links; those below half of the usual rate of their direction are marked."""
    known = [link for link in status.links if link.nominal_bps or link.HasField("age_s")]
    ways = {up: [link.estimate_bps for link in known if link.up == up] for up in (True, False)}
    usual = {up: median_high(rates) if rates else 0 for up, rates in ways.items()}
    slowest = sorted(status.links, key=lambda link: link.estimate_bps)[:LINKS_SHOWN]
    rows = [
        (
            link.host,
            "up" if link.up else "down",
            Text(tables.rate_text(link.estimate_bps), "red" if link.estimate_bps < usual[link.up] / 2 else ""),
            "slow" if link.estimate_bps < usual[link.up] / 2 else "",
        )
        for link in slowest
    ]
    return tables.table(f"Slowest of {len(status.links)} links", ("host", "direction", "rate>", ""), rows)


def _rounds(rounds: Iterable[Entry]) -> Table:
    shown = [
        (
            entry["model"],
            str(entry["version"]),
            f"{(entry['ended'] - entry['began']) / 1000:.2f} s",
            f"{(entry['planned'][1] - entry['planned'][0]) / 1000:.2f} s" if entry["planned"] else "-",
            str(len(entry["members"])),
            f"void: {entry['cause']}" if entry["outcome"] == "void" else entry["reason"],
        )
        for entry in rounds
    ]
    return tables.table("Rounds", ("model", "version>", "took>", "planned>", "in>", "why"), shown, one_line=True)


def _notes(entry: Entry) -> Iterable[str]:
    """Give what is worth to be told of an entry."""
    match entry:
        case {"kind": "note"}:
            yield f"{entry['about']} {entry['text']}"
        case {"outcome": "dropped"}:
            yield f"{entry['worker']}: {entry['id']} is dropped: {entry.get('reason') or entry['cause']}"
        case {"outcome": "void"}:
            yield f"{entry['model']}: {entry['id']} is void: {entry['cause']}"


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric top",
            "mlfabric top --span 120 --scheduler head-node:50061 --tls certificates",
            "mlfabric top | cat",
        )
    )(top)
