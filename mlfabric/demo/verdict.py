"""How good the models of a run are, as the judge writes it and the demonstration reads it. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["CHECKPOINTS", "Verdict"]

CHECKPOINTS = "checkpoints"
_FILE_NAME = "verdict.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How good the models are.

    Args:
        accuracy: of the fabric's model on the test set.
        single_process_accuracy: of the same model, trained by one process with as many updates.
        version: of the fabric's model, which is the number of updates in it.
    """

    accuracy: float
    single_process_accuracy: float
    version: int

    def save(self, folder: Path) -> None:
        """Write it to ``verdict.json`` in ``folder``."""
        (folder / _FILE_NAME).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Verdict:
        """Read what ``save`` wrote."""
        return cls(**json.loads((folder / _FILE_NAME).read_text(encoding="utf-8")))
