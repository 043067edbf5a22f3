"""The cells of the table: combinations of stragglers and networks, and what is measured in which of them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.testbed.networks import NETWORKS
from mlfabric.errors import UsageError
from mlfabric.twin.settings import COMPUTE

__all__ = [
    "ACCURACY_CELLS",
    "ALL_CELLS",
    "BACKUP_CELL",
    "CELLS",
    "EVEN_CELL",
    "FOUR_CELL",
    "GOSSIP_CELLS",
    "LAG_CELLS",
    "LDA_CELL",
    "LOCAL_CELLS",
    "ROUND_CELLS",
    "Cell",
    "cell_named",
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
        if self.compute not in COMPUTE or self.network not in NETWORKS:
            raise UsageError(
                f"cell {self.name}; allowed: one of {', '.join(COMPUTE)}, a dash, one of {', '.join(NETWORKS)}, "
                "as C1-N2"
            )

    @property
    def name(self) -> str:
        """As the paper writes it: C1-N2."""
        return f"{self.compute}-{self.network}"

    @property
    def is_sliced(self) -> bool:
        """Whether each worker trains a slice of the classes: where hosts are always slow, they alone know some."""
        return self.network == "four"


CELLS = tuple(
    Cell(compute=compute, network=network) for compute in ("C1", "C2", "C3") for network in ("N1", "N2", "N3")
)
"""The paper's nine, in the order in which its tables give them: by compute setting, then by network."""

EVEN_CELL = Cell(compute="C0", network="N0")
"""Without stragglers, all links at their full rate."""

FOUR_CELL = Cell(compute="C0", network="four")
"""Four hosts at a tenth of their rate all the time, each worker with its own slice of the classes."""

ALL_CELLS = (*CELLS, EVEN_CELL, FOUR_CELL)

ROUND_CELLS = ("C1-N1", "C2-N2", "C1-N3")
"""Where every way to train in rounds is compared; some are in all cells."""

ACCURACY_CELLS = ("C1-N1", "C2-N2", "C3-N3")
"""Where accuracies are compared: every setting once, with more seeds than times need."""

LOCAL_CELLS = ("C1-N3", "C2-N3")
"""Where workers that make steps by themselves are compared: half of the links are slow."""

GOSSIP_CELLS = ("C1-N2", "C1-N3")
"""Where rings of models, over all links alike, are compared with groups around those who have fast ones."""

LDA_CELL = "C1-N1"
"""Where topics are found, as in the paper."""

BACKUP_CELL = "C1-N1"
"""Where backups of the server are compared."""

LAG_CELLS = ("C1-N2", "C2-N2", "C3-N2")
"""Where the monitor's reports come late."""


def cell_named(text: str) -> Cell:
    """Read a cell's name, as C1-N2.

    Raises:
        UsageError: it is not of that form, or there is no such setting.
    """
    compute, _, network = text.strip().partition("-")
    return Cell(compute=compute, network=network)
