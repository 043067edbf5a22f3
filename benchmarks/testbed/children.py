"""A process in a host, seen from outside: what comes of it, how it ended, what it printed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from benchmarks.testbed.hosts import Host
from benchmarks.testbed.orders import Raised, Returned
from benchmarks.testbed.zygote import STATUS

__all__ = ["GRACE_S", "Child", "ChildError", "Ends"]

GRACE_S = 2.0
TAIL_LINES = 20
TAIL_BYTES = 16 * 1024


class ChildError(RuntimeError):
    """A child failed: says how, with its traceback and its last lines."""


class Child:
    """A process in a host, made by :class:`Launcher`.

    Attributes:
        name: unique at its launcher.
        host: where it runs.
        pid: its process id.
        output: the file with what it has printed.
        messages: a connection to its function, which has the other end (:func:`to_parent`).
    """

    def __init__(
        self, *, name: str, host: Host, pid: int, output: Path, ends: Ends, kill: Callable[[int], None]
    ) -> None:
        self.name = name
        self.host = host
        self.pid = pid
        self.output = output
        self.messages = ends.messages
        self._ends = ends
        self._kill = kill
        self._received: Returned | Raised | None = None
        self._nothing_comes = False
        self._code: int | None = None

    def join(self, timeout_s: float | None = None) -> Any:
        """Wait for the end.

        Args:
            timeout_s: how long at most; None waits for ever.

        Returns:
            What its function returned; 0 for a command.

        Raises:
            ChildError: it failed, was stopped or was killed.
            TimeoutError: it still runs.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._receive(until_s) or not self._end(until_s):
            raise TimeoutError(f"{self.name} on {self.host.name} still runs after {timeout_s} s{self._tail()}")
        match self._received:
            case Returned(value=value):
                return value
            case Raised(summary=summary, traceback=trace):
                raise ChildError(f"{self.name} on {self.host.name} raised {summary}\n{trace}{self._tail(trace)}")
        if self._code != 0:
            raise ChildError(f"{self.name} on {self.host.name} {_ending(self._code)}{self._tail()}")
        return 0

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self._end(0.0)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._kill(number)

    def close(self) -> None:
        """Give back what its pipes take, once it has ended; nobody may wait for it any more."""
        self._ends.close()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end (SIGTERM); kill it if it runs on for ``grace_s`` seconds."""
        self.ask_to_end()
        self.ended_or_killed(time.monotonic() + grace_s)

    def ask_to_end(self) -> None:
        """Send SIGTERM, which a function sees as SystemExit."""
        self._kill(signal.SIGTERM)

    def ended_or_killed(self, until_s: float) -> None:
        """Wait for the end until a time of the monotonic clock; then kill it."""
        if not self._end(until_s):
            self._kill(signal.SIGKILL)
            self._end(None)

    def _receive(self, until_s: float | None) -> bool:
        """Wait for what comes of it; whether that has come, or will not any more."""
        if self._received is None and not self._nothing_comes:
            if not _readable(self._ends.outcome, until_s):
                return False
            try:
                self._received = self._ends.outcome.recv()
            except (EOFError, OSError):
                self._nothing_comes = True
        return True

    def _end(self, until_s: float | None) -> bool:
        """Wait for its end; whether it has come."""
        if self._code is None:
            if not _readable(self._ends.status, until_s):
                return False
            try:
                (self._code,) = STATUS.unpack(self._ends.status.recv_bytes())
            except (EOFError, OSError):
                self._code = -signal.SIGKILL  # as the kernel does to children of a zygote that has ended
        return True

    def _tail(self, known: str = "") -> str:
        """Return the last lines that it has printed, but ``known`` ones, as the end of an error's text."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - TAIL_BYTES))
                printed = file.read().decode(errors="replace").rstrip().removesuffix(known)
        except OSError as error:
            return f"\nwhat it printed cannot be read: {error}"
        lines = printed.splitlines()[-TAIL_LINES:]
        return "\n".join(("", f"its last lines ({self.output}):", *(f"  | {line}" for line in lines))) if lines else ""


class Ends:
    """The launcher's ends of a child's pipes, and until it has begun the child's.

    Attributes:
        outcome: takes the function to run, brings what comes of it.
        messages: for whatever the two have to tell each other.
        status: brings how it ended.
    """

    def __init__(self) -> None:
        self.outcome, outcome = Pipe()
        self.messages, messages = Pipe()
        self.status, status = Pipe(duplex=False)
        self.of_child: tuple[Connection, Connection, Connection] = (outcome, messages, status)

    def close_childs(self) -> None:
        """Close the child's ends, once it has them."""
        for end in self.of_child:
            end.close()

    def close(self) -> None:
        """Close the launcher's ends."""
        for end in (self.outcome, self.messages, self.status):
            end.close()


def _readable(end: Connection, until_s: float | None) -> bool:
    return bool(wait([end], None if until_s is None else max(0.0, until_s - time.monotonic())))


def _ending(code: int | None) -> str:
    assert code is not None, "it has ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
