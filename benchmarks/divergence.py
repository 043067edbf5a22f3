"""How loose the divergence bound is: the estimate over the true distance, for leads of 1 to 600 commits.

Primary and replica are simulated: the replica holds the first commits, the primary is ahead by the lead. Updates are
random, of random norms, and more or less of one mind: ``alignment`` is the cosine between two updates on average, 0 for
noise and 1 for updates that all point the same way, where the bound is the truth. The bound is the one that a plan
uses: it knows norms alone, of the history where the lead begins and of the lead's updates.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.divergence import Lead, Momentum, as_norm
from mlfabric.errors import UsageError

__all__ = ["looseness", "run"]

Vectors = NDArray[np.float64]

LEADS = (1, 3, 10, 30, 100, 300, 600)
GAMMAS = (0.0, 0.9, 0.99)
ALIGNMENTS = (0.0, 0.01, 0.1, 0.5, 1.0)
BEFORE = 200


def run(elements: int = 1000, rounds: int = 20, seed: int = 0) -> dict[str, Any]:
    """Simulate, and compare estimate and truth at every lead.

    Args:
        elements: of the model.
        rounds: simulations; the median and the least ratio of them count.
        seed: of everything.

    Returns:
        By gamma, alignment and lead the median ``ratio`` of estimate to truth; ``least_ratio`` of all, which must not
        be below 1 by more than the roundings of the simulation.

    Raises:
        UsageError: no elements, or no rounds.
    """
    if elements < 2 or rounds < 1:
        raise UsageError(f"elements={elements}, rounds={rounds}; allowed: at least 2 and 1")
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {"least_ratio": math.inf}
    for gamma in GAMMAS:
        for alignment in ALIGNMENTS:
            ratios = np.array([looseness(rng, elements, gamma, alignment) for _ in range(rounds)])
            medians = np.median(ratios, axis=0).tolist()
            found[f"gamma_{gamma:g}.alignment_{alignment:g}"] = {
                f"lead_{lead}": ratio for lead, ratio in zip(LEADS, medians, strict=True)
            }
            found["least_ratio"] = min(found["least_ratio"], float(ratios.min()))
    return found


def looseness(rng: np.random.Generator, elements: int, gamma: float, alignment: float) -> list[float]:
    """Return the estimate over the truth at each of ``LEADS``, all beginning at one commit."""
    updates = _updates(rng, BEFORE + max(LEADS), elements, alignment)
    history = np.zeros(elements)
    for update in updates[:BEFORE]:
        history = gamma * history + update
    ahead = updates[BEFORE:]
    norms = np.linalg.norm(ahead, axis=1).tolist()
    lead = Lead(Momentum(gamma=gamma).step_bound(norms, float(np.linalg.norm(history))))
    ratios, moved = [], np.zeros(elements)
    for committed, update in enumerate(ahead, 1):
        history = gamma * history + update
        moved = moved + history
        if committed in LEADS:
            ratios.append(as_norm(lead.bound(0, committed)) / float(np.linalg.norm(moved)))
    return ratios


def _updates(rng: np.random.Generator, count: int, elements: int, alignment: float) -> Vectors:
    common = rng.standard_normal(elements)
    noise = rng.standard_normal((count, elements))
    directions = math.sqrt(alignment) * common + math.sqrt(1 - alignment) * noise
    lengths = rng.uniform(0.5, 1.5, (count, 1))
    updates: Vectors = lengths * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return updates


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table; an argument is the number of rounds."""
    found = run(rounds=int(arguments[0])) if arguments else run()
    print(f"{'estimate / truth':<28}" + "".join(f"{lead:>9}" for lead in LEADS))
    for name, ratios in found.items():
        if isinstance(ratios, dict):
            print(f"{name:<28}" + "".join(f"{ratio:>9.3f}" for ratio in ratios.values()))
    print(f"least: {found['least_ratio']:.15f}")


if __name__ == "__main__":
    main(sys.argv[1:])
