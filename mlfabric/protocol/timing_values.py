"""What workers say of how long they compute, and the threshold that they are told (DropCompute). Pure.

worker                  scheduler
  StepsTimed ────────────▶  once all workers have said it
             ◀──────────── SetThreshold
"""

from __future__ import annotations

from mlfabric.protocol.told import SaidByWorker, ToldOfModel
from mlfabric.values import dataclass

__all__ = ["SetThreshold", "StepsTimed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTimed(SaidByWorker):
    """What some steps of a worker have taken without a threshold, or that the present one fits no more: then nothing.

    Args:
        micro_batches: of each step, >= 1.
        computed_ns: of each micro-batch, step by step.
        rest_ns: what each step took beside computing.
    """

    micro_batches: int
    computed_ns: tuple[int, ...] = ()
    rest_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetThreshold(ToldOfModel):
    """From now on begin no micro-batch once so much time has passed in a step.

    Args:
        measures: steps are to be made without a threshold, and timed; the rest is 0.
        tau_ns: 0 for no threshold.
        speedup, dropped: what is expected of it, as in ``mlfabric.methods.drop_compute.Threshold``.
    """

    measures: bool = False
    tau_ns: int = 0
    speedup: float = 1.0
    dropped: float = 0.0
