"""The commit log on disk: one line of JSON for each group that was applied together, in order (design, section 3).

``{"epoch": 1, "version": 8, "updates": [["worker-0", 1763, 3], ["worker-1", 1764, 5]], "tau": [2, 3], "lr": [0.1, 0.1],
"step_norm": 0.02}`` says which updates led to which version under which server epoch: each with its delay and its
learning rate, and the l2 norm of the whole change. ``version`` is the last that the group made; its updates made one
each, or all of them that one (synchronous training). A lone update is a group of one. Where workers say it,
``"samples": [[[0, 32]], [[32, 64]]]`` are the ranges of samples that each update was computed from. The log is written
as it happens, not fsynced: a checkpoint is what survives a crash of the host, the log of a process that died is whole
up to its last line.

What cannot be written, as the disk is full, is kept for a while and written when there is room; no line is ever torn.
Training goes on, since a commit that was made cannot be taken back. If too much is waiting, the oldest is given up, and
``{"missing": 12}`` stands for so many lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from mlfabric import clock
from mlfabric.errors import FabricError, UsageError
from mlfabric.model.samples import Samples, samples_of
from mlfabric.protocol import Commit, ModelVersion

__all__ = ["CommitLog", "lost_after", "path_of"]

log = logging.getLogger("mlfabric.server")
MOST_WAITING = 10_000
RETRY_S = 1.0
_END_BYTES = 1 << 18


def path_of(directory: Path, model: str) -> Path:
    """Return where the log of a model is."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in model)
    return directory / f"{name}.commits.jsonl"


def lost_after(directory: Path, model: str, kept: ModelVersion) -> tuple[Samples, int]:
    """Return what of a log a server loses that goes on from version ``kept``.

    Returns:
        The samples of all updates after that version, and the number of the last version among them, ``kept``'s own if
        there is none. A line that a crash has cut off counts as not written; no log is as good as an empty one.

    Raises:
        FabricError: the log cannot be read; says why.
    """
    try:
        lost = [entry for entry in _end_of(path_of(directory, model), kept) if entry[0] > kept]
    except FileNotFoundError:
        lost = []
    except OSError as error:
        raise FabricError(f"the commit log of {model} cannot be read: {error}") from error
    ranges = [one for _, samples in lost for one in samples]
    return samples_of(ranges, max(1, len(ranges))), lost[-1][0].number if lost else kept.number


def _is_cut_off(path: Path) -> bool:
    """Tell whether a log ends within a line, as that of a process may which was killed."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _end_of(path: Path, version: ModelVersion) -> list[tuple[ModelVersion, Samples]]:
    """Return the entries of a log from some one on that is not after this version: all that are, and a few more."""
    size_bytes, span_bytes = path.stat().st_size, _END_BYTES
    with path.open("rb") as file:
        while True:
            start = max(0, size_bytes - span_bytes)
            file.seek(start)
            lines = file.read(size_bytes - start).split(b"\n")
            entries = [entry for line in lines[1 if start else 0 :] if (entry := _entry(line)) is not None]
            if not start or (entries and entries[0][0] <= version):
                return entries
            span_bytes *= 4


def _entry(line: bytes) -> tuple[ModelVersion, Samples] | None:
    """Return the version of a line of a log and all samples in it; None if the line is damaged."""
    try:
        entry = json.loads(line)
        ranges = [(start, stop) for samples in entry.get("samples", ()) for start, stop in samples]
        return ModelVersion(int(entry["epoch"]), int(entry["version"])), samples_of(ranges, max(1, len(ranges)))
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        return None


class _File:
    """One model's log.

    Args:
        path: where it is appended to.
        model: whose it is.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        self._descriptor: int | None = None
        self._mending = b""
        self._waiting: deque[str] = deque()
        self._missing = 0
        self._failed_s: float | None = None

    def append(self, line: str) -> None:
        """Write a line, or keep it until it can be written."""
        self._waiting.append(line)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._missing += 1
        if self._failed_s is None or clock.monotonic_s() >= self._failed_s + RETRY_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits, all of it or nothing."""
        if not self._waiting:
            return
        gap = [json.dumps({"missing": self._missing}) + "\n"] if self._missing else []
        try:
            self._write("".join([*gap, *self._waiting]).encode())
        except OSError as error:
            if self._failed_s is None:
                log.error("the commit log of %s cannot be written, and is kept in memory: %s", self._model, error)
            self._failed_s = clock.monotonic_s()
            return
        if self._failed_s is not None:
            log.warning("the commit log of %s is written again; %s lines of it are missing", self._model, self._missing)
        self._waiting.clear()
        self._missing, self._failed_s = 0, None

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._mending = b"\n" if _is_cut_off(self._path) else b""
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        before_bytes = os.fstat(self._descriptor).st_size
        whole = self._mending + data
        try:
            if os.write(self._descriptor, whole) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before_bytes)
            raise
        self._mending = b""

    def close(self) -> None:
        """Write what can be written, and close the file."""
        self.flush()
        if self._waiting:
            log.error("%s lines of the commit log of %s are lost", len(self._waiting) + self._missing, self._model)
        if self._descriptor is not None:
            os.close(self._descriptor)


class CommitLog:
    """The logs of all models of one server.

    Args:
        directory: where ``<model>.commits.jsonl`` is appended to; None keeps no log.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}

    def append(self, model: str, commits: Sequence[Commit]) -> None:
        """Write one group's commits, of which there is at least one; what cannot be written now is written later."""
        if self._directory is None:
            return
        entry: dict[str, object] = {
            "epoch": commits[-1].version.epoch,
            "version": commits[-1].version.number,
            "updates": [list(commit.update) for commit in commits],
            "tau": [commit.tau for commit in commits],
            "lr": [commit.lr for commit in commits],
            "step_norm": commits[-1].step_norm,
        }
        if any(commit.samples for commit in commits):
            entry["samples"] = [commit.samples for commit in commits]
        if model not in self._files:
            self._files[model] = _File(path_of(self._directory, model), model)
        self._files[model].append(json.dumps(entry) + "\n")

    def forget(self, model: str) -> None:
        """Close the log of a model that has ended."""
        file = self._files.pop(model, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
        self._files.clear()
