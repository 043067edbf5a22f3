"""What a run is told and what it leaves behind: the values that the harness and every system share.

A system is a module of ``benchmarks/testbed/systems``. It has ``worker(place, plan) -> WorkerLog``, which runs on every
worker's host, and, where it needs more than workers, ``SERVICES``: a function ``(place, plan) -> ServerLog`` for each
host that is no worker, by the host's name. All of them are started at once, in any order, and end by themselves. What
takes long and is needed once on a computer, such as compiling, it may do in ``prepare()``, which is called before.

All times are of CLOCK_MONOTONIC, which network namespaces of one computer have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from benchmarks.testbed.networks import Forecast
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.errors import UsageError
from mlfabric.twin.settings import ComputeSetting

__all__ = [
    "BASE_COMPUTE_S",
    "NS_PER_S",
    "REPORT_EVERY_S",
    "Backup",
    "BackupCost",
    "BackupKind",
    "Consistency",
    "Forwarded",
    "Goal",
    "Place",
    "RunPlan",
    "ServerLog",
    "Service",
    "Snapshot",
    "Worker",
    "WorkerLog",
    "worker_name",
]

NS_PER_S = 1_000_000_000
BASE_COMPUTE_S = 0.1
REPORT_EVERY_S = 0.2
"""How often the fabric's monitor tells the scheduler what links carry, undilated: the paper's reporting lag."""


class Consistency(Enum):
    """When a worker's gradient takes effect: in a step of all workers, of its own, or of those in its round."""

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    ROUNDS = "rounds"


class BackupKind(Enum):
    """How the model outlives its server."""

    NONE = "none"
    REPLICA = "replica"
    CHAIN = "chain"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """How the model outlives its server, and how far it may be ahead of that.

    Args:
        lead_updates: how many updates a crash may cost, >= 0; a chain allows none.
    """

    kind: BackupKind = BackupKind.NONE
    lead_updates: int = 0

    def __post_init__(self) -> None:
        allows_lead = self.kind in (BackupKind.REPLICA, BackupKind.CHECKPOINT)
        least = int(self.kind is BackupKind.CHECKPOINT)
        if self.lead_updates < least or (self.lead_updates and not allows_lead):
            allowed = f"{least} or more" if allows_lead else "0"
            raise UsageError(f"backup by {self.kind.value}: lead_updates={self.lead_updates}; allowed: {allowed}")


