"""What was seen of a running fabric: links and computing times, which the twin replays; lines of JSON.

The first line says what runs, the others what was seen when, in seconds since the recording began:

    {"trace": 1, "model": "net", "method": "asynchronous", "tau_max": 8, "model_bytes": 400000, "server": "s",
     "workers": {"worker-0": "host-0", "worker-1": "host-1"}}
    {"at_s": 0.0, "rate": ["host-0", "up", 100000000]}         that direction carries so many bit/s from then on
    {"at_s": 0.5, "compute": ["worker-0", [0.1, 0.2]]}         computations that ended since the last such line
    {"at_s": 0.5, "progress": [120, 3]}                        updates committed and dropped since the fabric began

In an AllReduce job progress counts rounds. A recording that was cut off is good up to its last whole line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.twin.cluster import Cluster, Compute, Host, RateLine, Spread
from mlfabric.twin.settings import Direction

__all__ = ["TRACE_FORMAT", "Progress", "Trace", "parse_trace"]

TRACE_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training was.

    Args:
        at_s: since the recording began.
        committed, dropped: updates (of AllReduce: rounds) since the fabric began.
    """

    at_s: float
    committed: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recording.

    Args:
        model, method, model_bytes: of the job.
        tau_max: delay bound; None where the method has none.
        server: host of the model; "" where there is none.
        workers: name of each worker, and its host.
        lines: what each link carried over time, by host and direction.
        compute_s: what each worker took for its computations, in their order.
        progress: in order of time.
    """

    model: str
    method: Method
    model_bytes: int
    tau_max: int | None
    server: str
    workers: Mapping[str, str]
    lines: Mapping[tuple[str, Direction], RateLine]
    compute_s: Mapping[str, tuple[float, ...]]
    progress: tuple[Progress, ...]

    @property
    def duration_s(self) -> float:
        """How long training was watched."""
        return self.progress[-1].at_s - self.progress[0].at_s if self.progress else 0.0

    @property
    def iteration_s(self) -> float:
        """Mean time in which each worker made a step.

        Raises:
            ConfigError: nothing went on while it was recorded.
        """
        ended = _ended(self.progress[-1]) - _ended(self.progress[0]) if self.progress else 0
        if ended < 1:
            raise ConfigError(f"the trace of {self.model} has no step in it; record for longer, while training goes on")
        return self.duration_s * (1 if self.method is Method.ALL_REDUCE else len(self.workers)) / ended

    def cluster(self, **changed: Any) -> Cluster:
        """Return the cluster that replays this.

        Args:
            changed: fields of the cluster that are to be otherwise.

        Raises:
            ConfigError: workers share a host, a link was not seen, or no computation was.
        """
        names = {host: worker for worker, host in self.workers.items()}
        if len(names) < len(self.workers):
            raise ConfigError("workers of this trace share hosts; the twin wants a host for each (--host-per-worker)")
        if not self.compute_s:
            raise ConfigError(f"the trace of {self.model} has no computing times in it; record for longer")
        if self.server in names:
            raise ConfigError(
                f"{names[self.server]} and the server share {self.server}; the twin wants a host for each"
            )
        server = self.server or "server"
        lines = {(names.get(host, server), way): line for (host, way), line in self.lines.items() if self._is_in(host)}
        given: dict[str, Any] = {
            "workers": tuple(_host(name, lines) for name in self.workers),
            "server": _host(server, lines) if self.server else _fastest(server, lines),
            "lines": lines,
            "compute": Compute(spread=Spread.RECORDED, recorded=self.compute_s),
            "model_bytes": self.model_bytes,
            "method": self.method,
            "tau_max": self.tau_max,
        }
        return Cluster(**{**given, **changed})

    def _is_in(self, host: str) -> bool:
        """Tell whether a host takes part in the job: others were recorded beside it."""
        return host == self.server or host in self.workers.values()


def _ended(progress: Progress) -> int:
    return progress.committed + progress.dropped


def _host(name: str, lines: Mapping[tuple[str, Direction], RateLine]) -> Host:
    rates = []
    for direction in (Direction.UP, Direction.DOWN):
        if (name, direction) not in lines:
            raise ConfigError(f"the trace says nothing of {name}'s link {direction.value}; record again with a monitor")
        rates.append(max(lines[name, direction].bps))
    return Host(name=name, up_bps=rates[0], down_bps=rates[1])


def _fastest(name: str, lines: Mapping[tuple[str, Direction], RateLine]) -> Host:
    """Return a server for a job that has none: a link as fast as the fastest."""
    most_bps = max(max(line.bps) for line in lines.values())
    return Host(name=name, up_bps=most_bps, down_bps=most_bps)


@dataclass(slots=True)
class _Seen:
    rates: dict[tuple[str, Direction], list[tuple[float, float]]] = field(default_factory=dict)
    compute_s: dict[str, list[float]] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)


def parse_trace(text: str, name: str) -> Trace:
    """Return what a recording says.

    Args:
        text: all of it.
        name: of where it comes from, for errors.

    Raises:
        ConfigError: it is no trace, of another format, or a line in it is none of a trace; says which.
    """
    rows = list(_rows(text, name))
    if not rows or rows[0].get("trace") != TRACE_FORMAT:
        raise ConfigError(f"{name} is no trace of format {TRACE_FORMAT}; give one that 'mlfabric record' wrote")
    seen = _Seen()
    for number, row in enumerate(rows[1:], 2):
        try:
            _take_in(row, seen)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}, line {number} is no line of a trace: {error!r}") from error
    try:
        return _trace(rows[0], seen)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name}: what it says fits no cluster: {error!r}") from error


def _rows(text: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines; one that was cut off at the end is left out."""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if not line.endswith("\n") and number > 1:
                return
            raise ConfigError(f"{name}, line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{name}, line {number}: {line.strip()!r}; allowed: an object, as in a recording")
        yield row


