"""What a demonstration run consists of, as one value that every process reads from the same file.

The law behind the figures (design, section 5): ``updates/s * (time from reading the model to commit) <= tau_max + 1``.
The narrow link and the slow worker are chosen so that their products lie just below the bound: most of their updates
make it, some of those that took long do not.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlfabric.errors import ConfigError, UsageError
from mlfabric.model.specs import RuleSpec, Schedule

__all__ = ["FILE_NAME", "Scenario"]

FILE_NAME = "scenario.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run.

    Args:
        seed: of the split, the initial weights, the batches and the jitter.
        batch: samples in a batch.
        hidden: width of the layer before the last (400: 432,826 parameters, 1.7 MB).
        lr, momentum, warmup_updates: of the update rule, at the server as in the single process; after the warm-up the
            learning rate falls to 0 along a cosine.
        tau_max: delay bound.
        updates: workers stop when the model has this version.
        longest_s: or after this many seconds.
        pace_s: how long a step's computation takes on average at slowness 1.
        jitter: sigma of the logarithm of a step's time (log-normal).
        pause_share: in this share of its steps a worker is held up besides, as by a busy neighbour or a full disk.
        pause_s: least and longest of such pauses.
        slowness: by rank, how much longer than ``pace_s`` a step takes; also says how many workers there are.
        rates: by rank, of the worker's emulated network card, both ways, as in "400M"; none emulates none.
        server_rate: of the server's; "" emulates none.
        replica_div_max_updates: how many updates a replica of the server may lack; "" for no replica.
        evaluate_every_s: how often worker 0 evaluates its model on the test set.
        least_accuracy: what the final model must reach.
        most_difference: how far it may be below the single process.
        compared_pace_s: ``pace_s`` in the comparison: about as long as the model takes over the narrowest link.
        compared_lr: constant learning rate of elastic rounds and of the ring in the comparison.
        compared_accuracy: on the test set; how long each of the two needs to reach it is compared.
        compared_longest_s: each of the two is given up after this many seconds.
    """

    seed: int = 0
    batch: int = 32
    hidden: int = 400
    lr: float = 0.01
    momentum: float = 0.9
    warmup_updates: int = 100
    tau_max: int = 8
    updates: int = 600
    longest_s: float = 90.0
    pace_s: float = 0.05
    jitter: float = 0.3
    pause_share: float = 0.06
    pause_s: tuple[float, float] = (0.5, 1.0)
    slowness: tuple[float, ...] = (1.0, 1.0, 2.5, 1.0)
    rates: tuple[str, ...] = ("500M", "500M", "500M", "125M")
    server_rate: str = "500M"
    replica_div_max_updates: str = ""
    evaluate_every_s: float = 1.0
    least_accuracy: float = 0.96
    most_difference: float = 0.02
    compared_pace_s: float = 0.1
    compared_lr: float = 0.1
    compared_accuracy: float = 0.88
    compared_longest_s: float = 45.0

    def __post_init__(self) -> None:
        if len(self.rates) not in (0, len(self.slowness)):
            raise ConfigError(
                f"{len(self.rates)} rates for {len(self.slowness)} workers; allowed: none, or one for each"
            )
        if self.updates < 1:
            raise ConfigError(f"updates={self.updates}; allowed: 1 or more")

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.slowness)

    @property
    def rule(self) -> RuleSpec:
        """The update rule."""
        return RuleSpec(
            lr=self.lr,
            momentum=self.momentum,
            schedule=Schedule.COSINE,
            warmup_versions=self.warmup_updates,
            total_versions=self.updates,
        )

    def save(self, folder: Path) -> None:
        """Write it to ``scenario.json`` in ``folder``."""
        (folder / FILE_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Scenario:
        """Read what ``save`` wrote.

        Raises:
            UsageError: there is no such file, or it is of another release.
        """
        path = folder / FILE_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
            return cls(**plain)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path}: {error}; give the folder of a demonstration run") from error
