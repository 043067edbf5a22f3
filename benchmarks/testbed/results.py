"""Where finished runs are kept: one JSON file each, so that a broken-off table goes on where it was.

A file is written whole under another name and then renamed: what is there is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.testbed.spec import FORMAT, CellResult, CellSpec, result_from
from mlfabric.errors import UsageError

__all__ = ["Results"]


class Results:
    """A folder of finished runs.

    Args:
        folder: made if it is not there.

    Raises:
        UsageError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--results {folder}: {error.strerror}; give a folder that can be written") from error

    def find(self, spec: CellSpec) -> CellResult | None:
        """Return the result of a run that was asked to do exactly this; None if there is none.

        Raises:
            UsageError: its file is damaged.
        """
        values = self.read(spec.file_name)
        if values is None or values.get("format") != FORMAT:
            return None
        try:
            return result_from(values)
        except (KeyError, TypeError) as error:
            raise self._damaged(spec.file_name, error) from error

    def keep(self, result: CellResult) -> None:
        """Write a finished run."""
        self.write(result.spec.file_name, result.as_json())

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the values of a file; None if it is not there.

        Raises:
            UsageError: it holds no JSON object.
        """
        try:
            values = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(name, error) from error
        if not isinstance(values, dict):
            raise self._damaged(name, TypeError("no JSON object"))
        return values

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a file whole."""
        new = self.folder / f".{name}.{os.getpid()}"
        new.write_text(json.dumps(values) + "\n", encoding="utf-8")
        new.replace(self.folder / name)

    def _damaged(self, name: str, error: Exception) -> UsageError:
        return UsageError(f"{self.folder / name} is damaged ({error}); remove it, and the run is made again")