def _take_in(row: Mapping[str, Any], seen: _Seen) -> None:
    at_s = float(row["at_s"])
    if "rate" in row:
        host, direction, bps = row["rate"]
        seen.rates.setdefault((str(host), Direction(direction)), []).append((at_s, float(bps)))
    elif "compute" in row:
        worker, times_s = row["compute"]
        seen.compute_s.setdefault(str(worker), []).extend(float(time_s) for time_s in times_s)
    elif "progress" in row:
        committed, dropped = row["progress"]
        seen.progress.append(Progress(at_s=at_s, committed=int(committed), dropped=int(dropped)))
    else:
        raise ValueError(f"it has {', '.join(row)}; allowed: at_s and one of rate, compute, progress")


def _trace(head: Mapping[str, Any], seen: _Seen) -> Trace:
    return Trace(
        model=str(head["model"]),
        method=Method(head["method"]),
        model_bytes=int(head["model_bytes"]),
        tau_max=None if head["tau_max"] is None else int(head["tau_max"]),
        server=str(head["server"]),
        workers={str(worker): str(host) for worker, host in dict(head["workers"]).items()},
        lines={key: _line(points) for key, points in seen.rates.items()},
        compute_s={worker: tuple(times_s) for worker, times_s in seen.compute_s.items()},
        progress=tuple(seen.progress),
    )


def _line(points: Iterable[tuple[float, float]]) -> RateLine:
    """Return rates over time; of several at one instant the last counts, and what changes nothing is left out."""
    by_time = dict(sorted(points, key=lambda point: point[0]))
    kept: list[tuple[float, float]] = []
    for at_s, bps in by_time.items():
        if not kept or kept[-1][1] != bps:
            kept.append((at_s, bps))
    return RateLine(times_s=tuple(at_s for at_s, _ in kept), bps=tuple(bps for _, bps in kept))
