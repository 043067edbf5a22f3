"""Log lines for programs: one JSON object each, with the ids of what a line is about.

An update, get or round has one id everywhere, so all lines of its way, from push to commit, are found by it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

__all__ = ["JSON_LINE", "JsonLines", "about", "log_as_json"]

JSON_LINE = b'{"time": "'
"""What such a line begins with."""

_ABOUT = ("update", "updates", "transfer", "get", "reduce", "round", "model")
"""What a line may be about."""


class JsonLines(logging.Formatter):
    """Makes JSON of log records: time (ISO 8601, UTC), level, logger, message, and what ``about`` gave."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: record.__dict__[name] for name in _ABOUT if name in record.__dict__},
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def log_as_json(level: str) -> None:
    """Write the log lines of this package, of this level or above, to the error stream as JSON, and nowhere else."""
    package = logging.getLogger("mlfabric")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    package.handlers, package.propagate = [lines], False
    package.setLevel(level.upper())


def about(subject: object) -> dict[str, object]:
    """Return the ids of what an event or an instruction is about, for a log call's ``extra``."""
    found = {name: getattr(subject, name, None) for name in _ABOUT}
    members = getattr(subject, "members", ())
    updates = [str(member.update) for member in members if hasattr(member, "update")]
    return {
        **{name: one if isinstance(one, str) else str(one) for name, one in found.items() if one is not None},
        **({"updates": updates} if updates else {}),
    }
