"""Whether training through the fabric costs accuracy: paired runs against one process with as many updates.

Each seed fixes split, initial weights, batches and jitter, and is run twice: through a fabric (four workers, processes
of their own, one of them 2.5 times slower, no emulated links), and in one process with the same rule, batch size and
number of updates. The difference within each pair is what counts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.intervals import MOST_VALUES, interval_95
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.session import Counted, launched, prepare, run_scenario
from mlfabric.demo.verdict import Verdict
from mlfabric.errors import UsageError
from mlfabric.launch.processes import Nursery

__all__ = ["run"]


def run(seeds: int = 5, updates: int = 1000, first_seed: int = 0) -> dict[str, Any]:
    """Compare accuracies on the test set, pair by pair.

    Args:
        seeds: how many pairs, 2 to 10.
        updates: of each run.
        first_seed: the others follow.

    Returns:
        ``mean_difference`` (fabric less one process), its 95 % confidence interval ``ci95_low`` and ``ci95_high``, and
        ``pairs``: by seed both accuracies, their difference, and what became of the updates.

    Raises:
        UsageError: a number is out of range.
        FabricError: a process failed.
    """
    if not 2 <= seeds <= MOST_VALUES:
        raise UsageError(f"seeds={seeds}; allowed: 2 to {MOST_VALUES}")
    pairs = {f"seed {seed}": _pair(seed, updates) for seed in range(first_seed, first_seed + seeds)}
    differences = [pair["difference"] for pair in pairs.values()]
    low, high = interval_95(differences)
    return {
        "mean_difference": statistics.fmean(differences),
        "ci95_low": low,
        "ci95_high": high,
        "pairs": pairs,
    }


def _pair(seed: int, updates: int) -> dict[str, float]:
    scenario = Scenario(
        seed=seed,
        updates=updates,
        pace_s=0.012,
        pause_share=0.0,
        slowness=(1.0, 1.0, 2.5, 1.0),
        rates=(),
        server_rate="",
        longest_s=40.0,
    )
    found: list[tuple[Counted, Verdict]] = []
    with tempfile.TemporaryDirectory(prefix="mlfabric-accuracy-") as name:
        folder = Path(name)
        prepare(folder, scenario)

        async def work(nursery: Nursery) -> None:
            found.append(await run_scenario(nursery, folder, look=lambda: None, told=lambda _: None))

        code = launched(work, folder)
    if code:
        sys.exit(code)
    counted, verdict = found[0]
    return {
        "fabric": verdict.accuracy,
        "single_process": verdict.single_process_accuracy,
        "difference": verdict.accuracy - verdict.single_process_accuracy,
        "updates_applied": counted.applied,
        "updates_dropped": counted.dropped,
        "delay_max": counted.delay_max,
    }
