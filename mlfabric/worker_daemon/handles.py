"""What a script holds of a push, and how many ended how."""

from __future__ import annotations

from mlfabric.protocol import Committed, Dropped, Outcome
from mlfabric.worker_daemon.thread import OutcomeFuture

__all__ = ["PushHandle", "Tally"]


class PushHandle:
    """A push on its way; :meth:`result` says what became of it."""

    def __init__(self, future: OutcomeFuture) -> None:
        self._future = future

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Wait for the outcome: ``Committed(version, tau)``, ``Dropped(cause, detail)`` or ``Lost(detail)``.

        Raises:
            TimeoutError: it was not known in time.
        """
        return self._future.result(timeout_s)


class Tally:
    """How many of a worker's updates were committed, dropped or lost, and with which delays."""

    def __init__(self) -> None:
        self.committed = self.dropped = self.lost = 0
        self.delay_sum = self.delay_max = 0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        match outcome:
            case Committed():
                self.committed += 1
                self.delay_sum += outcome.tau
                self.delay_max = max(self.delay_max, outcome.tau)
            case Dropped():
                self.dropped += 1
            case _:
                self.lost += 1
