"""Partial rounds (eager-SGD): how long they hold workers up, and how much faster they train where workers are delayed.

1. *latency*: 64 rounds of 32 processes that call 1 to 32 ms late, beside MPI_Allreduce (``eager_latency.py``).
2. *hyperplane*: regression among eight workers, one of which, drawn for each step, is 200, 300 or 400 ms late.
3. *digits*: a classifier among eight workers that are all 50 to 400 ms late, each in turn.
4. *text*: an LSTM on sentences of uneven length: a step takes as long as its batch is long.

``mlfabric bench eager``, half an hour; ``--set only=latency,text``. MPI comes with ``make setup``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.checking import at_least_one
from benchmarks.eager_latency import latency
from benchmarks.eager_tasks import Schedule
from benchmarks.eager_training import Training, compared
from mlfabric.errors import UsageError

__all__ = ["run"]

PARTS = ("latency", "hyperplane", "digits", "text")
HYPERPLANE_S = (0.2, 0.3, 0.4)
DIGITS_S = tuple(0.05 * n for n in range(1, 9))
PACE_S = 0.1
LATENCY_PACE_S = 0.3


def run(
    only: str = "", trials: int = 5, processes: int = 32, rounds: int = 64, steps: int = 200, workers: int = 8
) -> dict[str, Any]:
    """Measure.

    Args:
        only: a part, or several with commas between them; "" for all.
        trials: sequences of each kind in ``latency``; medians count.
        processes, rounds: of such a sequence.
        steps: of each worker in a training; a quarter of them to try a learning rate, half of them for hyperplanes.
        workers: that train.

    Returns:
        ``latency``: ``mpi_ms``, ``solo_ms``, ``majority_ms`` (means over processes and rounds), ``solo_times``,
        ``majority_times``, ``solo_active``, ``majority_active`` (contributors to a round); and the same of
        ``solo_at_once`` and ``majority_at_once``, whose steps wait for no round. For each training ``times``
        (synchronous time over partial), ``judged_difference`` and ``judged_ratio`` of the last models' losses
        (hyperplane) or accuracies in percent, for each method ``s``, ``slept_s`` (all steps of the slowest worker
        without communication), ``judged``, ``rounds``, ``in_time_share`` of the gradients and ``rate``. And how much of
        the computer was used: where that is near 1 the figures mean nothing.

    Raises:
        UsageError: there is no such part, or a number is out of range.
        UnavailableError: there is no MPI here.
        RuntimeError: a process failed.
    """
    at_least_one(trials=trials, processes=processes, rounds=rounds, steps=steps, workers=workers)
    names = only.split(",") if only else list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise UsageError(f"--set only={','.join(unknown)}; allowed: {', '.join(PARTS)}")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "latency": lambda: latency(trials, processes, rounds, LATENCY_PACE_S),
        "hyperplane": lambda: _hyperplane(steps, workers),
        "digits": lambda: _digits(steps, workers),
        "text": lambda: _text(steps, workers),
    }
    return {name: parts[name]() for name in names}


def _hyperplane(steps: int, workers: int) -> dict[str, Any]:
    return {
        f"{delay_s * 1e3:.0f}_ms": compared(
            Training(
                task="hyperplane", schedule=Schedule(pace_s=PACE_S, delays_s=(delay_s,)), steps=steps, workers=workers
            ),
            "solo",
            (0.015, 0.03, 0.06, 0.12),
            max(1, steps // 2),
        )
        for delay_s in HYPERPLANE_S
    }


def _digits(steps: int, workers: int) -> dict[str, Any]:
    schedule = Schedule(pace_s=PACE_S, delays_s=DIGITS_S)
    training = Training(task="digits", schedule=schedule, steps=steps, workers=workers)
    return compared(training, "majority", (0.2, 0.4, 0.8), max(1, steps // 4))


def _text(steps: int, workers: int) -> dict[str, Any]:
    schedule = Schedule(pace_s=2 * PACE_S, delays_s=())
    training = Training(task="text", schedule=schedule, steps=2 * steps, workers=workers, works=True)
    return compared(training, "majority", (0.5, 1.0, 2.0), max(1, steps // 2))
