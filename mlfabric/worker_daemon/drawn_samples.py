"""The samples that a worker draws and has: asked for, asked for again of a scheduler that begins anew. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.model.ranges import difference
from mlfabric.model.samples import MOST_RUNS, Samples, union
from mlfabric.protocol import SamplesGranted, SamplesWanted
from mlfabric.worker_daemon import actions as act

__all__ = ["Drawing"]


class Drawing:
    """What one worker has drawn. One wish at a time is open."""

    def __init__(self) -> None:
        self.drawn: Samples = ()
        self._open: SamplesWanted | None = None

    def call(self, wanted: SamplesWanted) -> Iterator[act.Action]:
        """Ask for samples."""
        assert self._open is None, f"{self._open} is open"
        self._open = wanted
        self.drawn = difference(self.drawn, wanted.returned)
        yield act.Request(event=wanted)

    def granted(self, answer: SamplesGranted) -> Iterator[act.Action]:
        """Hand over what was granted; an answer to another wish than the open one came too late."""
        if self._open is not None and answer.serial == self._open.serial:
            self._open = None
            self.drawn = union(self.drawn, answer.samples)[-MOST_RUNS:]
            yield act.HandOver(granted=answer)

    def settled(self, samples: Samples) -> None:
        """Note that an update of these samples has an outcome: they are trained on, or anybody's."""
        self.drawn = difference(self.drawn, samples)

    def open(self) -> tuple[SamplesWanted, ...]:
        """Return what has no answer: it is asked again of whoever may not have heard it."""
        return () if self._open is None else (self._open,)
