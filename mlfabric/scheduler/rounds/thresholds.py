"""The threshold of one model's workers, chosen once all of them have said what their steps take (DropCompute). Pure.

Nothing is remembered but what the workers have said last. A worker says it again until it is told a threshold, so what
is lost on the way, or with a scheduler, comes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mlfabric.methods.drop_compute import UNLIMITED, Threshold, Timings, best_threshold
from mlfabric.protocol import SetThreshold, StepsTimed

__all__ = ["Thresholds"]


class Thresholds:
    """What the workers of one model have said of their steps, and the threshold that they have.

    Attributes:
        present: the threshold; None while there is none yet, or steps are timed.
    """

    def __init__(self, model: str) -> None:
        self.present: Threshold | None = None
        self._model = model
        self._said: dict[str, StepsTimed] = {}

    def timed(self, event: StepsTimed, workers: Collection[str]) -> Iterator[SetThreshold]:
        """Take in what a worker says.

        Args:
            workers: all that are here.
        """
        if not event.rest_ns:
            yield from self._begin_anew(event.worker, workers)
            return
        self._said[event.worker] = event
        for gone in self._said.keys() - set(workers):
            del self._said[gone]
        if len(self._said) < len(workers):
            return
        said = list(self._said.values())
        self._said.clear()
        yield from self._choose(said)

    def _begin_anew(self, worker: str, workers: Collection[str]) -> Iterator[SetThreshold]:
        """Have all workers time their steps: how long one computes has changed."""
        if self.present is None:
            return
        self.present = None
        for each in sorted(workers):
            reason = f"{worker} drops more or less than it did when the threshold was set"
            yield SetThreshold(to=each, model=self._model, measures=True, reason=reason)

    def _choose(self, said: list[StepsTimed]) -> Iterator[SetThreshold]:
        micro_batches = sorted({one.micro_batches for one in said})
        if len(micro_batches) > 1:
            found, reason = UNLIMITED, f"steps have different numbers of micro-batches: {micro_batches}"
        else:
            found = best_threshold(Timings.beside([(o.computed_ns, o.rest_ns) for o in said], micro_batches[0]))
            gain = f"{found.speedup:.2f} times as fast with {found.dropped:.1%} dropped"
            reason = "no threshold is worth it" if found is UNLIMITED else gain
        self.present = found
        for one in said:
            yield SetThreshold(
                to=one.worker,
                model=self._model,
                tau_ns=0 if found is UNLIMITED else round(found.tau_s * 1e9),
                speedup=found.speedup,
                dropped=found.dropped,
                reason=reason,
            )
