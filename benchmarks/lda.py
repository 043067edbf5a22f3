"""Whether topics found through the fabric are as good as those of one process: latent Dirichlet allocation, in pairs.

``examples/lda_gibbs.py`` is run by real processes, asynchronous with a delay bound of twice their number; and its
sampler here, on all documents. Both begin with the same topic for every word and make as many sweeps; what counts is
the log-likelihood of held-out words.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from examples import lda_gibbs
from mlfabric.errors import FabricError, UsageError
from mlfabric.launch.ports import free_port

__all__ = ["run"]

EXAMPLE = Path(lda_gibbs.__file__)
HOST = "127.0.0.1"


def run(seeds: int = 3, sweeps: int = 200, workers: int = 4, topics: int = 20, first_seed: int = 0) -> dict[str, Any]:
    """Compare log-likelihoods, pair by pair.

    Args:
        seeds: how many pairs, >= 1.
        sweeps: of each worker over its documents, and of the one process over all; >= 1.
        workers: processes in the fabric, >= 1.
        topics: >= 1.
        first_seed: the others follow.

    Returns:
        ``lda_rel_gap``: of the mean log-likelihoods, how far the fabric's is from one process's, relative to this;
        ``fabric`` and ``one_process``, these means (of a word, natural logarithm); and ``pairs``: both by seed, and how
        many pushes were dropped and went again.

    Raises:
        UsageError: a number is out of range.
        FabricError: a process failed.
    """
    if min(seeds, sweeps, workers, topics) < 1:
        raise UsageError(f"seeds={seeds}, sweeps={sweeps}, workers={workers}, topics={topics}; allowed: 1 or more")
    pairs = {f"seed {seed}": _pair(seed, sweeps, workers, topics) for seed in range(first_seed, first_seed + seeds)}
    fabric, one = (statistics.fmean(pair[side] for pair in pairs.values()) for side in ("fabric", "one_process"))
    return {"lda_rel_gap": abs(1 - fabric / one), "fabric": fabric, "one_process": one, "pairs": pairs}


def _pair(seed: int, sweeps: int, workers: int, topics: int) -> dict[str, float]:
    fabric, again = _through_the_fabric(seed, sweeps, workers, topics)
    return {"fabric": fabric, "one_process": _alone(seed, sweeps, topics), "pushes_again": again}


def _alone(seed: int, sweeps: int, topics: int) -> float:
    texts, held_out = lda_gibbs.load()
    shard, rng = lda_gibbs.shard_of(texts, topics, seed), np.random.default_rng((seed, 0))
    word_topic = np.zeros((texts.shape[1], topics), np.float32)
    shard.add_to(word_topic)
    for _ in range(sweeps):
        shard.sweep(word_topic, rng)
    return lda_gibbs.score(word_topic, held_out)


def _through_the_fabric(seed: int, sweeps: int, workers: int, topics: int) -> tuple[float, int]:
    """Run the example; return the log-likelihood that it prints, and how many pushes went again."""
    options = {"seed": seed, "sweeps": sweeps, "topics": topics}
    job = ("run", "-n", str(workers), "--scheduler", f"{HOST}:{free_port(HOST)}", str(EXAMPLE))
    command = (sys.executable, "-m", "mlfabric", *job, *(f"--{name}={value}" for name, value in options.items()))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise FabricError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    lines = done.stdout.splitlines()
    (found,) = (line for line in lines if "log-likelihood" in line)
    again = sum(int(line.rsplit(maxsplit=1)[1]) for line in lines if "went again" in line)
    return float(found.rsplit(maxsplit=1)[1]), again
