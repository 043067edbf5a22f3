"""What the paper's table compares: its nine cells, and the systems by name, each with where it is and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any

from benchmarks.testbed.runs import REPORT_EVERY_S, BackupKind, Consistency
from mlfabric.errors import UsageError
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = [
    "ACCURACY_CELLS",
    "ACCURACY_SYSTEMS",
    "BACKUP_CELL",
    "CELLS",
    "LAG_CELLS",
    "LDA_CELL",
    "SYSTEMS",
    "Bound",
    "Cell",
    "MomentumAt",
    "System",
    "cell_named",
    "system_named",
]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One combination of a compute and a network setting, by their names.

    Raises:
        UsageError: there is no such setting.
    """

    compute: str
    network: str

    def __post_init__(self) -> None:
        if self.compute not in COMPUTE or self.network not in NETWORK:
            raise UsageError(
                f"cell {self.name}; allowed: one of {', '.join(COMPUTE)}, a dash, one of {', '.join(NETWORK)}, as C1-N2"
            )

    @property
    def name(self) -> str:
        """As the paper writes it: C1-N2."""
        return f"{self.compute}-{self.network}"


CELLS = tuple(
    Cell(compute=compute, network=network) for compute in ("C1", "C2", "C3") for network in ("N1", "N2", "N3")
)
"""The paper's nine, in the order in which its tables give them: by compute setting, then by network."""

ACCURACY_CELLS = ("C1-N1", "C2-N2", "C3-N3")
"""Where accuracies are compared: every setting once, with more seeds than times need."""

LDA_CELL = "C1-N1"
"""Where topics are found, as in the paper."""

BACKUP_CELL = "C1-N1"
"""Where backups of the server are compared."""

LAG_CELLS = ("C1-N2", "C2-N2", "C3-N2")
"""Where the monitor's reports come late."""


class MomentumAt(Enum):
    """Who keeps the velocity of asynchronous training; in synchronous training both come to the same."""

    SERVER = "server"
    WORKERS = "workers"


