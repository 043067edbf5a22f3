"""The threshold of one model's workers, chosen once all of them have said what their steps take (DropCompute). Pure.

A worker says it again until it is told a threshold, so what is lost on the way, or with a scheduler, comes again. Who
says it while the others have a threshold has joined later, and is told that one. Who says it a second time waits for
workers that do not know that steps are to be timed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mlfabric.methods.drop_compute import UNLIMITED, Threshold, Timings, best_threshold
from mlfabric.protocol import SetThreshold, StepsTimed

__all__ = ["Thresholds"]


class Thresholds:
    """What the workers of one model have said of their steps, and the threshold that they have.

    Attributes:
        words: the threshold and what it is expected to do, for people; "" while there is none.
    """

    def __init__(self, model: str) -> None:
        self.words = ""
        self._model = model
        self._present: Threshold | None = None
        """None while there is none yet, or steps are timed."""
        self._said: dict[str, StepsTimed] = {}

    def timed(self, event: StepsTimed, workers: Collection[str]) -> Iterator[SetThreshold]:
        """Take in what a worker says.

        Args:
            workers: all that are here.
        """
        worker = event.worker
        if not event.rest_ns:
            if self._present is not None:
                reason = f"{worker} drops more or less than it did, or computes for longer or shorter"
                yield from self._begin_anew(workers, reason)
        elif self._present is not None:
            yield self._told(worker, self._present)
        else:
            is_said_again = worker in self._said
            self._said[worker] = event
            for gone in self._said.keys() - set(workers):
                del self._said[gone]
            silent = sorted(set(workers) - self._said.keys())
            if not silent:
                yield from self._choose()
            elif is_said_again:
                yield from self._begin_anew(silent, f"{worker} waits for what their steps take")

    def _begin_anew(self, workers: Collection[str], reason: str) -> Iterator[SetThreshold]:
        """Have workers time their steps; whoever does that already goes on."""
        self._present, self.words = None, ""
        for worker in sorted(workers):
            yield SetThreshold(to=worker, model=self._model, measures=True, reason=reason)

    def _choose(self) -> Iterator[SetThreshold]:
        said = list(self._said.values())
        self._said.clear()
        micro_batches = sorted({one.micro_batches for one in said})
        if len(micro_batches) > 1:
            found = UNLIMITED
            self.words = f"none, as steps have different numbers of micro-batches: {micro_batches}"
        else:
            found = best_threshold(Timings.beside([(o.computed_ns, o.rest_ns) for o in said], micro_batches[0]))
            gain = f"{found.tau_s:.3g} s, {found.speedup:.2f} times as fast with {found.dropped:.1%} dropped"
            self.words = "none, as none is worth it" if found is UNLIMITED else gain
        self._present = found
        for one in said:
            yield self._told(one.worker, found)

    def _told(self, worker: str, found: Threshold) -> SetThreshold:
        return SetThreshold(
            to=worker,
            model=self._model,
            tau_ns=0 if found is UNLIMITED else round(found.tau_s * 1e9),
            speedup=found.speedup,
            dropped=found.dropped,
            reason=self.words,
        )
