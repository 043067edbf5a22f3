"""Which state of the project was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["git_revision"]

UNKNOWN = "unknown"


def git_revision() -> str:
    """Return the checkout's revision, with "+" behind it where files differ from it; "unknown" without git."""
    folder = Path(__file__).resolve().parent
    try:
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _git(folder, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
