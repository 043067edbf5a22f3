"""What the twin says of one option, as advice asks for it."""

from __future__ import annotations

from mlfabric.specs import Mode
from mlfabric.twin.advise import Option, Prediction
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.run import Baseline, simulate

__all__ = ["predict"]


def predict(cluster: Cluster, option: Option) -> Prediction:
    """Return what the twin says of an option, on a cluster that is as the option would have it.

    Asynchronous and stale-synchronous training make a step with as many updates as there are workers, whoever sent
    them.
    """
    found = simulate(cluster, Baseline.RING if option.mode is None else option.mode)
    is_late = option.mode in (Mode.ASYNCHRONOUS, Mode.STALE_SYNCHRONOUS)
    return Prediction(
        step_s=len(cluster.workers) / found.updates_per_s if is_late else found.mean_iteration_s,
        delays=found.delays,
        dropped_share=found.drop_share,
    )
