"""All runs of a table, one after the other: tuned before, kept when finished, skipped when they are there already.

A run in which all cores were saturated does not count. Its cell is then begun anew, all systems of it that train the
same model, with the next greater dilation, up to a limit; ratios are of runs of one dilation only. Such runs are not
skipped when the command is called again, as it may have been other work that kept the cores busy.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import ACCURACY_SYSTEMS, RING, SYSTEMS, Bound, System
from benchmarks.testbed.cell import run_cell
from benchmarks.testbed.cells import ACCURACY_CELLS, Cell
from benchmarks.testbed.results import Results
from benchmarks.testbed.run_ends import End, at, end_of, expected_s
from benchmarks.testbed.runs import Consistency
from benchmarks.testbed.spec import FORMAT, CellResult, CellSpec, Commits
from benchmarks.testbed.tuning import FULL, Effort, Inner, Setting, Tuning, search
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.errors import FabricError
from mlfabric.worker_daemon.local_steps import DILOCO_LR, DILOCO_MOMENTUM

__all__ = ["Campaign", "Choice"]

PROBE_S = 20.0
PROBE_CELL = Cell(compute="C2", network="N2")
PROBE_SEED = 1000
OVERHEAD_S = 15.0
FLOAT32_BYTES = 4
MOST_FAILURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is measured, and how.

    Args:
        seeds: of each system in each cell.
        accuracy_seeds: the same for the systems of ``ACCURACY_SYSTEMS`` in the cells of ``ACCURACY_CELLS``.
        duration_s: of each run, undilated; None for as long as the ring needs, see ``run_ends``.
        dilation: to begin with; most_dilation: how far it is raised where runs do not count.
        target: accuracy to be reached, 0 to 1; see also ``targets``.
        effort: how much is tried to tune each system.
        probe_cell: in which delays for tuning are recorded.
        server_weather: whether the rates of servers' links change too.
        afresh: measure again what is there already.
    """

    cells: tuple[Cell, ...]
    systems: tuple[System, ...]
    seeds: tuple[int, ...]
    accuracy_seeds: tuple[int, ...]
    duration_s: float | None
    dilation: float
    most_dilation: float
    workers: int
    target: float
    effort: Effort = FULL
    probe_cell: Cell = PROBE_CELL
    probe_s: float = PROBE_S
    afresh: bool = False
    model: str = "mlp-50k"
    batch_size: int = 32
    wire_s: float = 0.08
    server_weather: bool = False

    @property
    def targets(self) -> tuple[float, ...]:
        """The accuracies to be reached, ascending: the last one is what runs go on to and rates are tuned for."""
        return tuple(sorted({self.target, reference.FURTHER_TARGET}))

    def duration_of(self, cell: Cell, system: System) -> float:
        """Return about how long a run of a system in a cell trains, undilated."""
        return self.duration_s if self.duration_s is not None else expected_s(cell, system, self.dilation)

    def runs_in(self, cell: Cell) -> list[tuple[int, System]]:
        """Return seeds and systems of all runs in a cell, in the order in which they are made."""
        seeds = sorted({*self.seeds, *(self.accuracy_seeds if cell.name in ACCURACY_CELLS else ())})
        return [
            (seed, system)
            for seed in seeds
            for system in self.systems
            if system.is_measured_in(cell) and (seed in self.seeds or system.name in ACCURACY_SYSTEMS)
        ]


