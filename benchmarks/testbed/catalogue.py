"""What the paper's table compares: the systems by name, each with where it is and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any

from benchmarks.testbed.cells import (
    ALL_CELLS,
    BACKUP_CELL,
    GOSSIP_CELLS,
    LAG_CELLS,
    LDA_CELL,
    LOCAL_CELLS,
    ROUND_CELLS,
    Cell,
)
from benchmarks.testbed.runs import REPORT_EVERY_S, BackupKind, Consistency
from mlfabric.errors import UsageError

__all__ = [
    "ACCURACY_SYSTEMS",
    "BEST_MEMBERS",
    "RING",
    "SYSTEMS",
    "Bound",
    "MomentumAt",
    "System",
    "system_named",
]


BEST_MEMBERS = (8, 14, 20)
"""How many workers take part where the ring shuts out the others: about as many as have fast links in N3, N2 and N1."""

INNER_STEPS = (8, 32)
FRAGMENTS = 4
"""Of local SGD and DiLoCo."""

RING = "ring"
"""The system that all others are compared with."""


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
        cells: in which it is measured; none for all but those whose data are sliced.
        report_every_s: how often the fabric's monitor reports, undilated.
        backup: how the fabric's model outlives its server.
        lead_per_worker: how many updates a crash of the server may cost then, over the number of workers.
        model: what is trained instead of the table's; "" for that.
        goes_on: whether a run goes on after the ring's time until its model has the target accuracy.
        members: how many workers take part at a time; 0 for all.
        wrapped: arguments of ``mlfabric.wrap``, by which it trains, or of what is the same elsewhere; empty for all
            that train in another way.
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
    goes_on: bool = False
    members: int = 0
    wrapped: Mapping[str, object] = field(default_factory=dict)

    def load(self) -> Any:
        """Import its module."""
        return import_module(f"benchmarks.testbed.systems.{self.module}")

    def is_measured_in(self, cell: Cell) -> bool:
        """Tell whether the table has it in a cell."""
        return cell.name in self.cells if self.cells else not cell.is_sliced


def _systems() -> Mapping[str, System]:
    synchronous, asynchronous = Consistency.SYNCHRONOUS, Consistency.ASYNCHRONOUS
    rows = (
        System(
            name=RING,
            label="ring all-reduce",
            module="ring",
            consistency=synchronous,
            tuned_as=RING,
            cells=tuple(cell.name for cell in ALL_CELLS),
            goes_on=True,
        ),
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
        *_in_rounds(),
        *_with_inner_steps(),
        *_overlapping(),
        *_with_backups(),
        *_finding_topics(),
    )
    return MappingProxyType({system.name: system for system in rows})


def _wrapped(name: str, label: str, tuned_as: str, cells: tuple[str, ...], **wrapped: object) -> System:
    """Return a system without a server, whose workers step by themselves."""
    return System(
        name=name,
        label=label,
        module="rounds",
        consistency=Consistency.ROUNDS,
        tuned_as=tuned_as,
        cells=cells,
        goes_on=True,
        wrapped=wrapped,
    )


def _with_inner_steps() -> tuple[System, ...]:
    """Return the systems whose workers make some steps by themselves for each round; all are waited for, or not.

    Or workers go on while their round is made. Beside them is torchft, with which people do that today.
    """
    waits: dict[str, dict[str, object]] = {
        "": {},
        "-all": {"at_least": 1.0},
        "-overlap": {"wait": False},
        "-fragments": {"wait": False, "fragments": FRAGMENTS},
    }
    words = {
        "": "",
        "-all": ", all waited for",
        "-overlap": ", going on meanwhile",
        "-fragments": f", going on meanwhile, {FRAGMENTS} fragments in turn",
    }
    return tuple(
        _wrapped(
            f"{method}-{steps}{suffix}",
            f"mlfabric {method}, {steps} inner steps{words[suffix]}",
            f"{method}-{steps}",
            LOCAL_CELLS,
            method=method,
            inner_steps=steps,
            **options,
        )
        for method in ("local-sgd", "diloco")
        for steps in INNER_STEPS
        for suffix, options in waits.items()
    ) + tuple(
        replace(
            _wrapped(
                f"torchft-diloco-{steps}",
                f"torchft's DiLoCo over gloo, {steps} inner steps",
                f"diloco-{steps}",
                LOCAL_CELLS,
                method="diloco",
                inner_steps=steps,
            ),
            module="torchft_diloco",
        )
        for steps in INNER_STEPS
    )


def _in_rounds() -> tuple[System, ...]:
    """Return the systems without a server, whose workers step by themselves, each round along one mean."""
    one, everywhere = _wrapped, tuple(cell.name for cell in ALL_CELLS)
    return (
        one("synchronous", "mlfabric synchronous, no server", "ring", everywhere, method="all-reduce"),
        one("elastic", "mlfabric elastic, all who are ready", "elastic", everywhere, method="elastic", tau_max=2),
        one(
            "elastic-overlap",
            "mlfabric elastic, all who are ready, overlapped",
            "elastic-overlap",
            ROUND_CELLS,
            method="elastic",
            tau_max=2,
            overlap=True,
        ),
        one("partial", "mlfabric partial, majority", "partial", ROUND_CELLS, method="partial", quorum="majority"),
        one("rand", "mlfabric gossip in random rings", "ring", GOSSIP_CELLS, method="rand"),
        one("rand-aware", "mlfabric gossip in groups around fast links", "ring", GOSSIP_CELLS, method="rand-aware"),
    )


def _overlapping() -> tuple[System, ...]:
    """Return the systems whose communication overlaps with their own step, bucket by bucket."""
    return (
        System(
            name="ring-overlap",
            label="ring all-reduce, overlapped as DDP does",
            module="ring_overlap",
            consistency=Consistency.SYNCHRONOUS,
            tuned_as="ring",
            goes_on=True,
        ),
        *(
            System(
                name=f"ring-best-{members}",
                label=f"ring of the best {members} workers, overlapped, links known beforehand",
                module="ring_best",
                consistency=Consistency.ROUNDS,
                tuned_as=f"ring-best-{members}",
                cells=ROUND_CELLS,
                goes_on=True,
                members=members,
            )
            for members in BEST_MEMBERS
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


def system_named(text: str) -> System:
    """Return a system.

    Raises:
        UsageError: there is none of that name.
    """
    found = SYSTEMS.get(text.strip())
    if found is None:
        raise UsageError(f"system {text.strip()!r}; allowed: {', '.join(SYSTEMS)}")
    return found
