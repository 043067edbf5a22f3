"""What happened, as JSON lines: each worker writes one file, the demonstration reads them while they grow.

Times are nanoseconds of the machine's monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Accuracy", "Applied", "Event", "EventLog", "EventTail", "Moved", "NotApplied", "log_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A worker sent an update to a server (``is_push``), or got the model from it."""

    worker: str
    server: str
    is_push: bool
    size_bytes: int
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A worker's update was applied; it made ``version``, with delay ``tau``."""

    worker: str
    version: int
    tau: int
    pushed_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplied:
    """A worker's update was dropped or lost, and why."""

    worker: str
    is_lost: bool
    cause: str
    detail: str
    pushed_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A worker evaluated the model that it had got."""

    worker: str
    version: int
    accuracy: float
    at_ns: int


Event = Moved | Applied | NotApplied | Accuracy
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in (Moved, Applied, NotApplied, Accuracy)}


def log_path(folder: Path, rank: int) -> Path:
    """Return where a worker's log is."""
    return folder / f"worker-{rank}.jsonl"


class EventLog:
    """Writes a worker's events; from any thread, a line each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Append an event."""
        line = json.dumps({"event": type(event).__name__, **asdict(event)})
        with self._lock:
            self._file.write(line + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class EventTail:
    """Reads events from a log that may still grow, or may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Event]:
        """Return the events that were completed since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [_event(line) for line in whole.splitlines()]


def _event(line: bytes) -> Event:
    values = json.loads(line)
    return _KINDS[values.pop("event")](**values)
