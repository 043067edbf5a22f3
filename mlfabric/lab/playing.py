"""Playing one storm after another, each drawn for its seed: what ``mlfabric fuzz --collective`` does."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from mlfabric.lab.collective import AllReduceJob
from mlfabric.lab.fabric import Fabric, FabricConfig
from mlfabric.lab.gossip import GossipJob
from mlfabric.lab.steps import StepJob
from mlfabric.lab.storm import Storm
from mlfabric.model.round_options import MIXINGS, QUORUMS, RoundOptions
from mlfabric.model.specs import Method

__all__ = ["Run", "drawn", "play"]

ROWS = (2, 4, 16, 64, 400)
"""Of 256 bytes: sent straight, along trees, in rings and in stripes; and some longer than what comes unasked."""
MANY_ROWS = 16
"""Rounds of so many take many callbacks: with longer steps there are as many faults in a storm as with few."""
GOSSIP = 0.25
"""In this share of the runs workers have models of their own, and in half of those they agree now and then."""
STEPS = 0.5
"""In this share of the others workers apply rounds by themselves; in the others they call AllReduce."""
OVERLAP = 0.5
"""In this share of those, gradients are offered while backward makes them."""
WAITS = 0.5
"""In this share of partial and elastic rounds, steps wait for them."""
FRAGMENTS = 0.3
"""In this share of elastic rounds of whole gradients, rounds have fragments, which are of different sizes, in turn."""
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
        method: how rounds are made.
        rounds: their options, where workers apply them by themselves; None for a job that calls AllReduce.
        overlap: in such rounds gradients are offered while backward makes them; in gossip, workers agree now and then.
        waits: steps wait until it is known what becomes of their gradients; always with overlap.
    """

    seed: int
    workers: int
    rows: int
    compute_s: tuple[float, float]
    gap_s: float
    events: int
    method: Method
    rounds: RoundOptions | None
    overlap: bool
    waits: bool


def drawn(seed: int, events: int) -> Run:
    """Return what is played for a seed, and for how long at most."""
    draw = random.Random(f"run {seed}")
    rows = draw.choice(ROWS)
    least_s = draw.choice((0.02, 0.1)) if rows < MANY_ROWS else 0.2
    workers, longest_s, gap_s = draw.randint(2, 5), draw.choice((1.5, 5.0)) * least_s, draw.choice((0.3, 0.8, 2.0))
    method, rounds, overlap = Method.ALL_REDUCE, None, False
    gossip = random.Random(f"gossip {seed}")
    if gossip.random() < GOSSIP:
        method, rounds = gossip.choice([method for method in Method if method.is_gossip]), _options(gossip)
        overlap = gossip.random() < OVERLAP
    elif draw.random() < STEPS:
        method, rounds = draw.choice((Method.ALL_REDUCE, Method.PARTIAL, Method.ELASTIC)), _options(draw)
        overlap = draw.random() < OVERLAP
        fragments = random.Random(f"fragments {seed}")
        if method is Method.ELASTIC and not overlap and fragments.random() < FRAGMENTS:
            rounds = replace(rounds, fragments=fragments.randint(2, 4), tau_max=0)
    return Run(
        seed=seed,
        workers=workers,
        rows=rows,
        compute_s=(least_s, longest_s),
        gap_s=gap_s,
        events=events,
        method=method,
        rounds=rounds,
        overlap=overlap,
        waits=overlap or method is Method.ALL_REDUCE or draw.random() < WAITS,
    )


def _options(draw: random.Random) -> RoundOptions:
    return RoundOptions(
        tau_max=draw.randint(0, 3),
        at_least=draw.choice((0.3, 0.5, 1.0)),
        quorum=draw.choice((*QUORUMS, "2")),
        full_every=draw.randint(1, 8),
        average_every=draw.choice((0, 0, 3)),
        mixing=draw.choice(MIXINGS),
    )


def _job_of(run: Run) -> AllReduceJob | StepJob | GossipJob:
    if run.rounds is None:
        return AllReduceJob(rows=run.rows, compute_s=run.compute_s, workers=run.workers)
    if run.method.is_gossip:
        return GossipJob(
            method=run.method,
            rounds=run.rounds,
            rows=run.rows,
            compute_s=run.compute_s,
            workers=run.workers,
            agrees=run.overlap,
        )
    return StepJob(
        method=run.method,
        rounds=run.rounds,
        rows=run.rows,
        compute_s=run.compute_s,
        workers=run.workers,
        overlap=run.overlap,
        waits=run.waits,
    )


def play(run: Run, story_lines: int | None = None) -> tuple[Fabric, AllReduceJob | StepJob | GossipJob, Storm]:
    """Play a run to its end.

    Raises:
        BaseException: what does not hold; its notes tell the story.
    """
    job = _job_of(run)
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
