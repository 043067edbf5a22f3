"""The rows of the paper's table that are not about time to an accuracy: aggregators, late reports, topics, backups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import BACKUP_CELL, LAG_CELLS, LDA_CELL, cell_named
from benchmarks.testbed.comparing import Estimate, Measured, Pair, estimate
from benchmarks.testbed.judging import isotonic
from benchmarks.testbed.runs import BackupKind
from benchmarks.testbed.spec import CellResult
from benchmarks.testbed.verdicts import Verdict, all_known, at_least, at_most, estimated, mean_of, over_seeds

__all__ = ["backups", "forwarded", "reporting_lag", "topics"]

FORWARDING_SYSTEMS = ("fabric-sync", "fabric-async")
WITHOUT_BACKUP = "fabric-async"
SAME_SHARE = 0.95
"""Two runs have the same log-likelihood where each has made so much of the progress that the lesser one makes."""


def forwarded(measured: Measured, target: float) -> dict[str, Any]:
    """Share of updates sent to be summed behind a link at a quarter of its rate or less, N2; the static tree's too.

    Counted in bytes, as a message may carry a range of an update; what stays on its host crosses no link.
    """
    found: dict[str, Any] = {}
    for system in (*FORWARDING_SYSTEMS, "tree"):
        runs = [r for c in measured.cells if c.network == "N2" for r in measured.runs(c, system) if r.forwarded]
        share = _over_runs(runs, _slow_share)
        found[system] = {
            **estimated("share", share),
            "messages": sum(sum(r.forwarded.messages) for r in runs if r.forwarded),
            "cells": sorted({r.spec.cell.name for r in runs}),
            "reached": at_most(share, reference.PAPER_FORWARDED) if system in FORWARDING_SYSTEMS else None,
        }
    return {
        "systems": found,
        "slow_link": reference.SLOW_LINK,
        "paper": reference.PAPER_FORWARDED,
        "paper_tree": reference.PAPER_TREE_FORWARDED,
        "required": reference.PAPER_FORWARDED,
        "reached": all_known(found[system]["reached"] for system in FORWARDING_SYSTEMS),
    }


def reporting_lag(measured: Measured, target: float) -> dict[str, Any]:
    """How much longer an iteration takes in N2 if the fabric's own monitor reports ten times as seldom."""
    pairs = {name: measured.pairs(cell_named(name), "fabric-lag", "fabric-async") for name in LAG_CELLS}
    longer = over_seeds((pair for row in pairs.values() for pair in row), _longer)
    return {
        "cells": {
            name: {
                **estimated("longer", over_seeds(row, _longer)),
                "seconds_per_iteration": mean_of(pair.other.seconds_per_iteration for pair in row),
                "seconds_per_iteration_without": mean_of(pair.baseline.seconds_per_iteration for pair in row),
            }
            for name, row in pairs.items()
            if row
        },
        **estimated("longer", longer),
        "report_every_s": SYSTEMS["fabric-lag"].report_every_s,
        "paper": reference.PAPER_LAG,
        "required": reference.PAPER_LAG,
        "reached": at_most(longer, reference.PAPER_LAG),
    }


def topics(measured: Measured, target: float) -> dict[str, Any]:
    """Time to the same log-likelihood of held-out words, against the ring and a vanilla asynchronous server."""
    cell = cell_named(LDA_CELL)
    saved = measured.compared(cell, "lda-async", _time_saved, "lda-ring")
    faster = measured.compared(cell, "lda-async", _times_faster, "lda-ps-async")
    verdicts = at_least(saved, reference.PAPER_LDA_SAVED), at_least(faster, reference.PAPER_LDA_VS_ASYNCHRONOUS)
    return {
        **estimated("time_saved_against_ring", saved),
        **estimated("times_as_fast_as_asynchronous", faster),
        "systems": {
            system: {
                "log_likelihood_at_end": mean_of(run.curve.at_end() for run in runs),
                "seconds_per_iteration": mean_of(run.seconds_per_iteration for run in runs),
                "dropped_share": mean_of(run.dropped_share for run in runs),
            }
            for system in ("lda-ring", "lda-ps-async", "lda-async")
            if (runs := measured.runs(cell, system))
        },
        "same_share": SAME_SHARE,
        "paper_saved": reference.PAPER_LDA_SAVED,
        "paper_times": reference.PAPER_LDA_VS_ASYNCHRONOUS,
        "reached": all_known(verdicts),
    }


