"""A line of the log for every update, or sum of updates, that has come to where it is added to others.

It is logged at DEBUG by ``mlfabric.forwarding``, by an aggregator, or in AllReduce by the worker that adds. The same is
in the log record's attribute ``forwarded`` as a value, so that whoever counts need not read words.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["FORWARDING_LOG", "Forwarding", "note_forwarding"]

FORWARDING_LOG = "mlfabric.forwarding"
log = logging.getLogger(FORWARDING_LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """A transfer of an update, a sum, or a range of one.

    Args:
        from_host, to_host: where it came from, and where it is added to others; the same if it crossed no link.
        n_bytes: payload bytes.
        began_ns, ended_ns: of the first and the last byte here; monotonic clock of this host.
    """

    from_host: str
    to_host: str
    n_bytes: int
    began_ns: int
    ended_ns: int


def note_forwarding(from_host: str, to_host: str, n_bytes: int, began_ns: int, ended_ns: int) -> None:
    """Log a transfer that has come completely; see :class:`Forwarding`. Costs nothing while nobody listens."""
    if log.isEnabledFor(logging.DEBUG):
        found = Forwarding(from_host=from_host, to_host=to_host, n_bytes=n_bytes, began_ns=began_ns, ended_ns=ended_ns)
        log.debug(
            "%d bytes of updates from %s to be summed on %s, in %.1f ms",
            n_bytes,
            from_host,
            to_host,
            (ended_ns - began_ns) / 1e6,
            extra={"forwarded": found},
        )
