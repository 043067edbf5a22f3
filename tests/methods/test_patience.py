"""When a round is to begin: for the most workers to be in rounds per second, whatever steps take."""

from __future__ import annotations

import random

import pytest

from mlfabric.methods import Readiness
from mlfabric.methods.patience import best_ns

MS = 1_000_000


def of(recent_ms: dict[str, list[int]], round_ms: int) -> Readiness:
    """Return a worker that is ready, and others that have computed since the last round."""
    return Readiness(
        ready_ns={"ready": 0},
        computing_ns=dict.fromkeys(recent_ms, 0),
        usual_ns=100 * MS,
        version=1,
        since_full=0,
        recent_ns={worker: [ms * MS for ms in each] for worker, each in recent_ms.items()},
        settled_ns=0,
        round_ns=round_ms * MS,
    )


def test_who_has_made_no_step_yet_is_expected_as_all_others() -> None:
    assert best_ns(of({"a": [100], "new": []}, 300), 90 * MS) == 105 * MS
    assert best_ns(of({"new": []}, 300), 90 * MS) is None


def test_short_steps_have_some_ms_more() -> None:
    assert best_ns(of({"a": [1], "b": [2]}, 50), 0) == 7 * MS


@pytest.mark.parametrize("round_ms", [1, 50, 400, 3000])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_instant_has_more_workers_in_rounds_per_second(seed: int, round_ms: int) -> None:
    drawn = random.Random(seed)
    took_ms = [round(drawn.lognormvariate(4.6, 0.7)) for _ in range(20)]
    ends_ns = [round(MS * (ms + max(5, 0.05 * ms))) for ms in took_ms]

    def gained(at_ns: int) -> float:
        return (1 + sum(end_ns <= at_ns for end_ns in ends_ns)) / (at_ns + round_ms * MS)

    found = best_ns(of({str(n): [ms] for n, ms in enumerate(took_ms)}, round_ms), 10 * MS)
    assert found is not None
    assert all(gained(at_ns) <= gained(found) * (1 + 1e-6) for at_ns in (10 * MS, *ends_ns) if at_ns >= 10 * MS)