def backups(measured: Measured, target: float) -> dict[str, Any]:
    """What the model's backup costs: bytes that go there per update, and time that it adds to a commit.

    Bytes are compared between a replica that may not be behind and one that may be by 20 iterations; time between that
    replica and a chain, and between a replica and checkpoints where a crash costs one iteration at most. A backup that
    is cheaper than its noise adds nothing, and is then any number of times as cheap.
    """
    cell = cell_named(BACKUP_CELL)
    found = {
        name: _backup(measured, name)
        for name, system in SYSTEMS.items()
        if system.backup is not BackupKind.NONE and measured.pairs(cell, name, WITHOUT_BACKUP)
    }
    fewer_bytes = measured.compared(cell, "replica-20", _bytes_ratio, "replica-strict")
    chain, far = _added(measured, "chain"), _added(measured, "replica-20")
    checkpoint, near = _added(measured, "checkpoint-1"), _added(measured, "replica-1")
    return {
        "systems": found,
        **estimated("bytes_of_strict_over_bounded", fewer_bytes),
        "chain_over_replica": _ratio(chain, far),
        "checkpoint_over_replica": _ratio(checkpoint, near),
        "paper_bytes": reference.PAPER_BACKUP_BYTES,
        "paper_chain": reference.PAPER_CHAIN,
        "paper_checkpoint": reference.PAPER_CHECKPOINT,
        "reached": all_known(
            (
                at_least(fewer_bytes, reference.PAPER_BACKUP_BYTES),
                _is_as_many_times(chain, far, reference.PAPER_CHAIN),
                _is_as_many_times(checkpoint, near, reference.PAPER_CHECKPOINT),
            )
        ),
    }


def _backup(measured: Measured, system: str) -> dict[str, Any]:
    runs = measured.runs(cell_named(BACKUP_CELL), system)
    return {
        **estimated("added_ms_per_commit", _added(measured, system)),
        "bytes_per_update": mean_of(_bytes_per_update(run) for run in runs),
        "lead_updates": max(run.spec.lead_updates for run in runs),
        "disk_ms": mean_of(1000 * run.backup.disk_s for run in runs if run.backup is not None),
    }


def _added(measured: Measured, system: str) -> Estimate | None:
    """Return how many milliseconds a backup adds to a commit, undilated, over the same run without it."""
    return measured.compared(cell_named(BACKUP_CELL), system, _added_ms, WITHOUT_BACKUP)


def _added_ms(pair: Pair) -> float:
    longer_s = pair.other.seconds_per_iteration - pair.baseline.seconds_per_iteration
    return 1000 * longer_s / pair.other.spec.workers


def _bytes_ratio(pair: Pair) -> float | None:
    ours = _bytes_per_update(pair.other)
    return _bytes_per_update(pair.baseline) / ours if ours else None


def _bytes_per_update(run: CellResult) -> float:
    assert run.backup is not None, f"{run.spec.system} says what its backup took"
    return run.backup.n_bytes / len(run.commits.workers)


def _ratio(dear: Estimate | None, cheap: Estimate | None) -> float | None:
    """Return how many times as much one adds; None where the cheap one adds nothing."""
    return None if dear is None or cheap is None or cheap.mean <= 0 else dear.mean / cheap.mean


def _is_as_many_times(dear: Estimate | None, cheap: Estimate | None, times: float) -> Verdict:
    return None if dear is None or cheap is None else dear.mean >= times * max(0.0, cheap.mean)


def _longer(pair: Pair) -> float:
    return pair.other.seconds_per_iteration / pair.baseline.seconds_per_iteration - 1


def _times_faster(pair: Pair) -> float | None:
    """Return how many times as long the baseline takes to the same quality; None if one is there from the start."""
    same = _same_quality(pair)
    theirs_s, ours_s = pair.baseline.curve.time_to(same), pair.other.curve.time_to(same)
    return theirs_s / ours_s if theirs_s and ours_s else None


def _time_saved(pair: Pair) -> float | None:
    times = _times_faster(pair)
    return None if times is None else 1 - 1 / times


def _same_quality(pair: Pair) -> float:
    """Return a quality that both runs reach before their progress becomes slow."""
    curves = [isotonic(run.curve.accuracy) for run in (pair.baseline, pair.other)]
    begin = max(float(curve[0]) for curve in curves)
    return begin + SAME_SHARE * (min(float(curve[-1]) for curve in curves) - begin)


def _slow_share(run: CellResult) -> float:
    assert run.forwarded is not None, "chosen among those that forward"
    return run.forwarded.share_at_most(reference.SLOW_LINK)


def _over_runs(runs: list[CellResult], value: Callable[[CellResult], float]) -> Estimate | None:
    """Return the mean over seeds of each seed's mean over cells."""
    seeds = sorted({run.spec.seed for run in runs})
    means = [mean_of(value(run) for run in runs if run.spec.seed == seed) for seed in seeds]
    return estimate([found for found in means if found is not None])
