"""The paper's table on the testbed: nine cells, every system, tuned alike, on the same model, data and seeds.

``mlfabric bench paper`` calls :func:`choose` and :func:`run`. What is finished is kept, so that it may be broken off
and called again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.intervals import MOST_VALUES
from benchmarks.testbed import reference
from benchmarks.testbed.campaign import Campaign, Choice
from benchmarks.testbed.catalogue import SYSTEMS, system_named
from benchmarks.testbed.cells import ALL_CELLS, cell_named
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.figures import ACCURACY, RATIOS, draw_accuracy, draw_ratios
from benchmarks.testbed.hosts import testbed
from benchmarks.testbed.predicting import predictions
from benchmarks.testbed.report import markdown, verdicts
from benchmarks.testbed.results import Results
from benchmarks.testbed.spec import FORMAT, CellResult
from benchmarks.testbed.summary import row_values
from benchmarks.testbed.tuning import QUICK
from mlfabric.cli.json_files import check_writable, write_json
from mlfabric.errors import UsageError

__all__ = ["choose", "found_by", "run", "write_report"]

TIME_SEEDS, ACCURACY_SEEDS = 3, 5
MOST_DILATION = 4.0
QUICK_WORKERS = 4
QUICK_SYSTEMS = ("ring", "fabric-async")
QUICK_S = 5.0
PROBE_BPS = 10_000_000


def run(
    choice: Choice, *, results: Path, json_file: Path | None, report: Path | None
) -> tuple[Sequence[tuple[str, str, str, str]], Sequence[str]]:
    """Measure what is not there yet and write figures and report.

    Args:
        choice: what is measured, see :func:`choose`.
        results: folder of finished runs.
        json_file, report: where the figures and the report go, if anywhere.

    Returns:
        Of each row its title, our figure, the paper's and whether it is reached; and a line for each run that failed.

    Raises:
        UsageError: figures or report cannot be written.
        UnavailableError: namespaces cannot be made here, or the digits are not there.
        FabricError: the first run failed, or several in a row.
    """
    check_writable(json_file)
    _check_folder(report)
    with testbed(["here"], link_bps=PROBE_BPS):
        pass  # hosts can be made: better known before hours are spent
    campaign = Campaign(choice=choice, kept=Results(results), told=_tell)
    campaign.run()
    predicted = predictions(campaign.results, campaign.kept, _tell)
    measured = Measured(campaign.results, predicted)
    found = found_by(campaign, measured)
    write_json(json_file, found)
    if report is not None:
        write_report(report, found, measured)
    return list(verdicts(found["rows"])), campaign.failed


def choose(
    *,
    cells: str,
    systems: str,
    seeds: int,
    accuracy_seeds: int | None,
    duration_s: float | None,
    dilation: float,
    workers: int | None,
    target: float,
    server_weather: bool,
    quick: bool,
    afresh: bool,
) -> Choice:
    """Return what is to be measured.

    Args:
        cells, systems: names with commas between; empty for all. Each system is measured in its own of these cells.
        seeds: how many of each; 1 to 10.
        accuracy_seeds: how many where accuracies are compared; None for 5, or as many as ``seeds`` if that is below 3.
        duration_s: of each run, undilated; None for as long as the ring needs, see ``run_ends``.
        dilation: by how much all time constants are stretched; 1 or more.
        workers: 2 to 200; None for the paper's.
        target: accuracy to be reached; between 0 and 1.
        server_weather: whether the rates of servers' links change too.
        quick: one cell, two systems, few workers, seconds: to see that it works.
        afresh: measure again what is there already.

    Raises:
        UsageError: something given cannot be.
    """
    if accuracy_seeds is None:
        accuracy_seeds = max(seeds, ACCURACY_SEEDS) if seeds >= TIME_SEEDS else seeds
    for given, good, allowed in (
        (f"--seeds {seeds}", 1 <= seeds <= MOST_VALUES, f"1 to {MOST_VALUES}"),
        (f"--accuracy-seeds {accuracy_seeds}", 1 <= accuracy_seeds <= MOST_VALUES, f"1 to {MOST_VALUES}"),
        (f"--target {target}", 0 < target < 1, "between 0 and 1"),
        (f"--dilation {dilation}", dilation >= 1, "1 or more"),
        (f"--duration {duration_s}", duration_s is None or duration_s > 0, "more than 0"),
        (f"--workers {workers}", workers is None or 2 <= workers <= 200, "2 to 200"),
    ):
        if not good:
            raise UsageError(f"{given}; allowed: {allowed}")
    chosen_cells = tuple(cell_named(name) for name in cells.split(",")) if cells else ALL_CELLS
    chosen_systems = tuple(system_named(name) for name in systems.split(",")) if systems else tuple(SYSTEMS.values())
    if not quick:
        return Choice(
            cells=chosen_cells,
            systems=chosen_systems,
            seeds=tuple(range(seeds)),
            accuracy_seeds=tuple(range(accuracy_seeds)),
            duration_s=duration_s,
            dilation=dilation,
            most_dilation=max(dilation, MOST_DILATION),
            workers=workers or reference.WORKERS,
            target=target,
            server_weather=server_weather,
            afresh=afresh,
        )
    cell = chosen_cells[0]
    return Choice(
        cells=(cell,),
        systems=chosen_systems if systems else tuple(SYSTEMS[name] for name in QUICK_SYSTEMS),
        seeds=(0,),
        accuracy_seeds=(),
        duration_s=duration_s or QUICK_S,
        dilation=dilation,
        most_dilation=dilation,
        workers=workers or QUICK_WORKERS,
        target=target,
        server_weather=server_weather,
        effort=QUICK,
        probe_cell=cell,
        probe_s=QUICK_S / 2,
        afresh=afresh,
    )


def found_by(campaign: Campaign, measured: Measured) -> dict[str, Any]:
    """Return everything that was found, as plain values."""
    choice = campaign.choice
    return {
        "format": FORMAT,
        "settings": {
            "workers": choice.workers,
            "model": choice.model,
            "batch_size": choice.batch_size,
            "wire_s": choice.wire_s,
            "target": choice.target,
            "targets": list(choice.targets),
            "server_weather": choice.server_weather,
            "seeds": len(choice.seeds),
            "accuracy_seeds": len(choice.accuracy_seeds),
            "cells": [cell.name for cell in choice.cells],
            "systems": [system.name for system in choice.systems],
            "dilations": sorted({result.spec.dilation for result in measured.all}),
        },
        "git_revisions": sorted({result.machine.git_revision for result in measured.all}),
        "rows": row_values(measured, choice.target),
        "tuning": {name: tuning.as_json() for name, tuning in campaign.tunings.items()},
        "runs": [_run_values(result, choice.targets, measured) for result in measured.all],
        "failed": campaign.failed,
    }


def write_report(folder: Path, found: dict[str, Any], measured: Measured) -> None:
    """Write ``report.md`` and its pictures.

    Raises:
        UsageError: the folder cannot be written, or matplotlib is not installed.
    """
    draw_accuracy(measured, found["settings"]["target"], folder / ACCURACY)
    draw_ratios(found["rows"], folder / RATIOS)
    (folder / "report.md").write_text(markdown(found, (ACCURACY, RATIOS)), encoding="utf-8")


def _run_values(result: CellResult, targets: Sequence[float], measured: Measured) -> dict[str, Any]:
    """Return what the table shows of one run; its file has the rest."""
    spec, machine = result.spec, result.machine
    return {
        "file": spec.file_name,
        "cell": spec.cell.name,
        "system": spec.system,
        "seed": spec.seed,
        "dilation": spec.dilation,
        "duration_s": spec.duration_s,
        "delay_bound": spec.delay_bound,
        "model": spec.model,
        "report_every_s": spec.report_every_s,
        "backup": spec.backup,
        "lead_updates": spec.lead_updates,
        "learning_rate": spec.learning_rate,
        "momentum": spec.momentum,
        "seconds_per_iteration": result.seconds_per_iteration,
        "seconds_per_iteration_of_twin": measured.predicted.get(spec.file_name),
        "gradients_per_second": result.gradients_per_second,
        "rounds_per_second": result.rounds / result.elapsed_s,
        "gradients_by_worker": result.commits.by_worker(spec.workers),
        "seconds_to": {f"{target:g}": result.curve.time_to(target) for target in targets},
        "gradients_to": {f"{target:g}": result.curve.gradients_to(target) for target in targets},
        "accuracy_at_end": result.curve.at_end(),
        "dropped_share": result.dropped_share,
        "cpu_used_share": machine.cpu_used_share,
        "cpu_saturated_share": machine.cpu_saturated_share,
        "saturated": machine.saturated,
        "overrun_share": machine.overrun_share,
        "wall_s": machine.wall_s,
        "git_revision": machine.git_revision,
    }


def _check_folder(report: Path | None) -> None:
    """Find out before hours are spent that the report can be written."""
    try:
        if report is not None:
            report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; give --report what can be written") from error


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
