"""What the status says of the samples of one model. Shell-level."""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.model.ranges import difference
from mlfabric.model.samples import NO_SAMPLES, Run, Samples, union
from mlfabric.scheduler.model_state import ModelState
from mlfabric.v1 import fabric_pb2, session_pb2

__all__ = ["SHOWN_RANGES", "describe_samples"]

SHOWN_RANGES = 20
"""Of each kind, the last ones, unless all are asked for."""


def describe_samples(model: ModelState, *, all_ranges: bool = False) -> fabric_pb2.SampleStatus | None:
    """Return what became of a model's samples; None if nobody says what updates are computed from."""
    counts, in_flight = model.samples.counts, union(model.samples.under_way(), model.samples.unreported)
    said = model.samples.known_dropped
    if counts == NO_SAMPLES and not in_flight and not said:
        return None
    trained = counts.trained
    settled = union(trained, in_flight)
    dropped, lost = difference(said, settled), difference(counts.lost, settled)
    of_kind: dict[str, Sequence[Run]] = {
        "trained": counts.runs,
        "repeated": counts.repeated,
        "dropped": _runs(dropped),
        "lost": _runs(lost),
        "in_flight": _runs(in_flight),
        "missing": _runs(counts.missing(union(said, in_flight))),
    }
    out = fabric_pb2.SampleStatus(
        unplaced=counts.unplaced,
        rollbacks=[session_pb2.Rollback(epoch=e, kept=kept, last=last) for e, kept, last in counts.rollbacks],
    )
    for kind, runs in of_kind.items():
        setattr(out, kind, sum(stop - start for start, stop, _ in runs))
        shown = runs if all_ranges else runs[-SHOWN_RANGES:]
        out.ranges_left_out += len(runs) - len(shown)
        getattr(out, f"{kind}_ranges").extend(
            fabric_pb2.SampleRange(start=start, stop=stop, times=times) for start, stop, times in shown
        )
    return out


def _runs(samples: Samples) -> list[Run]:
    return [(start, stop, 0) for start, stop in samples]
