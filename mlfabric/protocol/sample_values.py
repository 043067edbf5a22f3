"""Reports about the samples that updates were computed from. Pure.

The server knows the samples that were trained on: each update names its samples, and its commit is in the log. Dropped
samples must be reported: by the worker whose update was dropped, or by the scheduler if that worker is gone. This set
only grows, so it is reported again if it may have been missed; a commit overrules it::

    worker                  scheduler                 server
      SamplesDropped ────────▶ NoteDropped ────────────▶  account, in checkpoints
                             ◀──────── SamplesReported ─

Workers may draw samples from the scheduler. It gives out samples that were not trained on and that no worker has, so
each sample goes to one worker, also if workers join and leave. Samples of a worker that is gone go to others.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.model.samples import SampleCounts, Samples
from mlfabric.protocol.told import SaidByServer, SaidByWorker, Told, ToldOfModel
from mlfabric.values import dataclass

__all__ = ["DrawAnswer", "NoteDropped", "SamplesDropped", "SamplesGranted", "SamplesReported", "SamplesWanted"]


class DrawAnswer(Enum):
    """The answer to a request for samples."""

    GRANTED = "granted"
    NOT_YET = "the scheduler does not know yet what others have"
    UNDER_WAY = "all are with workers, and may come back"
    OVER = "all were trained on, or are not to be tried again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesDropped(SaidByWorker):
    """Updates of a worker that were computed from these samples were dropped, or their fate is not known."""

    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReported(SaidByServer):
    """A server's account of a model's samples, which has changed."""

    counts: SampleCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteDropped(ToldOfModel):
    """Enter these samples as dropped, unless or until they are trained on."""

    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesWanted(SaidByWorker):
    """A worker wants samples that nobody has.

    Args:
        serial: counts this worker's requests; the answer repeats it.
        count: how many at most, >= 1.
        limit: only positions before this one.
        again: also samples whose updates were dropped.
        returned: samples that it has drawn and will not use.
    """

    serial: int
    count: int
    limit: int
    again: bool = True
    returned: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesGranted(Told):
    """Train on these samples; nobody else is told to. None unless the answer is GRANTED."""

    serial: int
    samples: Samples
    answer: DrawAnswer
