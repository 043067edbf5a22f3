"""The twin: what a cluster would do, in virtual time, with the planner that the live scheduler uses.

*What it models.* Each update is asked for, gathered into batches, ordered, dropped or kept within the delay bound,
summed over aggregators or sent alone, committed in order; each get is gathered, served by the server or handed on: by
``planning.plan`` and its kernels, with the live scheduler's rules of when a batch closes, what is given up
when it is overdue, when the server's links run dry, and what is planned anew when links have changed. The planner knows
of links what the live monitor's estimator makes of the transfers that have ended, and every message to or from the
scheduler takes its time. Transfers go over the rates that links really have at the time, share them fairly (max-min),
and are held by a plan's order, not by its times.

*What it does not model.* Faults, replicas and models that are cut over several servers. Processors: what adding,
copying and Python cost shows up only as far as ``control_s`` says. TCP's start and its losses. Networks other than a
star whose core is never congested. A stream that is passed on and runs dry keeps its share of a link meanwhile. A
worker's compute time does not depend on what its link does.

All of it follows from the cluster, its seed included: the same cluster gives the same outcome, bit by bit.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import Enum

from mlfabric.errors import UsageError
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.twin.advise import Option, Prediction
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.fabric_rounds import FabricRounds
from mlfabric.twin.outcome import Outcome
from mlfabric.twin.rounds import Ring, Rounds, Tree
from mlfabric.twin.run_world import Progress, RunWorld
from mlfabric.twin.training import Training

__all__ = ["Baseline", "predict", "simulate"]


log = logging.getLogger("mlfabric.twin")


class Baseline(Enum):
    """What a fabric is compared with."""

    RING = "ring"
    TREE = "tree"


_KINDS: dict[Method | Baseline, type[Rounds]] = {
    Method.ALL_REDUCE: FabricRounds,
    Baseline.RING: Ring,
    Baseline.TREE: Tree,
}


def simulate(
    cluster: Cluster,
    way: Method | Baseline | None = None,
    *,
    progress: Progress | None = None,
    spans_s: float = 0.0,
) -> Outcome:
    """Run a cluster's job in virtual time.

    The planner is loaded first, and compiled where that was not done yet: until then a live scheduler plans otherwise.

    Args:
        way: how it trains; None for the cluster's own method.
        progress: told of steps done, and of how many there are.
        spans_s: until when what workers do is kept, for a picture.

    Raises:
        UsageError: ``spans_s`` is below 0.
    """
    if spans_s < 0:
        raise UsageError(f"spans_s={spans_s}; allowed: 0 or more")
    chosen = cluster.method if way is None else way
    if isinstance(chosen, Method) and chosen is not cluster.method:
        cluster = replace(cluster, method=chosen)
    warm_up(log.info)
    world = RunWorld(cluster, spans_s)
    _KINDS.get(chosen, Training)(world).run(progress)
    return world.outcome(chosen.value)


def predict(cluster: Cluster, option: Option) -> Prediction:
    """Return what the twin says of an option, on a cluster that is as the option would have it.

    Asynchronous and stale-synchronous training make a step with as many updates as there are workers, whoever sent
    them.
    """
    found = simulate(cluster, Baseline.RING if option.method is None else option.method)
    is_late = option.method in (Method.ASYNCHRONOUS, Method.STALE_SYNCHRONOUS)
    return Prediction(
        step_s=len(cluster.workers) / found.updates_per_s if is_late else found.mean_iteration_s,
        delays=found.delays,
        dropped_share=found.drop_share,
    )
