"""What members say of the samples that updates were computed from. Pure.

What was trained on the server knows by itself: each update says what it was computed from, and its commit is in the
log. What was not trained on it has to be told: by a worker whose update was dropped, or by the scheduler if that worker
is gone. That is a set which only grows, so it is said again to whoever may have missed it; a commit overrules it::

    worker                  scheduler                 server
      SamplesDropped ────────▶ NoteDropped ────────────▶  account, in checkpoints
                             ◀──────── SamplesReported ─

Who wants it draws samples from the scheduler. It hands out what is neither trained on nor with anybody, so each sample
goes to one worker, whoever comes and goes, and what a worker that is gone had goes to others.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.model.samples import SampleCounts, Samples
from mlfabric.values import dataclass

__all__ = ["DrawAnswer", "NoteDropped", "SamplesDropped", "SamplesGranted", "SamplesReported", "SamplesWanted"]


class DrawAnswer(Enum):
    """What becomes of the wish for samples."""

    GRANTED = "granted"
    NOT_YET = "the scheduler does not know yet what others have"
    UNDER_WAY = "all are with workers, and may come back"
    OVER = "all were trained on, or are not to be tried again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesDropped:
    """Updates of a worker that were computed from these samples were dropped, or their fate is not known."""

    worker: str
    model: str
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReported:
    """A server's account of a model's samples, which has changed."""

    server: str
    model: str
    counts: SampleCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteDropped:
    """Enter these samples as dropped, unless or until they are trained on."""

    to: str
    model: str
    samples: Samples
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesWanted:
    """A worker wants samples that nobody has.

    Args:
        serial: counts this worker's wishes; the answer repeats it.
        count: how many at most, >= 1.
        limit: only positions before this one.
        again: also those whose updates were dropped.
        returned: what it has drawn and will not use.
    """

    worker: str
    model: str
    serial: int
    count: int
    limit: int
    again: bool = True
    returned: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesGranted:
    """Train on these samples; nobody else is told to. None unless the answer is GRANTED."""

    to: str
    serial: int
    samples: Samples
    answer: DrawAnswer
    reason: str
