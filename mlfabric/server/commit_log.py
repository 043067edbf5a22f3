"""The commit log on disk: one line of JSON for each group that was applied together, in order (design, section 3).

``{"epoch": 1, "version": 8, "updates": [["worker-0", 1763, 3], ["worker-1", 1764, 5]], "tau": [2, 3], "lr": [0.1, 0.1],
"step_norm": 0.02}`` says which updates led to which version under which server epoch: each with its delay and its
learning rate, and the l2 norm of the whole change. ``version`` is the last that the group made; its updates made one
each, or all of them that one (synchronous training). A lone update is a group of one. The log is written as it happens,
not fsynced: a checkpoint is what survives a crash of the host, the log of a process that died is whole up to its last
line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mlfabric.errors import FabricError
from mlfabric.protocol import Commit

__all__ = ["CommitLog"]


class CommitLog:
    """The logs of all models of one server.

    Args:
        directory: where ``<model>.commits.jsonl`` is appended to; None keeps no log.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: dict[str, TextIO] = {}

    def append(self, model: str, commits: Sequence[Commit]) -> None:
        """Write one group's commits, of which there is at least one.

        Raises:
            FabricError: the file cannot be written; says why.
        """
        if self._directory is None:
            return
        entry = {
            "epoch": commits[-1].version.epoch,
            "version": commits[-1].version.number,
            "updates": [list(commit.update) for commit in commits],
            "tau": [commit.tau for commit in commits],
            "lr": [commit.lr for commit in commits],
            "step_norm": commits[-1].step_norm,
        }
        try:
            self._file(self._directory, model).write(json.dumps(entry) + "\n")
        except OSError as error:
            raise FabricError(f"the commit log of {model} cannot be written: {error}") from error

    def _file(self, directory: Path, model: str) -> TextIO:
        if model not in self._files:
            directory.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in model)
            self._files[model] = (directory / f"{name}.commits.jsonl").open("a", buffering=1)
        return self._files[model]

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
        self._files.clear()