def worker_name(rank: int) -> str:
    """Return the name of the host of a worker."""
    return f"w{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process of a run is, and where the others are.

    Args:
        name: of its host.
        rank: of the worker, counted from 0; None on a host that is no worker.
        workers: how many there are, on the hosts w0, w1, ...
        addresses: IP address of every host, by its name.
        interface: the network interface that has this host's own address.
        port: on which the processes of the run find each other, on w0 or on the server.
    """

    name: str
    rank: int | None
    workers: int
    addresses: Mapping[str, str]
    interface: str
    port: int = 29500

    @property
    def own_rank(self) -> int:
        """Rank of the worker that runs here.

        Raises:
            UsageError: no worker runs here.
        """
        if self.rank is None:
            raise UsageError(f"host {self.name} has no worker's rank; start services there, workers on w0, w1, ...")
        return self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When a run may end before its time is over: once all of this is so.

    Args:
        least_s: how long it has trained, dilated.
        least_steps: how many steps the worker has done that asks.
        accuracy: of the model on test images, 0 to 1.
    """

    least_s: float = 0.0
    least_steps: int = 0
    accuracy: float = 0.0

    def is_reached(self, trained_s: float, steps: int, accuracy: Callable[[], float]) -> bool:
        """Tell whether the run may end; the accuracy is asked for only once everything else is so."""
        return trained_s >= self.least_s and steps >= self.least_steps and accuracy() >= self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What every process of a run is told.

    Args:
        workload: what is trained.
        compute: how often a step is slow.
        seed: of the stragglers; the workload has its own.
        dilation: by how much every time constant is stretched, >= 1.
        consistency: of systems that know more than one.
        learning_rate: of a synchronous step, which is along the mean of all workers' gradients, > 0.
        momentum: 0 to below 1.
        duration_s: how long to train at most, counted from when all processes are ready, > 0.
        goal: which ends the run earlier, at systems in which a worker has the model; None for no such end.
        max_steps: end earlier, once a worker has done so many; None for no such end.
        base_compute_s: time of an undilated step that is not slow, >= 0.
        delay_bound: of an asynchronous run, in updates, where the system has one; None for none.
        link_bps: full rate of every link in bit/s, as its users know it, > 0.
        report_every_s: how often the fabric's monitor reports what links carry, undilated, > 0.
        backup: of the fabric's server.
        wrapped: arguments of ``mlfabric.wrap``, for systems that train with it or with the same elsewhere.
        members: how many workers take part at a time, of systems that shut some out; 0 for all.
        forecast: what links will carry, for systems that are told; None as long as no weather has begun.
    """

    workload: WorkloadSpec
    compute: ComputeSetting
    seed: int
    dilation: float = 1.0
    consistency: Consistency = Consistency.SYNCHRONOUS
    learning_rate: float
    momentum: float
    duration_s: float
    goal: Goal | None = None
    max_steps: int | None = None
    base_compute_s: float = BASE_COMPUTE_S
    delay_bound: int | None = None
    link_bps: int = 10**10
    report_every_s: float = REPORT_EVERY_S
    backup: Backup = field(default_factory=Backup)
    wrapped: Mapping[str, object] = field(default_factory=dict)
    members: int = 0
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        for given, good, allowed in (
            (f"dilation={self.dilation}", self.dilation >= 1, "1 or more"),
            (f"learning_rate={self.learning_rate}", self.learning_rate > 0, "more than 0"),
            (f"momentum={self.momentum}", 0 <= self.momentum < 1, "0 to below 1"),
            (f"duration_s={self.duration_s}", self.duration_s > 0, "more than 0"),
            (f"max_steps={self.max_steps}", self.max_steps is None or self.max_steps > 0, "None or more than 0"),
            (f"link_bps={self.link_bps}", self.link_bps > 0, "more than 0"),
            (f"report_every_s={self.report_every_s}", self.report_every_s > 0, "more than 0"),
            (f"base_compute_s={self.base_compute_s}", self.base_compute_s >= 0, "0 or more"),
        ):
            if not good:
                raise UsageError(f"plan of a run: {given}; allowed: {allowed}")

    def step_size(self, workers: int) -> float:
        """Return what one update is multiplied with: all workers' mean in synchronous runs, else one worker's gradient.

        ``workers`` asynchronous updates move the model as far as one synchronous step of the same gradients.
        """
        return self.learning_rate / (workers if self.consistency is Consistency.ASYNCHRONOUS else 1)

    def is_over(self, began_ns: int, now_ns: int, steps: int, accuracy: Callable[[], float] | None = None) -> bool:
        """Tell whether a worker that has done ``steps`` is to begin no further one.

        Args:
            accuracy: of the worker's model; only a worker that has the model and is to judge it gives this.
        """
        trained_s = (now_ns - began_ns) / NS_PER_S
        if trained_s >= self.duration_s or (self.max_steps is not None and steps >= self.max_steps):
            return True
        return self.goal is not None and accuracy is not None and self.goal.is_reached(trained_s, steps, accuracy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The model at one moment, to be evaluated after the run.

    Args:
        time_ns: when.
        updates: how many steps the model has taken: in synchronous runs of all workers together, in systems of rounds
            of those in a round, else of single ones.
        weights: float32, flat.
    """

    time_ns: int
    updates: int
    weights: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forwarded:
    """Updates, and sums of them, that were sent to a host to be added to others there; an element for each.

    Args:
        to: name of the host.
        began_ns: int64; when the first byte was on its way.
        n_bytes: int64; how many there were.
    """

    to: str
    began_ns: np.ndarray
    n_bytes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupCost:
    """What a server's backup took.

    Args:
        n_bytes: that went to the replica after its seed, or into checkpoints.
        times: how many checkpoints were written.
        disk_s: how long a model of the paper's size takes to the disk, undilated; 0 where none is used.
    """

    n_bytes: int
    times: int = 0
    disk_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerLog:
    """What one worker did; the arrays have an element for each of its steps.

    Args:
        rank: whose log it is.
        began_ns: when all processes were ready.
        started_ns, computed_ns, ended_ns: int64; a step starts with its gradient and ends when the worker has the model
            for the next one.
        losses: float32; of the step's batch.
        overruns: how many steps computed longer than they were to, which means that the CPU decided.
        snapshots: of the model, from few workers of systems without a server.
        applied_ns, delays: int64 and int32; when the model took an update of this worker, and with which delay; an
            element for each that it took, in systems in which no server's log says so.
        rounds: int64; the number of the round in which each of them was, in systems of rounds.
        dropped: how many updates of this worker were turned away.
        forwarded: what was sent from here to where it was added to other updates, or came here for that; all workers of
            a system say the one or the other. None in systems that add up nothing on the way.
    """

    rank: int
    began_ns: int
    started_ns: np.ndarray
    computed_ns: np.ndarray
    ended_ns: np.ndarray
    losses: np.ndarray
    overruns: int
    snapshots: tuple[Snapshot, ...] = ()
    applied_ns: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    delays: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    rounds: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    dropped: int = 0
    forwarded: Forwarded | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerLog:
    """What a server did; the arrays have an element for each gradient that it took.

    Args:
        began_ns: when all workers were there.
        applied_ns: int64; when the model had taken the gradient.
        workers: int32; whose gradient it was.
        delays: int32; how many updates the model had taken since the worker read it. All 0 in synchronous runs.
        snapshots: of the model.
        backup: what the model's backup took; None if there was none.
    """

    began_ns: int
    applied_ns: np.ndarray
    workers: np.ndarray
    delays: np.ndarray
    snapshots: tuple[Snapshot, ...]
    backup: BackupCost | None = None


Worker = Callable[[Place, RunPlan], WorkerLog]
Service = Callable[[Place, RunPlan], ServerLog]
