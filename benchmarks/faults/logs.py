"""What workers and servers wrote down, as JSON lines that are read while they grow and after their writers were killed.

A worker writes a line before and after everything that it does, each by one system call: a line that was written is
there, however the process ends. Times are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from mlfabric.protocol import Committed, Dropped, ModelVersion, Outcome

__all__ = ["Entry", "Got", "Joined", "Line", "Pushed", "Tail", "Told", "What", "Writer", "commits"]


class What(Enum):
    """What a worker was told of an update."""

    COMMITTED = "committed"
    DROPPED = "dropped"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The worker has joined, under this delay bound."""

    tau_max: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """The worker got the model; ``flaw`` says what was wrong with it."""

    version: ModelVersion
    flaw: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The worker is about to push an update that it computed from a version."""

    update: int
    computed_from: ModelVersion
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The worker was told what became of its update; ``version`` and ``tau`` of a committed one."""

    update: int
    what: What
    version: ModelVersion
    tau: int
    detail: str
    at_ns: int

    @classmethod
    def of(cls, update: int, outcome: Outcome, at_ns: int) -> Told:
        """Return the line for an outcome."""
        if isinstance(outcome, Committed):
            return cls(
                update=update, what=What.COMMITTED, version=outcome.version, tau=outcome.tau, detail="", at_ns=at_ns
            )
        is_dropped = isinstance(outcome, Dropped)
        cause = f"{outcome.cause.name}: " if isinstance(outcome, Dropped) else ""
        return cls(
            update=update,
            what=What.DROPPED if is_dropped else What.LOST,
            version=ModelVersion(0, 0),
            tau=0,
            detail=f"{cause}{outcome.detail}",
            at_ns=at_ns,
        )


Line = Joined | Got | Pushed | Told
_KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Joined, Got, Pushed, Told)}
_VERSIONS = ("version", "computed_from")


class Writer:
    """Writes a worker's lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: Line) -> None:
        """Append a line."""
        values = asdict(line) | ({"what": line.what.value} if isinstance(line, Told) else {})
        self._file.write(json.dumps({"line": type(line).__name__, **values}) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class Tail:
    """Reads a worker's lines; what was read is kept.

    Attributes:
        lines: all that were read so far.
        commits_ns: when the worker was told of commits.
    """

    def __init__(self, path: Path) -> None:
        self.lines: list[Line] = []
        self.commits_ns: list[int] = []
        self._path = path
        self._at = 0

    def read(self) -> None:
        """Read the lines that were completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        new = [_line(text) for text in whole.splitlines()]
        self.lines += new
        self.commits_ns += [line.at_ns for line in new if isinstance(line, Told) and line.what is What.COMMITTED]


def _line(text: bytes) -> Line:
    values = json.loads(text)
    kind = _KINDS[values.pop("line")]
    for name in _VERSIONS:
        if name in values:
            values[name] = ModelVersion(*values[name])
    if "what" in values:
        values["what"] = What(values["what"])
    return kind(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a server's commit log: updates that were applied together, as worker, incarnation and counter."""

    version: ModelVersion
    updates: tuple[tuple[str, int, int], ...]
    is_one_version: bool

    @property
    def before(self) -> int:
        """The number of the version that the updates were applied to."""
        return self.version.number - (1 if self.is_one_version else len(self.updates))


def commits(path: Path, *, is_mean: bool) -> Iterator[Entry]:
    """Read a server's commit log; there may be none yet, and its last line may lack its end.

    Args:
        is_mean: whether each entry made one version, not one for each update.
    """
    if not path.exists():
        return
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for text in whole.splitlines():
        values = json.loads(text)
        yield Entry(
            version=ModelVersion(values["epoch"], values["version"]),
            updates=tuple((worker, incarnation, counter) for worker, incarnation, counter in values["updates"]),
            is_one_version=is_mean,
        )
