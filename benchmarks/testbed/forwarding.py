"""Where updates were added up, and what the link into that place carried just then.

mlfabric logs each update that comes to where it is summed (``mlfabric.telemetry.forwarding_log``); here a process of a
run keeps that, and after the run the testbed's own weather says at which share of its full rate the receiver's link
was.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import Counter
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import Protocol, Self

import numpy as np

from benchmarks.testbed.runs import Forwarded, WorkerLog
from benchmarks.testbed.spec import ForwardedByRate
from mlfabric.telemetry import FORWARDING_LOG, Forwarding
from mlfabric.twin.settings import Direction

__all__ = ["ForwardingFile", "Links", "by_rate"]

_RECORD = struct.Struct("=qq")


class ForwardingFile(logging.Handler):
    """Keeps what came over a link to be summed in the process that listens, for the process that made this.

    A file without a name: the listener may be a fork that is killed, and nothing is left of it at the end.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - __exit__ closes it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        log = logging.getLogger(FORWARDING_LOG)
        log.removeHandler(self)
        log.setLevel(logging.NOTSET)
        self._file.close()
        self.close()

    def listen(self) -> None:
        """Keep what comes to this process from now on."""
        log = logging.getLogger(FORWARDING_LOG)
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write down what crossed a link; what stays on its host does not."""
        found: Forwarding = record.__dict__["forwarded"]
        if found.from_host != found.to_host:
            self._file.write(_RECORD.pack(found.began_ns, found.n_bytes))

    def read(self, to: str) -> Forwarded:
        """Return what came to the host of this name so far."""
        kept = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0)
        rows = np.frombuffer(kept, dtype=np.int64).reshape(-1, 2)
        return Forwarded(to=to, began_ns=rows[:, 0], n_bytes=rows[:, 1])


class Links(Protocol):
    """Knows what links carried: a run's ``Weather``."""

    def share_at(self, name: str, direction: Direction, time_ns: int) -> float:
        """Return the share of its full rate that a direction of a host's link had at a time."""


def by_rate(logs: Iterable[WorkerLog], weather: Links, *, began_ns: int, ended_ns: int) -> ForwardedByRate | None:
    """Return how much was sent to be summed, by the share of its full rate that the receiver's down-link then had.

    Args:
        logs: of all workers.
        weather: of the run.
        began_ns, ended_ns: what began outside does not count.

    Returns:
        None if the system adds up nothing on the way.
    """
    kept = [log.forwarded for log in logs if log.forwarded is not None]
    n_bytes: Counter[float] = Counter()
    messages: Counter[float] = Counter()
    for one in kept:
        for at_ns, size_bytes in zip(one.began_ns.tolist(), one.n_bytes.tolist(), strict=True):
            if began_ns <= at_ns <= ended_ns:
                share = weather.share_at(one.to, Direction.DOWN, at_ns)
                n_bytes[share] += size_bytes
                messages[share] += 1
    if not kept:
        return None
    shares = tuple(sorted(n_bytes))
    return ForwardedByRate(
        link_shares=shares,
        n_bytes=tuple(n_bytes[share] for share in shares),
        messages=tuple(messages[share] for share in shares),
    )
