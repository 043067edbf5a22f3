"""What a cluster would do, whatever way it trains: rounds without a server are played, all else is the twin's."""

from __future__ import annotations

import logging
from dataclasses import replace

from mlfabric.errors import UsageError
from mlfabric.lab.prediction import play_rounds
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.twin.advise import Option, Prediction
from mlfabric.twin.cluster import MOST_PLAYED, Cluster
from mlfabric.twin.comparison import WAYS
from mlfabric.twin.outcome import Outcome
from mlfabric.twin.run import Baseline, run
from mlfabric.twin.run_world import Progress

__all__ = ["predict", "simulate", "ways_of"]

log = logging.getLogger("mlfabric.lab")


def simulate(
    cluster: Cluster,
    way: Method | Baseline | None = None,
    *,
    progress: Progress | None = None,
    spans_s: float = 0.0,
) -> Outcome:
    """Run a cluster's job in virtual time; the same cluster gives the same outcome.

    Args:
        way: how it trains; None for the cluster's own method.
        progress: told of steps done, and of how many there are.
        spans_s: until when what workers do is kept, for a picture.

    Raises:
        UsageError: ``spans_s`` is below 0, or there are too many workers for a method without a server.
    """
    if spans_s < 0:
        raise UsageError(f"spans_s={spans_s}; allowed: 0 or more")
    if isinstance(way, Baseline):
        return run(cluster, way, progress=progress, spans_s=spans_s)
    cluster = cluster if way is None else replace(cluster, method=way)
    if cluster.method.has_server:
        return run(cluster, progress=progress, spans_s=spans_s)
    warm_up(log.info)
    return play_rounds(cluster, progress, spans_s)


def ways_of(cluster: Cluster) -> tuple[Method | Baseline, ...]:
    """Return the ways in which a cluster can be simulated: all, unless it has too many workers to be played."""
    is_played = len(cluster.workers) <= MOST_PLAYED
    return tuple(way for way in WAYS if is_played or isinstance(way, Baseline) or way.has_server)


def predict(cluster: Cluster, option: Option) -> Prediction:
    """Return what is to be expected of an option, on a cluster that is as the option would have it.

    Where workers do not wait for all others a step is made with as many gradients as there are workers, whosever they
    are.
    """
    found = simulate(cluster, Baseline.RING if option.method is None else option.method)
    return Prediction(
        step_s=len(cluster.workers) / found.updates_per_s if option.is_late else found.mean_iteration_s,
        delays=found.delays,
        dropped_share=found.drop_share,
        members=found.mean_members,
    )