@dataclass(slots=True, kw_only=True)
class Campaign:
    """One call of the command.

    Args:
        told: is given a line of text for everything that happens.
        run_one: makes a run.

    Attributes:
        results: of the runs that were chosen, in the order in which they were made or found.
        failed: a line for each run that failed.
    """

    choice: Choice
    kept: Results
    told: Callable[[str], None]
    run_one: Callable[[CellSpec], CellResult] = run_cell
    results: list[CellResult] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    tunings: dict[str, Tuning] = field(default_factory=dict)
    _untunable: set[str] = field(default_factory=set)
    _done: int = 0
    _failures_in_a_row: int = 0

    def run(self) -> None:
        """Make all runs that are not there.

        Raises:
            UnavailableError: namespaces cannot be made here, or the digits are not there.
            FabricError: the first run failed, or several in a row; the last one's fault.
        """
        for cell in self.choice.cells:
            for model in dict.fromkeys(system.model for _, system in self.choice.runs_in(cell)):
                self._run_comparable(cell, model)

    def _run_comparable(self, cell: Cell, model: str) -> None:
        """Make all runs of a cell that are compared with one another, at one dilation."""
        dilation, done = self.choice.dilation, self._done
        while not self._counts(cell, model, dilation):
            dilation, self._done = min(self.choice.most_dilation, dilation + 1), done
            self.told(f"{cell.name}: a run does not count, all cores were saturated; again, dilated {dilation:g}x")

    def _counts(self, cell: Cell, model: str, dilation: float) -> bool:
        """Make a cell's runs of one model; False, and no more of them, once one would count with more dilation only."""
        for spec in self._specs(cell, model, dilation):
            result = self._found_or_made(spec)
            if result is not None:
                self.results.append(result)
                if result.machine.saturated and dilation < self.choice.most_dilation:
                    return False
        return True

    def _specs(self, cell: Cell, model: str, dilation: float) -> Iterator[CellSpec]:
        for seed, system in self.choice.runs_in(cell):
            if system.model != model:
                continue
            setting = self._setting_of(system)
            if setting is not None:
                yield self._spec(cell, system, seed, dilation, setting)

    def _spec(self, cell: Cell, system: System, seed: int, dilation: float, setting: Setting) -> CellSpec:
        choice = self.choice
        return CellSpec(
            system=system.name,
            compute=cell.compute,
            network=cell.network,
            seed=seed,
            workers=choice.workers,
            dilation=dilation,
            **self._end_of(cell, system, seed, dilation),
            learning_rate=setting.learning_rate,
            momentum=setting.momentum,
            delay_bound=self._bound(system, cell),
            model=system.model or choice.model,
            batch_size=choice.batch_size,
            wire_s=choice.wire_s,
            server_weather=choice.server_weather,
            report_every_s=system.report_every_s,
            backup=system.backup.value,
            lead_updates=system.lead_per_worker * choice.workers,
        )

    def _end_of(self, cell: Cell, system: System, seed: int, dilation: float) -> End:
        if self.choice.duration_s is not None:
            return at(self.choice.duration_s * dilation)
        wanted = (RING, cell, seed, dilation)
        rings = (
            run
            for run, spec in ((run, run.spec) for run in self.results)
            if (spec.system, spec.cell, spec.seed, spec.dilation) == wanted
        )
        return end_of(cell, system, next(rings, None), dilation=dilation, accuracy=self.choice.targets[-1])

    def _setting_of(self, system: System) -> Setting | None:
        """Return a system's learning rate and momentum; None if the run failed that its tuning needs."""
        if not system.tuned_as:
            return Setting(
                learning_rate=self.choice.workers, momentum=0.0
            )  # all workers' changes are added as they are
        tuning = self._tuned_if_possible(system)
        return None if tuning is None else tuning.best

    def _bound(self, system: System, cell: Cell) -> int | None:
        match system.bound:
            case Bound.NONE:
                return None
            case Bound.WORKERS:
                return self.choice.workers
            case Bound.ADVISED:
                return self._advised(cell)

    def _advised(self, cell: Cell) -> int | None:
        from benchmarks.testbed.advice import advised_bound

        choice = self.choice
        workload = WorkloadSpec(model=choice.model, batch_size=choice.batch_size, seed=0).build()
        return advised_bound(
            cell,
            workers=choice.workers,
            wire_s=choice.wire_s,
            model_bytes=workload.n_parameters * FLOAT32_BYTES,
            server_weather=choice.server_weather,
        )

    def _found_or_made(self, spec: CellSpec) -> CellResult | None:
        """Return a run's result; None if it failed."""
        self._done += 1
        name = f"{spec.cell.name} {spec.entry.name} seed {spec.seed}"
        found = None if self.choice.afresh else self.kept.find(spec)
        if found is not None and not found.machine.saturated:
            self.told(f"{self._count()} {name}: there already, {_in_short(found)}")
            return found
        lasts_s = self.choice.duration_of(spec.cell, spec.entry) * spec.dilation
        self.told(f"{self._count()} {name}: about {lasts_s:.0f} s at {spec.dilation:g}x; {self._left_text()} left")
        return self._made(spec, name)

    def _made(self, spec: CellSpec, name: str) -> CellResult | None:
        try:
            result = self.run_one(spec)
        except FabricError as error:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= MOST_FAILURES or not self.results:
                raise
            self.failed.append(f"{name}: {str(error).splitlines()[0]}")
            self.told(f"    failed: {error}")
            return None
        self._failures_in_a_row = 0
        self.kept.keep(result)
        self.told(f"    {_in_short(result)}")
        return result

    def _tuned_if_possible(self, system: System) -> Tuning | None:
        """Return a system's tuning; None, and the fault told once, if the run failed that it needs."""
        if system.tuned_as in self._untunable:
            return None
        try:
            return self._tuned(system)
        except FabricError as error:
            self._untunable.add(system.tuned_as)
            self.failed.append(f"tuning of {system.tuned_as}: {str(error).splitlines()[0]}")
            self.told(f"    failed: {error}")
            return None

    def _tuned(self, system: System) -> Tuning:
        """Return a system's learning rate and momentum, searched for once."""
        name = system.tuned_as
        if name not in self.tunings:
            file = f"tuning-{name}-{self._tuning_key()}.json"
            values = None if self.choice.afresh else self.kept.read(file)
            if values is None:
                self.tunings[name] = self._searched(SYSTEMS[name])
                self.kept.write(file, self.tunings[name].as_json())
            else:
                self.tunings[name] = Tuning.from_json(values)
        return self.tunings[name]

    def _tuning_key(self) -> str:
        """Return what differs if tuning would."""
        choice = self.choice
        told = (
            FORMAT,
            choice.workers,
            choice.targets,
            choice.model,
            choice.batch_size,
            choice.wire_s,
            choice.server_weather,
            choice.effort,
        )
        return hashlib.sha256(repr(told).encode()).hexdigest()[:10]

    def _searched(self, system: System) -> Tuning:
        choice = self.choice
        began = time.monotonic()
        inner = _inner_of(system)
        is_late = system.consistency is not Consistency.SYNCHRONOUS and inner is None
        tuning = search(
            WorkloadSpec(model=choice.model, batch_size=choice.batch_size, seed=0),
            self._recorded(system) if is_late else None,
            workers=choice.workers,
            targets=choice.targets,
            momentum_at=system.momentum_at,
            inner=inner,
            effort=choice.effort,
        )
        self.told(
            f"tuned {system.name}: learning rate {tuning.best.learning_rate:g}, momentum {tuning.best.momentum:g} "
            f"({len(tuning.tried)} settings, {time.monotonic() - began:.0f} s)"
        )
        return tuning

    def _recorded(self, system: System) -> Commits:
        """Return from a short run in which order and rounds a system's gradients take effect, and how late."""
        middle = self.choice.effort.grid[len(self.choice.effort.grid) // 2]
        dilation = self.choice.dilation
        spec = self._spec(self.choice.probe_cell, system, PROBE_SEED, dilation, middle)
        spec = replace(spec, **at(self.choice.probe_s * dilation))
        found = None if self.choice.afresh else self.kept.find(spec)
        if found is None:
            self.told(f"recording the delays of {system.name} for {spec.duration_s:g} s, to tune it")
            found = self.run_one(spec)
            self.kept.keep(found)
        return found.commits

    def _count(self) -> str:
        cells = self.choice.cells
        return f"[{self._done}/{sum(len(self.choice.runs_in(cell)) for cell in cells)}]"

    def _left_text(self) -> str:
        """Return how long the runs take that are not done, this one included, if none is there already."""
        choice = self.choice
        per_run = [
            choice.duration_of(cell, system) * choice.dilation + OVERHEAD_S
            for cell in choice.cells
            for _, system in choice.runs_in(cell)
        ]
        minutes = sum(per_run[self._done - 1 :]) / 60
        return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _inner_of(system: System) -> Inner | None:
    """Return the steps that a system's workers make by themselves, if they do."""
    match system.wrapped:
        case {"method": "diloco", "inner_steps": int(steps)}:
            return Inner(steps=steps, learning_rate=DILOCO_LR, momentum=DILOCO_MOMENTUM)
        case {"inner_steps": int(steps)}:
            return Inner(steps=steps)
    return None


def _in_short(result: CellResult) -> str:
    machine = result.machine
    void = "; VOID: all cores were saturated" if machine.saturated else ""
    return (
        f"{result.seconds_per_iteration:.3f} s/iteration, accuracy {result.curve.at_end():.3f}, "
        f"CPU {machine.cpu_used_share:.0%}{void}"
    )
