"""What the paper's table compares: its nine cells, and the systems by name, each with where it is and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any

from benchmarks.testbed.runs import Consistency
from mlfabric.errors import UsageError
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = [
    "ACCURACY_CELLS",
    "ACCURACY_SYSTEMS",
    "CELLS",
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
            steps on another network path.
        momentum_at: who keeps its velocity.
        cells: in which it is measured; none for all.
    """

    name: str
    label: str
    module: str
    consistency: Consistency
    tuned_as: str
    bound: Bound = Bound.NONE
    momentum_at: MomentumAt = MomentumAt.SERVER
    cells: tuple[str, ...] = ()

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
    )
    return MappingProxyType({system.name: system for system in rows})


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
