"""Samples on the wire: ranges in order, as small numbers; and what is said of them.

Of each range: how far its start is behind the end of the one before (the first: behind 0), and its length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from mlfabric.protocol import (
    DrawAnswer,
    Instruction,
    MemberEvent,
    NoteDropped,
    SamplesDropped,
    SamplesGranted,
    SamplesReported,
    SamplesWanted,
)
from mlfabric.samples import LAST_POSITION, MOST_RANGES, MOST_RUNS, SampleCounts, Samples, samples_of
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire.values import enum_of, malformed, need

__all__ = [
    "FILL",
    "FILL_EVENT",
    "READ",
    "READ_EVENT",
    "fill_counts",
    "from_counts",
    "from_granted",
    "from_samples",
    "from_wanted",
    "to_granted",
    "to_samples",
    "to_wanted",
]


def to_samples(samples: Samples) -> list[int]:
    """Return the numbers that samples are sent as."""
    ends = chain((0,), (stop for _, stop in samples))
    return [number for (start, stop), end in zip(samples, ends, strict=False) for number in (start - end, stop - start)]


def from_samples(numbers: Sequence[int], field: str = "samples", most: int = MOST_RANGES) -> Samples:
    """Return the samples that were sent as these numbers.

    Raises:
        UsageError: they are not pairs, or not of good ranges; or more than ``most`` of these.
    """
    return samples_of(((start, stop) for start, stop, *_ in _ranges(numbers, 2, field, most)), most)


def _ranges(numbers: Sequence[int], width: int, field: str, most: int) -> list[tuple[int, ...]]:
    if len(numbers) % width or len(numbers) > most * width:
        raise malformed(field, f"{len(numbers)} numbers", f"{width} for each of at most {most} ranges")
    out: list[tuple[int, ...]] = []
    end = 0
    for at in range(0, len(numbers), width):
        start = end + numbers[at]
        end = start + numbers[at + 1]
        if not start < end <= LAST_POSITION:
            raise malformed(field, f"samples from {start} up to {end}", "ranges that are not empty, up to 2**62")
        out.append((start, end, *numbers[at + 2 : at + width]))
    return out


def fill_counts(message: session.SampleCounts, counts: SampleCounts) -> None:
    """Write an account into a message."""
    gaps = to_samples(tuple((start, stop) for start, stop, _ in counts.runs))
    for i, (_, _, times) in enumerate(counts.runs):
        message.runs.extend((gaps[2 * i], gaps[2 * i + 1], times))
    message.dropped.extend(to_samples(counts.dropped))
    message.lost.extend(to_samples(counts.lost))
    for epoch, kept, last in counts.rollbacks:
        message.rollbacks.add(epoch=epoch, kept=kept, last=last)
    message.unplaced = counts.unplaced


def from_counts(message: session.SampleCounts) -> SampleCounts:
    """Return the account that a message holds.

    Raises:
        UsageError: its ranges are malformed, or too many.
    """
    runs = _ranges(message.runs, 3, "SampleCounts.runs", MOST_RUNS)
    if any(times < 1 for _, _, times in runs):
        raise malformed("SampleCounts.runs", "samples trained on 0 times", "1 or more")
    if any(a[1] == b[0] and a[2] == b[2] for a, b in pairwise(runs)):
        raise malformed("SampleCounts.runs", "two runs that are one", "runs that do not touch, or differ")
    return SampleCounts(
        runs=tuple((start, stop, times) for start, stop, times in runs),
        dropped=from_samples(message.dropped, "SampleCounts.dropped", MOST_RUNS),
        lost=from_samples(message.lost, "SampleCounts.lost", MOST_RUNS),
        rollbacks=tuple((r.epoch, r.kept, r.last) for r in message.rollbacks),
        unplaced=message.unplaced,
    )


def _fill_dropped(message: session.SamplesDropped | session.NoteDropped, value: SamplesDropped | NoteDropped) -> None:
    message.model = value.model
    message.samples.extend(to_samples(value.samples))


def _from_dropped(message: session.SamplesDropped, member: str) -> SamplesDropped:
    samples = from_samples(message.samples, "SamplesDropped.samples", MOST_RUNS)
    return SamplesDropped(worker=member, model=message.model, samples=samples)


def _from_note(message: session.NoteDropped, to: str, reason: str) -> NoteDropped:
    samples = from_samples(message.samples, "NoteDropped.samples", MOST_RUNS)
    return NoteDropped(to=to, model=message.model, samples=samples, reason=reason)


def _fill_reported(message: session.SamplesReported, value: SamplesReported) -> None:
    message.server = value.server
    message.model = value.model
    fill_counts(message.counts, value.counts)
    message.counts.SetInParent()


def _from_reported(message: session.SamplesReported, member: str) -> SamplesReported:
    if message.server != member:
        raise malformed("SamplesReported.server", message.server, f"{member!r}, whose session this is")
    need(message, "counts")
    return SamplesReported(server=message.server, model=message.model, counts=from_counts(message.counts))


_ANSWER_TO = {
    DrawAnswer.GRANTED: session.DRAW_ANSWER_GRANTED,
    DrawAnswer.NOT_YET: session.DRAW_ANSWER_NOT_YET,
    DrawAnswer.UNDER_WAY: session.DRAW_ANSWER_UNDER_WAY,
    DrawAnswer.OVER: session.DRAW_ANSWER_OVER,
}
_ANSWER_OF: Mapping[int, DrawAnswer] = {number: value for value, number in _ANSWER_TO.items()}


def to_wanted(wanted: SamplesWanted) -> session.SamplesWanted:
    """Make the message of a wish for samples."""
    return session.SamplesWanted(
        serial=wanted.serial,
        model=wanted.model,
        count=wanted.count,
        limit=wanted.limit,
        again=wanted.again,
        returned=to_samples(wanted.returned),
    )


def from_wanted(message: session.SamplesWanted, member: str) -> SamplesWanted:
    """Return the wish for samples that a message holds.

    Raises:
        UsageError: it wants none, or beyond the last position.
    """
    if message.count < 1 or message.limit > LAST_POSITION:
        given = f"{message.count} samples before {message.limit}"
        raise malformed("SamplesWanted.count, SamplesWanted.limit", given, "1 or more, before 2**62")
    return SamplesWanted(
        worker=member,
        model=message.model,
        serial=message.serial,
        count=message.count,
        limit=message.limit,
        again=message.again,
        returned=from_samples(message.returned, "SamplesWanted.returned", MOST_RUNS),
    )


def to_granted(granted: SamplesGranted) -> session.SamplesGranted:
    """Make the message of an answer to a wish for samples."""
    samples = to_samples(granted.samples)
    return session.SamplesGranted(serial=granted.serial, samples=samples, answer=_ANSWER_TO[granted.answer])


def from_granted(message: session.SamplesGranted, to: str, reason: str) -> SamplesGranted:
    """Return the answer to a wish for samples that a message holds.

    Raises:
        UsageError: it is none, or its ranges are malformed.
    """
    return SamplesGranted(
        to=to,
        serial=message.serial,
        samples=from_samples(message.samples, "SamplesGranted.samples"),
        answer=enum_of(_ANSWER_OF, message.answer, "SamplesGranted.answer"),
        reason=reason,
    )


FILL_EVENT: Mapping[type, Callable[[session.Event, Any], None]] = {
    SamplesDropped: lambda message, event: _fill_dropped(message.samples_dropped, event),
    SamplesReported: lambda message, event: _fill_reported(message.samples_reported, event),
    SamplesWanted: lambda message, event: message.samples_wanted.CopyFrom(to_wanted(event)),
}
READ_EVENT: Mapping[str, Callable[[Any, str], MemberEvent]] = {
    "samples_dropped": _from_dropped,
    "samples_reported": _from_reported,
    "samples_wanted": from_wanted,
}
FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    NoteDropped: lambda message, value: _fill_dropped(message.note_dropped, value),
    SamplesGranted: lambda message, value: message.samples_granted.CopyFrom(to_granted(value)),
}
READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "note_dropped": _from_note,
    "samples_granted": from_granted,
}
