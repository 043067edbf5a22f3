"""One run of the paper's table: what it is asked to do and what it found, as values that survive a JSON file unchanged.

Every time of a result is divided by the run's dilation, so that runs of different dilation can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.testbed.catalogue import SYSTEMS, System
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.runs import REPORT_EVERY_S, BackupCost, BackupKind
from mlfabric.errors import UsageError

__all__ = [
    "FORMAT",
    "SATURATED_SHARE",
    "CellResult",
    "CellSpec",
    "Commits",
    "ForwardedByRate",
    "Machine",
    "result_from",
]

FORMAT = 4
"""Of a result's file and of the harness: results of another format are measured anew."""

SATURATED_SHARE = 0.05
"""A run counts if all cores were saturated in no greater share of its time."""


_BACKUPS = tuple(kind.value for kind in BackupKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """What one run is asked to do.

    Args:
        system: its name in the catalogue.
        compute, network: names of settings, as C1 and N2.
        seed: of the model's start, batches, stragglers and weather; runs of equal seed are pairs.
        workers: how many, 2 or more.
        dilation: by how much every time constant is stretched, 1 or more.
        duration_s: of training at most, dilated: seconds that pass.
        learning_rate: of a synchronous step; momentum: 0 to below 1.
        delay_bound: of an asynchronous system that has one, in updates; None for none.
        model, batch_size: what is trained, and with how many images a step.
        wire_s: time that one model takes over one full-rate link, undilated; it settles the links' rate.
        server_weather: whether the rates of a server's and a replica's link change too, as the workers' do; else they
            keep the full rate, which is what the ideal assumes.
        report_every_s: how often the fabric's monitor reports what links carry, undilated.
        backup: how the fabric's model outlives its server: a value of ``BackupKind``.
        lead_updates: how many updates a crash of the server may cost then.
        least_s, least_steps, accuracy: once all of them are reached the run ends before its duration, see ``Goal``; an
            accuracy of 0 asks for no earlier end.
    """

    system: str
    compute: str
    network: str
    seed: int
    workers: int
    dilation: float
    duration_s: float
    learning_rate: float
    momentum: float
    delay_bound: int | None
    model: str
    batch_size: int
    wire_s: float
    server_weather: bool = False
    report_every_s: float = REPORT_EVERY_S
    backup: str = BackupKind.NONE.value
    lead_updates: int = 0
    least_s: float = 0.0
    least_steps: int = 0
    accuracy: float = 0.0

    def __post_init__(self) -> None:
        for given, good, allowed in (
            (f"workers={self.workers}", 2 <= self.workers <= 200, "2 to 200"),
            (f"dilation={self.dilation}", self.dilation >= 1, "1 or more"),
            (f"duration_s={self.duration_s}", self.duration_s > 0, "more than 0"),
            (f"wire_s={self.wire_s}", self.wire_s > 0, "more than 0"),
            (f"report_every_s={self.report_every_s}", self.report_every_s > 0, "more than 0"),
            (f"backup={self.backup!r}", self.backup in _BACKUPS, ", ".join(_BACKUPS)),
            (f"system={self.system!r}", self.system in SYSTEMS, ", ".join(SYSTEMS)),
        ):
            if not good:
                raise UsageError(f"run of a cell: {given}; allowed: {allowed}")

    @property
    def cell(self) -> Cell:
        """Where it runs."""
        return Cell(compute=self.compute, network=self.network)

    @property
    def entry(self) -> System:
        """Its system's row in the catalogue."""
        return SYSTEMS[self.system]

    @property
    def file_name(self) -> str:
        """Of its result: readable, and different for every other run."""
        text = json.dumps([FORMAT, asdict(self)], sort_keys=True)
        return f"{self.cell.name}-{self.system}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"

    def link_bps(self, n_parameters: int) -> int:
        """Return the full rate of every link, in bit/s, for a model of so many float32 parameters."""
        return round(n_parameters * 32 / (self.wire_s * self.dilation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """Gradients in the order in which the model took them.

    Args:
        workers: whose each was.
        delays: how many steps the model had made since its worker had read it; 0 in synchronous runs.
        rounds: the number of the round in which each was; empty but for systems of rounds.
    """

    workers: tuple[int, ...]
    delays: tuple[int, ...]
    rounds: tuple[int, ...] = ()

    def by_worker(self, workers: int) -> tuple[int, ...]:
        """Return how many were each worker's."""
        return tuple(int(n) for n in np.bincount(np.array(self.workers, dtype=np.int64), minlength=workers))

    def least_share(self, workers: int) -> float:
        """Return the gradients of the worker that has the fewest, over the mean of all workers."""
        return min(self.by_worker(workers)) * workers / max(1, len(self.workers))

    def by_round(self) -> list[list[tuple[int, int]]]:
        """Return worker and delay of each gradient, round by round in the order of their numbers."""
        found: dict[int, list[tuple[int, int]]] = {number: [] for number in sorted(set(self.rounds))}
        for number, worker, delay in zip(self.rounds, self.workers, self.delays, strict=True):
            found[number].append((worker, delay))
        return list(found.values())

    def delay_quantile(self, share: float) -> float:
        """Return the delay that a share of the gradients did not exceed; 0 where there are none."""
        return float(np.quantile(self.delays, share)) if self.delays else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedByRate:
    """What was sent to be added to other updates on its way, by what the link into that place carried just then.

    Args:
        link_shares: of its full rate that the receiver's down-link had, ascending; the others have an element for each.
        n_bytes: payload bytes.
        messages: transfers: of an update, a sum, or a range of one.
    """

    link_shares: tuple[float, ...]
    n_bytes: tuple[int, ...]
    messages: tuple[int, ...]

    def share_at_most(self, link_share: float) -> float:
        """Return the share of all bytes that went over links with no more than a share of their rate; 0 of none."""
        slow = sum(n for share, n in zip(self.link_shares, self.n_bytes, strict=True) if share <= link_share)
        return slow / max(1, sum(self.n_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this computer did meanwhile.

    Args:
        cpu_used_share: of all cores, from when all processes were ready to the last update.
        cpu_saturated_share: of that time in which all cores were saturated.
        overrun_share: of the steps whose computation took longer than it was to.
        wall_s: of the whole run with its start, not divided by the dilation.
        git_revision: of the checkout, with "+" behind it if files were changed.
        finished_utc: when, in ISO 8601.
    """

    cpu_used_share: float
    cpu_saturated_share: float
    overrun_share: float
    wall_s: float
    git_revision: str
    finished_utc: str

    @property
    def saturated(self) -> bool:
        """Whether the CPU decided, so that the run does not count."""
        return self.cpu_saturated_share > SATURATED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one run found.

    Args:
        seconds_per_iteration: time in which the model took as many gradients as there are workers.
        gradients_per_second: that the model took.
        compute_s: per iteration: mean of the slowest worker's computation in synchronous runs, else of every worker's.
        dropped_by_worker: updates that were turned away.
        curve: accuracy on test images over time.
        slow_curve: the same on the images of those classes that only hosts with slow links train; None where every
            worker trains all classes.
        commits: what the model took, in order.
        forwarded: None of systems that add up nothing on the way.
        backup: what the model's backup took; None if there was none.
    """

    spec: CellSpec
    seconds_per_iteration: float
    gradients_per_second: float
    compute_s: float
    dropped_by_worker: tuple[int, ...]
    curve: Curve
    commits: Commits
    machine: Machine
    forwarded: ForwardedByRate | None = None
    backup: BackupCost | None = None
    slow_curve: Curve | None = None

    @property
    def elapsed_s(self) -> float:
        """How long it trained, undilated."""
        return len(self.commits.workers) / self.gradients_per_second

    @property
    def rounds(self) -> int:
        """How many steps the model made, each of the mean of some gradients: of all workers' in synchronous runs."""
        return len(set(self.commits.rounds)) or len(self.commits.workers) // self.spec.workers

    @property
    def communication_s(self) -> float:
        """Time per iteration in which nothing was computed, or only by others."""
        return self.seconds_per_iteration - self.compute_s

    @property
    def dropped_share(self) -> float:
        """Share of all updates that were turned away."""
        dropped = sum(self.dropped_by_worker)
        return dropped / max(1, dropped + len(self.commits.workers))

    def dropped_share_by_worker(self) -> tuple[float, ...]:
        """Return the share of each worker's updates that was turned away."""
        taken = self.commits.by_worker(self.spec.workers)
        return tuple(d / max(1, d + t) for d, t in zip(self.dropped_by_worker, taken, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return plain values, with the format and whether the run counts."""
        return {"format": FORMAT, "saturated": self.machine.saturated, **asdict(self)}


def result_from(values: Mapping[str, Any]) -> CellResult:
    """Read what ``as_json`` made.

    Raises:
        KeyError, TypeError: it is not that.
    """
    return CellResult(
        spec=CellSpec(**values["spec"]),
        seconds_per_iteration=values["seconds_per_iteration"],
        gradients_per_second=values["gradients_per_second"],
        compute_s=values["compute_s"],
        dropped_by_worker=tuple(values["dropped_by_worker"]),
        curve=Curve(**_tuples(values["curve"])),
        commits=Commits(**_tuples(values["commits"])),
        machine=Machine(**values["machine"]),
        forwarded=None if values["forwarded"] is None else ForwardedByRate(**_tuples(values["forwarded"])),
        backup=None if values["backup"] is None else BackupCost(**values["backup"]),
        slow_curve=None if values["slow_curve"] is None else Curve(**_tuples(values["slow_curve"])),
    )


def _tuples(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {key: tuple(row) for key, row in values.items()}
