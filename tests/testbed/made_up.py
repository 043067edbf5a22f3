"""Results of runs that were never made, for tests of what is done with results."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.testbed.cells import cell_named
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.spec import CellResult, CellSpec, Commits, Machine

SPEC = CellSpec(
    system="ring",
    compute="C1",
    network="N1",
    seed=0,
    workers=30,
    dilation=2.0,
    duration_s=60.0,
    learning_rate=0.2,
    momentum=0.5,
    delay_bound=None,
    model="mlp-50k",
    batch_size=32,
    wire_s=0.08,
)

MACHINE = Machine(
    cpu_used_share=0.3,
    cpu_saturated_share=0.0,
    overrun_share=0.0,
    wall_s=70.0,
    git_revision="0123456789ab",
    finished_utc="2026-01-01T00:00:00+00:00",
)


def result_for(
    spec: CellSpec, *, seconds_per_iteration: float = 0.5, accuracy: float = 0.9, saturated: bool = False
) -> CellResult:
    """Return a result whose accuracy grows evenly over twenty iterations, and stays from then on."""
    iterations = 40
    shares = [min(1.0, i / 20) for i in range(iterations + 1)]
    return CellResult(
        spec=spec,
        seconds_per_iteration=seconds_per_iteration,
        gradients_per_second=spec.workers / seconds_per_iteration,
        compute_s=0.15,
        dropped_by_worker=(0,) * spec.workers,
        curve=Curve(
            time_s=tuple(i * seconds_per_iteration for i in range(iterations + 1)),
            gradients=tuple(i * spec.workers for i in range(iterations + 1)),
            accuracy=tuple(accuracy * share for share in shares),
        ),
        commits=Commits(workers=tuple(range(spec.workers)) * 2, delays=(0,) * (2 * spec.workers)),
        machine=replace(MACHINE, cpu_saturated_share=0.5 if saturated else 0.0),
    )


def run_of(system: str, seconds_per_iteration: float = 0.5, *, cell: str = "C1-N1", seed: int = 0) -> CellResult:
    """Return a result of a system in a cell."""
    where = cell_named(cell)
    spec = replace(SPEC, system=system, seed=seed, compute=where.compute, network=where.network)
    return result_for(spec, seconds_per_iteration=seconds_per_iteration)
