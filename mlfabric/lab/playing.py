"""Playing one storm after another, each drawn for its seed: what ``mlfabric fuzz --collective`` does."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlfabric.lab.collective import AllReduceJob
from mlfabric.lab.fabric import Fabric, FabricConfig
from mlfabric.lab.storm import Storm

__all__ = ["Run", "drawn", "play"]

ROWS = (1, 4, 16, 64, 400)
"""Of 256 bytes: sent straight, along trees, in rings and in stripes; and some longer than what comes unasked."""
MANY_ROWS = 16
"""Rounds of so many take many callbacks: with longer steps there are as many faults in a storm as with few."""
EXTRA_WORKERS = 2
STORM_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is drawn for a seed.

    Args:
        seed: of everything.
        workers: how many begin.
        rows: of each tensor.
        compute_s: the least and the most that a step takes.
        gap_s: the mean time between two faults; 0 for none.
        events: a storm is over after so many callbacks of the event loop, or when its time is.
    """

    seed: int
    workers: int
    rows: int
    compute_s: tuple[float, float]
    gap_s: float
    events: int


def drawn(seed: int, events: int) -> Run:
    """Return what is played for a seed, and for how long at most."""
    draw = random.Random(f"run {seed}")
    rows = draw.choice(ROWS)
    least_s = draw.choice((0.02, 0.1)) if rows < MANY_ROWS else 0.2
    return Run(
        seed=seed,
        workers=draw.randint(2, 5),
        rows=rows,
        compute_s=(least_s, draw.choice((1.5, 5.0)) * least_s),
        gap_s=draw.choice((0.3, 0.8, 2.0)),
        events=events,
    )


def play(run: Run, story_lines: int | None = None) -> tuple[Fabric, AllReduceJob, Storm]:
    """Play a run to its end.

    Raises:
        BaseException: what does not hold; its notes tell the story.
    """
    job = AllReduceJob(rows=run.rows, compute_s=run.compute_s, workers=run.workers)
    most = run.workers + EXTRA_WORKERS
    with tempfile.TemporaryDirectory() as folder:
        config = FabricConfig(seed=run.seed, workers=run.workers, hosts=most + 1, state_dir=Path(folder))
        fabric = Fabric(config, job, story_lines)
        storm = Storm(fabric, run.gap_s, most)
        try:
            fabric.start_scheduler()
            for index in range(run.workers):
                fabric.start_worker(index)
            storm.rage(STORM_S, run.events)
            storm.calm()
        except BaseException as error:
            error.add_note("\n".join([str(run), *fabric.story]))
            raise
        finally:
            fabric.close()
    return fabric, job, storm