class Bound(Enum):
    """Where a system's delay bound comes from."""

    NONE = "none"
    WORKERS = "as many updates as there are workers"
    ADVISED = "what `mlfabric advise` picks for the cell"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way to train.

    Args:
        name: as it is chosen and as files are named.
        label: for people.
        module: in ``benchmarks/testbed/systems``.
        tuned_as: name of the system whose learning rate and momentum it takes: its own, or one that makes the very same
            steps on another network path; "" where there is nothing to tune.
        momentum_at: who keeps its velocity.
        cells: in which it is measured; none for all.
        report_every_s: how often the fabric's monitor reports, undilated.
        backup: how the fabric's model outlives its server.
        lead_per_worker: how many updates a crash of the server may cost then, over the number of workers.
        model: what is trained instead of the table's; "" for that.
    """

    name: str
    label: str
    module: str
    consistency: Consistency
    tuned_as: str = ""
    bound: Bound = Bound.NONE
    momentum_at: MomentumAt = MomentumAt.SERVER
    cells: tuple[str, ...] = ()
    report_every_s: float = REPORT_EVERY_S
    backup: BackupKind = BackupKind.NONE
    lead_per_worker: int = 0
    model: str = ""

    def load(self) -> Any:
        """Import its module."""
        return import_module(f"benchmarks.testbed.systems.{self.module}")

    def is_measured_in(self, cell: Cell) -> bool:
        """Tell whether the table has it in a cell."""
        return not self.cells or cell.name in self.cells


def _systems() -> Mapping[str, System]:
    synchronous, asynchronous = Consistency.SYNCHRONOUS, Consistency.ASYNCHRONOUS
    rows = (
        System(name="ring", label="ring all-reduce", module="ring", consistency=synchronous, tuned_as="ring"),
        System(
            name="tree",
            label="static tree",
            module="tree",
            consistency=synchronous,
            tuned_as="ring",
            cells=("C2-N2",),
        ),
        System(
            name="ps-sync",
            label="vanilla synchronous server",
            module="parameter_server",
            consistency=synchronous,
            tuned_as="ring",
        ),
        System(
            name="ps-async",
            label="vanilla asynchronous server",
            module="parameter_server",
            consistency=asynchronous,
            tuned_as="ps-async",
        ),
        System(
            name="fabric-sync",
            label="mlfabric synchronous",
            module="fabric",
            consistency=synchronous,
            tuned_as="ring",
        ),
        System(
            name="fabric-async",
            label="mlfabric asynchronous, bound = workers",
            module="fabric",
            consistency=asynchronous,
            tuned_as="fabric-async",
            bound=Bound.WORKERS,
            momentum_at=MomentumAt.WORKERS,
        ),
        System(
            name="fabric-advised",
            label="mlfabric asynchronous, bound as advised",
            module="fabric",
            consistency=asynchronous,
            tuned_as="fabric-advised",
            bound=Bound.ADVISED,
            momentum_at=MomentumAt.WORKERS,
        ),
        System(
            name="fabric-lag",
            label="mlfabric asynchronous, monitor reports every 2 s",
            module="fabric",
            consistency=asynchronous,
            tuned_as="fabric-async",
            bound=Bound.WORKERS,
            momentum_at=MomentumAt.WORKERS,
            cells=LAG_CELLS,
            report_every_s=10 * REPORT_EVERY_S,
        ),
        *_overlapping(),
        *_with_backups(),
        *_finding_topics(),
    )
    return MappingProxyType({system.name: system for system in rows})


def _overlapping() -> tuple[System, ...]:
    """Return the systems whose communication overlaps with their own step, bucket by bucket."""
    return (
        System(
            name="ring-overlap",
            label="ring all-reduce, overlapped as DDP does",
            module="ring_overlap",
            consistency=Consistency.SYNCHRONOUS,
            tuned_as="ring",
        ),
        System(
            name="fabric-sync-overlap",
            label="mlfabric synchronous, overlapped",
            module="fabric_overlap",
            consistency=Consistency.SYNCHRONOUS,
            tuned_as="ring",
        ),
        System(
            name="fabric-overlap",
            label="mlfabric asynchronous, bound = workers, overlapped",
            module="fabric_overlap",
            consistency=Consistency.ASYNCHRONOUS,
            tuned_as="fabric-overlap",
            bound=Bound.WORKERS,
            momentum_at=MomentumAt.WORKERS,
        ),
    )


def _with_backups() -> tuple[System, ...]:
    """Return the asynchronous fabric with each kind of backup."""

    def one(name: str, label: str, module: str, backup: BackupKind, lead_per_worker: int = 0) -> System:
        return System(
            name=name,
            label=label,
            module=module,
            consistency=Consistency.ASYNCHRONOUS,
            tuned_as="fabric-async",
            bound=Bound.WORKERS,
            momentum_at=MomentumAt.WORKERS,
            cells=(BACKUP_CELL,),
            backup=backup,
            lead_per_worker=lead_per_worker,
        )

    replica, chain, checkpoint = BackupKind.REPLICA, BackupKind.CHAIN, BackupKind.CHECKPOINT
    return (
        one("replica-strict", "mlfabric, replica without any lead", "replicated", replica),
        one("replica-1", "mlfabric, replica 1 iteration behind at most", "replicated", replica, 1),
        one("replica-20", "mlfabric, replica 20 iterations behind at most", "replicated", replica, 20),
        one("chain", "mlfabric, chain replication", "chained", chain),
        one("checkpoint-1", "mlfabric, a checkpoint every iteration", "checkpointed", checkpoint, 1),
        one("checkpoint-20", "mlfabric, a checkpoint every 20 iterations", "checkpointed", checkpoint, 20),
    )


def _finding_topics() -> tuple[System, ...]:
    """Return the systems that find topics in news, by Gibbs sampling: nothing to tune, no momentum."""

    def one(name: str, label: str, module: str, consistency: Consistency, bound: Bound = Bound.NONE) -> System:
        return System(
            name=name,
            label=label,
            module=module,
            consistency=consistency,
            bound=bound,
            cells=(LDA_CELL,),
            model="lda-12",
        )

    return (
        one("lda-ring", "LDA, ring all-reduce", "ring", Consistency.SYNCHRONOUS),
        one("lda-ps-async", "LDA, vanilla asynchronous server", "parameter_server", Consistency.ASYNCHRONOUS),
        one(
            "lda-async",
            "LDA, mlfabric asynchronous, bound = workers",
            "fabric",
            Consistency.ASYNCHRONOUS,
            Bound.WORKERS,
        ),
    )


SYSTEMS = _systems()
"""By name, in the order in which a cell measures them: the ring first, which all others are compared with."""

ACCURACY_SYSTEMS = ("ring", "fabric-async", "fabric-advised")
"""Those whose accuracies are compared with more seeds."""


def cell_named(text: str) -> Cell:
    """Read a cell's name, as C1-N2.

    Raises:
        UsageError: it is not of that form, or there is no such setting.
    """
    compute, _, network = text.strip().partition("-")
    return Cell(compute=compute, network=network)


def system_named(text: str) -> System:
    """Return a system.

    Raises:
        UsageError: there is none of that name.
    """
    found = SYSTEMS.get(text.strip())
    if found is None:
        raise UsageError(f"system {text.strip()!r}; allowed: {', '.join(SYSTEMS)}")
    return found
