"""What happened in the last minutes, entry by entry, for pages to show: written by one thread, read by others.

It may be recorded, too: then all entries are in a file of the run's folder, one JSON line each.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from mlfabric import clock
from mlfabric.errors import UsageError

__all__ = ["HISTORY_GLOB", "STATUS_FILE", "Entry", "History"]

Entry = Mapping[str, Any]
"""What JSON can carry; ``kind`` says which of the others there are, times are in ms since 1970."""
MOST_ENTRIES = 20_000
HISTORY_GLOB = "history-*.jsonl"
STATUS_FILE = "status.json"
log = logging.getLogger("mlfabric.telemetry")


class History:
    """The last entries; each has a number, by which a reader asks for what is new to it.

    Args:
        keep_s: for how long an entry is kept, > 0; there are never more than 20,000.
        folder: where everything is recorded, made if need be; None for nowhere.

    Raises:
        UsageError: nothing can be written there.
    """

    def __init__(self, keep_s: float = 600.0, folder: Path | None = None) -> None:
        self._keep_ns = round(keep_s * 1e9)
        self._entries: deque[tuple[int, Entry]] = deque(maxlen=MOST_ENTRIES)
        self._next = 0
        self._lock = Lock()
        self._folder = folder
        self._file: TextIO | None = None if folder is None else _begun(folder)

    def add(self, entry: Entry) -> None:
        """Keep an entry; it must not change any more."""
        now_ns = clock.monotonic_ns()
        with self._lock:
            self._entries.append((now_ns, entry))
            self._next += 1
            while self._entries[0][0] < now_ns - self._keep_ns:
                self._entries.popleft()
        if self._file is not None:
            self._write(json.dumps(entry, separators=(",", ":")) + "\n")

    def since(self, number: int) -> tuple[int, list[Entry]]:
        """Return the number of the next entry, and all that are kept from ``number`` on, oldest first."""
        with self._lock:
            fresh = min(len(self._entries), max(0, self._next - number))
            return self._next, [self._entries[-i][1] for i in range(fresh, 0, -1)]

    @property
    def is_recorded(self) -> bool:
        """Whether everything is written to a folder."""
        return self._file is not None

    def record(self, status: Mapping[str, Any]) -> None:
        """Write all entries to disk, and the status beside them, in place of the last one."""
        if self._folder is None or self._file is None:
            return
        try:
            self._file.flush()
            fresh = self._folder / f"{STATUS_FILE}.new"
            fresh.write_text(json.dumps(status), encoding="utf-8")
            fresh.replace(self._folder / STATUS_FILE)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, text: str) -> None:
        if self._file is not None:
            try:
                self._file.write(text)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Record no more: training is worth more than its record."""
        log.warning("%s: %s; nothing more is recorded", self._folder, error.strerror)
        self.close()


def _begun(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / HISTORY_GLOB.replace("*", str(clock.wall_ns()))).open("x", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--history {folder}: {error.strerror}; give a folder that this process may write") from error
