"""JSON files that commands write. Whether one can be is found out first: what goes into it may take hours."""

from __future__ import annotations

import json
from pathlib import Path

from mlfabric.errors import UsageError

__all__ = ["STDOUT", "check_writable", "write_json"]

STDOUT = Path("-")


def check_writable(path: Path | None) -> None:
    """Make sure that a file can be written, if one is given; what is in it stays, and none is left behind.

    Raises:
        UsageError: it cannot be; says why.
    """
    if path is None or path == STDOUT:
        return
    is_new = not path.exists()
    try:
        path.open("a", encoding="utf-8").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise _refusal(path, error) from error


def write_json(path: Path | None, value: object) -> None:
    """Write a value to a file if one is given, ``-`` being the standard output.

    Raises:
        UsageError: it cannot be written; says why.
    """
    text = json.dumps(value, indent=2)
    if path == STDOUT:
        print(text)
    elif path is not None:
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> UsageError:
    return UsageError(f"--json {path}: {error.strerror}; give a file that can be written")
