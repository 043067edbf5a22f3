"""How a status is shown to people: as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from mlfabric.model.specs import Method
from mlfabric.v1 import fabric_pb2

__all__ = ["console", "rate_text", "size_text", "status_view", "table"]

WIDTH_WITHOUT_TERMINAL = 160
_STYLE_OF_STATE = {"here": "green", "silent": "yellow", "left": "dim"}

_WITHOUT_SERVER = frozenset(method.value for method in Method if not method.has_server)


def console() -> Console:
    """Return where tables are printed; wide enough for a table if it is no terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str | Text]], *, one_line: bool = False) -> Table:
    """Return a table; a column whose name ends with ``>`` is aligned to the right.

    Args:
        one_line: what does not fit into a line is left out.
    """
    out = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for column in columns:
        justify: JustifyMethod = "right" if column.endswith(">") else "left"
        overflow: OverflowMethod = "ellipsis" if one_line else "fold"
        out.add_column(column.rstrip(">"), justify=justify, overflow=overflow, no_wrap=one_line)
    for row in rows:
        out.add_row(*row)
    return out


def rate_text(bps: float) -> str:
    """Return a rate in bit/s for people; "-" if it is unknown (0)."""
    return f"{_scaled(bps)}bit/s" if bps else "-"


def size_text(size_bytes: float) -> str:
    """Return a size in bytes for people."""
    return f"{_scaled(size_bytes)}B"


def _scaled(value: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000 or unit == "T":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def status_view(status: fabric_pb2.GetStatusResponse, scheduler: str) -> RenderableType:
    """Return a status as tables: members, models, workers, links, planner."""
    planner = status.planner
    head = f"scheduler {scheduler}, term {status.term}, version {status.software_version or 'unknown'}"
    foot = f"planner: {planner.plans} plans of {planner.mean_plan_ms:.2f} ms, {planner.mean_batch:.1f} updates in each"
    tables = [_members(status), _models(status), _workers(status), _links(status)]
    parts = [part for made in tables if made.row_count for part in (made, Text())]
    warnings = [Text(f"warning: {w.name} is {w.warning}", style="bold red") for w in status.workers if w.warning]
    # All parts of a model that is on several servers wait for the same.
    waits = [Text(words) for words in dict.fromkeys(m.waits_for for m in status.models) if words]
    probes = [Text(_probes(m)) for m in status.models if m.probes.asked]
    thresholds = [Text(f"threshold of {m.name}: {m.threshold}") for m in status.models if m.threshold]
    samples = [Text(_samples(m)) for m in status.models if m.HasField("samples")]
    return Group(Text(head), Text(), *parts, *warnings, *waits, *probes, *thresholds, *samples, Text(foot))


def _members(status: fabric_pb2.GetStatusResponse) -> Table:
    rows = [
        (
            m.name,
            m.role,
            m.host,
            m.address or "-",
            Text(m.state, _STYLE_OF_STATE.get(m.state, "")),
            m.activity,
            _memory(m),
        )
        for m in status.members
    ]
    return table("Members", ("name", "role", "host", "address", "state", "doing", "memory"), rows)


def _memory(member: fabric_pb2.MemberStatus) -> str:
    return ", ".join(f"{kind} {size_text(size)}" for kind, size in sorted(member.memory_bytes.items()) if size)


def _bound(model: fabric_pb2.ModelStatus) -> str:
    """Return the delay bound of a model whose method is one of delays."""
    return str(model.tau_max) if model.method == Method.ASYNCHRONOUS.value else "-"


def _delays(model: fabric_pb2.ModelStatus) -> tuple[str, str]:
    """Return median and longest delay of a model whose server counts them."""
    if model.method in _WITHOUT_SERVER:
        return "-", "-"
    return f"{model.delay_p50:g}", str(model.delay_max)


def _models(status: fabric_pb2.GetStatusResponse) -> Table:
    columns = (
        *("name", "server", "method", "version>", "tau_max>", "delay p50>", "delay max>"),
        *("waiting>", "in flight>", "committed>", "dropped>", "lost>"),
    )
    rows = [
        (
            *(
                m.name,
                m.server or "-",
                m.method,
                _version(m),
            ),
            *(_bound(m), *_delays(m), str(m.waiting), str(m.in_flight)),
            *(str(m.committed), str(m.dropped), str(m.lost)),
        )
        for m in status.models
    ]
    return table("Models", columns, rows)


def _probes(model: fabric_pb2.ModelStatus) -> str:
    """Say what became of the probes between an AllReduce job's rounds."""
    probes = model.probes
    words = f"{probes.asked} asked for, {probes.answered} answered in time, {probes.changed} links found changed"
    return f"probes of {model.name}: {words}"


def _samples(model: fabric_pb2.ModelStatus) -> str:
    """Say what became of the samples that updates were computed from."""
    found = model.samples
    words = [f"{found.trained + found.unplaced} trained on"]
    words += [
        f"{number} {fate}"
        for number, fate in (
            (found.repeated, "of them more than once"),
            (found.in_flight, "under way"),
            (found.dropped, "dropped"),
            (found.lost, "lost"),
            (found.missing, "missing"),
        )
        if number
    ]
    return f"samples of {model.name}: {', '.join(words)}"


def _version(model: fabric_pb2.ModelStatus) -> str:
    """Return a version's number; without a server the rounds done."""
    if model.method in _WITHOUT_SERVER:
        return f"{model.version.number} rounds"
    return str(model.version.number) if model.initialised else "none yet"


def _workers(status: fabric_pb2.GetStatusResponse) -> Table:
    columns = ("name", "model", "committed>", "in flight>", "dropped>", "dropped share>", "why dropped")
    rows = [
        (
            *(w.name, w.model, str(w.committed), str(w.in_flight), str(w.dropped)),
            f"{w.dropped_share:.1%}",
            ", ".join(f"{count} {cause}" for cause, count in sorted(w.dropped_by_cause.items()) if count),
        )
        for w in status.workers
    ]
    return table("Workers", columns, rows)


def _links(status: fabric_pb2.GetStatusResponse) -> Table:
    rows = [
        (
            *(link.host, "up" if link.up else "down", rate_text(link.nominal_bps), rate_text(link.estimate_bps)),
            f"{link.age_s:.1f} s" if link.HasField("age_s") else "not measured",
        )
        for link in status.links
    ]
    return table("Links", ("host", "direction", "nominal>", "planned with>", "measured ago>"), rows)
