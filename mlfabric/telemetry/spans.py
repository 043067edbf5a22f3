"""Spans for OpenTelemetry: what each process did for an update, a get or a round, and when. Shell-level.

An update, a get and a round have one id everywhere. The id of its trace is made of that, and so is the id of the
trace's first span. So every process can say its own part by itself, and nothing is sent along with transfers.

What is seen are the events and actions of a state machine; each role says in a function of its own which of them begin
and end a span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from mlfabric import clock
from mlfabric.protocol import GetId, ReduceId, RoundId, SumId, UpdateId

__all__ = ["FIRST", "Began", "Consists", "Ended", "Moment", "Moments", "Passed", "Span", "Subject", "Tracer", "Values"]

Subject = UpdateId | GetId | SumId | ReduceId | RoundId
"""What a span can be about."""
FIRST = frozenset({"push", "get", "round"})
"""Names of the spans that a trace begins with; all others lie below."""
MOST_OPEN = 4096
"""So many spans that have begun are remembered: what never ends, as its other end is gone, is forgotten then."""

Values = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Began:
    """A span begins; one that has begun goes on."""

    name: str
    subject: Subject
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """A span ends, if it has begun; ``cause`` says why in vain, and ``within`` of which subject's trace it is."""

    name: str
    subject: Subject
    cause: str = ""
    within: Subject | None = None
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passed:
    """A whole span is over; its times are of this host's monotonic clock."""

    name: str
    subject: Subject
    started_ns: int
    ended_ns: int
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consists:
    """A sum is one of these updates: what is done with it is done for each of them."""

    sum: SumId
    updates: tuple[UpdateId, ...]


Moment = Began | Ended | Passed | Consists
Moments = Callable[[object], Iterable[Moment]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished span.

    Args:
        trace_id, span_id: of 128 and 64 bits, not 0.
        parent_id: of the trace's first span; None of that itself.
        subject: what it is about, in words.
        cause: why it ended in vain; "" if it did not.
        started_ns, ended_ns: wall time.
    """

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    subject: str
    values: Values
    cause: str
    started_ns: int
    ended_ns: int


class Tracer:
    """Makes spans of what it is shown.

    Args:
        moments: which events and actions begin and end spans.
        process: name of this one among all.
        say: takes finished spans.
        close: sends what is left of them.
    """

    def __init__(
        self, moments: Moments, process: str, say: Callable[[Span], None], close: Callable[[], None] = lambda: None
    ) -> None:
        self._moments, self._process, self._say, self.close = moments, process, say, close
        self._open: dict[tuple[str, type, Subject], tuple[int, Values]] = {}
        self._sums: dict[SumId, tuple[UpdateId, ...]] = {}

    def see(self, seen: object) -> None:
        """Take in an event or an action."""
        for moment in self._moments(seen):
            self._take_in(moment)

    def _take_in(self, moment: Moment) -> None:
        match moment:
            case Began(name=name, subject=subject):
                self._open.setdefault((name, type(subject), subject), (clock.wall_ns(), moment.values))
                _keep_within(self._open)
            case Ended(name=name, subject=subject):
                began = self._open.pop((name, type(subject), subject), None)
                if began is not None:
                    times, values = (began[0], clock.wall_ns()), {**began[1], **moment.values}
                    self._made(moment.within or subject, name, subject, times, values, moment.cause)
            case Passed(subject=subject):
                offset_ns = clock.wall_ns() - clock.monotonic_ns()
                times = moment.started_ns + offset_ns, moment.ended_ns + offset_ns
                self._made(subject, moment.name, subject, times, moment.values, "")
            case Consists(sum=sum_id):
                self._sums[sum_id] = moment.updates
                _keep_within(self._sums)

    def _made(
        self, within: Subject, name: str, subject: Subject, times: tuple[int, int], values: Values, cause: str
    ) -> None:
        """Say a span; of a sum in the trace of each update in it."""
        for whose in self._sums.get(within, (within,)) if isinstance(within, SumId) else (within,):
            first_id = _number(8, whose)
            is_first = name in FIRST
            self._say(
                Span(
                    trace_id=_number(16, whose),
                    span_id=first_id if is_first else _number(8, whose, name, self._process, *subject, *times),
                    parent_id=None if is_first else first_id,
                    name=name,
                    subject=str(subject),
                    values=values,
                    cause=cause,
                    started_ns=times[0],
                    ended_ns=max(times),
                )
            )


def _keep_within(known: dict[Any, Any]) -> None:
    if len(known) > MOST_OPEN:
        del known[next(iter(known))]


def _number(size_bytes: int, subject: Subject, *more: object) -> int:
    """Return a number, not 0, that is the same wherever it is made of the same."""
    text = "\0".join(map(str, (type(subject).__name__, *subject, *more)))
    return int.from_bytes(blake2b(text.encode(), digest_size=size_bytes).digest()) or 1
