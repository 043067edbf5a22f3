"""A recorded run as one HTML file: the status page, with what it shows inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlfabric.errors import UsageError
from mlfabric.telemetry.history import STATUS_FILE, Entry

__all__ = ["MOST_ENTRIES", "report_of"]

MOST_ENTRIES = 50_000
"""Of more entries the last ones are shown, so that a browser can open the file."""
_STYLE = '<link rel="stylesheet" href="page.css">'
_SCRIPT = '<script type="module" src="page.js"></script>'
_IMPORT = 'import { Timeline, columns, line, matrix } from "./charts.js";'


def report_of(folder: Path) -> tuple[str, int]:
    """Return the report of a recorded run, and how many entries it leaves out, the first ones.

    Args:
        folder: as given to ``--history``; further entries may be in other files of it that end with ``.jsonl``.

    Raises:
        UsageError: there is no record in it, or it cannot be read.
    """
    try:
        found = [entry for path in sorted(folder.glob("*.jsonl")) for entry in _entries(path)]
        status = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        why = f"no record of a run there; make one with: mlfabric run --history {folder}"
        raise UsageError(f"{folder}: {why}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: the record cannot be read: {error}") from error
    found.sort(key=_time)
    shown = found[-MOST_ENTRIES:]
    now = max(map(_time, shown), default=0)
    return _page({"entries": shown, "state": {"now": now, "status": status, "open": []}}), len(found) - len(shown)


def _entries(path: Path) -> Iterator[Entry]:
    """Give a file's entries; the last line may not be whole, if the scheduler died."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    yield from map(json.loads, lines)


def _time(entry: Entry) -> float:
    return float(entry.get("at") or entry.get("ended") or 0)


def _page(recorded: dict[str, Any]) -> str:
    static = files(__package__) / "static"
    page, style, charts, script = (
        (static / name).read_text(encoding="utf-8") for name in ("index.html", "page.css", "charts.js", "page.js")
    )
    for part in (_STYLE, _SCRIPT):
        assert part in page, f"the page has {part}"
    assert _IMPORT in script, f"the script has {_IMPORT}"
    data = json.dumps(recorded, separators=(",", ":")).replace("</", "<\\/")
    whole = charts.replace("export ", "") + script.replace(_IMPORT, "")
    return page.replace(_STYLE, f"<style>\n{style}</style>").replace(
        _SCRIPT,
        f'<script type="application/json" id="recorded">{data}</script>\n<script type="module">\n{whole}</script>',
    )
