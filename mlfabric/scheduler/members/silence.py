"""Which members have fallen silent, judged by their signs of life. Pure.

A *pulse* comes ten times a second from beside each member's process (``mlfabric/pulse/beat.py``). It says that the host
lives, and whether the process is stopped or has ended. So there are two questions, answered apart:

- **A process that hangs.** Its pulses say for how long it has been stopped. That is no guess: a process that computes,
  however slowly, or waits, is not stopped.
- **A host that is gone.** Nothing comes any more. How long that may last is learnt from arrivals, as accrual detectors
  do (Hayashibara et al. 2004), but by the longest gap seen lately and not by a normal distribution, for gaps have heavy
  tails: a member is silent once it has been for ``TIMES`` the longest gap of its own, or of what is usual among all,
  whichever is longer, and for ``LEAST_NS`` at least. A gap counts half after ``HALF_LIFE_NS``.

Time is that during which the scheduler itself ran: ``judge`` is called all the time, what has passed between two calls
counts as ``MOST_STEP_NS`` at most, and what arrived meanwhile is taken in first. So a scheduler that was held up finds
nobody silent for that. When more than half of all hosts fall silent at once, or others on the same host are heard, the
cause may be another one (a switch; the process that sends pulses): then it takes ``DOUBTFUL_TIMES`` as long.

Who was never heard, or not ``LEAST_HEARD`` times, is not judged: where no datagrams get through, only streams count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import NamedTuple

__all__ = ["Found", "LostBy", "Silences"]

STOPPED_NS = 200_000_000
LEAST_NS = 500_000_000
LEAST_HEARD = 2
TIMES = 2.5
DOUBTFUL_TIMES = 4
HALF_LIFE_NS = 60_000_000_000
MOST_LEARNT_NS = 1_000_000_000
"""From a longer gap nothing is learnt: the host was gone, and that is no reason to wait longer when it goes again."""
MOST_STEP_NS = 100_000_000
HELD_UP_NS = 1_000_000_000
SETTLES_NS = 300_000_000
"""After it was held up for longer than ``HELD_UP_NS`` itself, it waits so long for news of who was stopped: so may have
been everybody."""


class LostBy(Enum):
    """What became of a member that does not answer any more."""

    STOPPED = "its process is stopped"
    ENDED = "its process has ended"
    SILENT = "nothing is heard of its host any more"


class Found(NamedTuple):
    """A member that does not answer any more."""

    member: str
    cause: LostBy


@dataclass(slots=True)
class _Member:
    """What is known of one; instants in the time during which the scheduler ran.

    Args:
        worst_ns: the longest gap, as it counted at ``worst_at_ns``.
        is_found: it was found silent, and has not come back since.
    """

    host: str
    last_ns: int
    heard: int = 0
    worst_ns: float = 0.0
    worst_at_ns: int = 0
    stopped_ns: int = 0
    is_found: bool = False

    def worst_now_ns(self, now_ns: int) -> float:
        """Return what the longest gap counts now."""
        return float(self.worst_ns * 0.5 ** ((now_ns - self.worst_at_ns) / HALF_LIFE_NS))

    def learn(self, gap_ns: int, now_ns: int) -> None:
        """Take in how long nothing had come."""
        if MOST_LEARNT_NS >= gap_ns > self.worst_now_ns(now_ns):
            self.worst_ns, self.worst_at_ns = gap_ns, now_ns


class Silences:
    """Whom pulses come from, and when the last one came."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._audible: OrderedDict[str, _Member] = OrderedDict()
        """Those that are judged by how long nothing has come, the longest silent first."""
        self._suspects: dict[str, LostBy] = {}
        self._ran_ns = self._settled_ns = 0
        self._looked_ns: int | None = None

    def __len__(self) -> int:
        return len(self._members)

    def watch(self, member: str, host: str, now_ns: int) -> None:
        """Begin with a member that has joined; of one that comes back, what was learnt is kept."""
        self._run(now_ns)
        known = self._members.get(member)
        self.forget(member)
        begun = self._members[member] = _Member(host, self._ran_ns)
        if known is not None and known.host == host:
            begun.worst_ns, begun.worst_at_ns = known.worst_ns, known.worst_at_ns

    def forget(self, member: str) -> None:
        """Expect nothing from a member any more."""
        self._members.pop(member, None)
        self._audible.pop(member, None)
        self._suspects.pop(member, None)

    def heard(self, member: str, now_ns: int, stopped_ns: int = 0, *, ended: bool = False) -> None:
        """Take in a pulse.

        Args:
            member: one that is watched.
            now_ns: when it was read.
            stopped_ns: for how long the member's process has been seen stopped; 0 if it runs.
            ended: its process is no more.
        """
        self._run(now_ns)
        known = self._members[member]
        if known.heard:
            known.learn(self._ran_ns - known.last_ns, self._ran_ns)
        known.last_ns, known.stopped_ns = self._ran_ns, stopped_ns
        known.heard += 1
        if known.is_found:
            return
        if known.heard >= LEAST_HEARD:
            self._audible[member] = known
            self._audible.move_to_end(member)
        if ended:
            self._suspects[member] = LostBy.ENDED
        elif stopped_ns >= STOPPED_NS:
            self._suspects[member] = LostBy.STOPPED
        else:
            self._suspects.pop(member, None)

    def is_stopped(self, member: str, now_ns: int) -> bool:
        """Tell whether a member's process is stopped, by what was heard a moment ago."""
        self._run(now_ns)
        known = self._members[member]
        return known.stopped_ns > 0 and self._ran_ns - known.last_ns < LEAST_NS

    def is_found(self, member: str) -> bool:
        """Tell whether a member was found silent and has not come back."""
        return self._members[member].is_found

    def judge(self, now_ns: int) -> list[Found]:
        """Return the members that do not answer any more, each once, until they are watched again.

        Everything that has arrived must have been taken in.
        """
        self._run(now_ns)
        is_settled = self._ran_ns >= self._settled_ns
        found = [Found(m, cause) for m, cause in self._suspects.items() if is_settled or cause is LostBy.ENDED]
        found.extend(self._silent())
        for member, _ in found:
            self._members[member].is_found = True
            self._audible.pop(member, None)
            self._suspects.pop(member, None)
        return found

    def _run(self, now_ns: int) -> None:
        """Let time pass, but not that during which nobody looked."""
        if self._looked_ns is not None:
            passed_ns = max(0, now_ns - self._looked_ns)
            self._ran_ns += min(passed_ns, MOST_STEP_NS)
            if passed_ns > HELD_UP_NS:
                self._settled_ns = self._ran_ns + SETTLES_NS
        self._looked_ns = max(now_ns, self._looked_ns or now_ns)

    def _silent(self) -> Iterator[Found]:
        quiet: dict[str, int] = {}
        for member, known in self._audible.items():
            silent_ns = self._ran_ns - known.last_ns
            if silent_ns < LEAST_NS:
                break
            if member not in self._suspects:
                quiet[member] = silent_ns
        if not quiet:
            return
        usual_ns = median(known.worst_now_ns(self._ran_ns) for known in self._audible.values())
        hosts = {known.host for known in self._audible.values()}
        loud = {known.host for member, known in self._audible.items() if member not in quiet}
        gone = len(hosts - loud)
        are_many = gone > 1 and 2 * gone > len(hosts)
        for member, silent_ns in quiet.items():
            known = self._members[member]
            allowed_ns = max(LEAST_NS, TIMES * max(known.worst_now_ns(self._ran_ns), usual_ns))
            if are_many or known.host in loud:
                allowed_ns *= DOUBTFUL_TIMES
            if silent_ns >= allowed_ns:
                yield Found(member, LostBy.SILENT)
