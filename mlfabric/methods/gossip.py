"""Gossip: who averages models with whom, and when (D-PSGD, AD-PSGD, RAND-PSGD, D1D-PSGD). Pure.

Each worker has a model of its own. A round gives each member the mean of its own and some others' models, so that the
mean over all workers stays what it is. D-PSGD (Lian et al., 2017) averages with fixed neighbours, RAND-PSGD (Zhang et
al., 2020, section 4) with those in a ring that is drawn anew for each round, D1D-PSGD (the same) with all. There a
round has everybody. AD-PSGD (Lian et al., 2018) waits for nobody: whoever is ready makes pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfabric.methods.all_reduce import Shaped
from mlfabric.methods.byte_trees import Trees
from mlfabric.methods.mixing import Mixing, groups
from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method, ModelSpec
from mlfabric.planning import Shape

__all__ = ["Gossip", "Neighbours", "shape_gossip"]

_PAIR = 2
_MIXINGS: Mapping[Method, Mixing] = {
    Method.RAND: Mixing.RANDOM_RING,
    Method.D1D: Mixing.FULL,
    Method.ADPSGD: Mixing.PAIRS,
}


class Gossip:
    """When rounds of models begin; no worker is ever too far behind for one."""

    most_waiting = 2**31
    waits_for_slow = False

    def __init__(self, spec: ModelSpec) -> None:
        self._waits = spec.method is not Method.ADPSGD
        self._average_every = (spec.rounds or RoundOptions()).average_every

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Wait for all; where pairs are made, until half are ready, and no longer than for a usual step."""
        if not who.computing_ns:
            return now_ns
        if self._waits or _is_due(who.version, self._average_every) or len(who.ready_ns) < _PAIR:
            return None
        if len(who.ready_ns) >= len(who.computing_ns):
            return now_ns
        return max(now_ns, min(who.ready_ns.values()) + (who.usual_ns or 0))

    def late(self, delay: int, gradients: int) -> Late:
        """Let it join: a worker offers its model, and adds what it learns meanwhile to the mean."""
        return Late.JOINS


class Neighbours:
    """Who averages with whom in the rounds of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self._mixing = _MIXINGS.get(spec.method) or Mixing(options.mixing)
        self._average_every = options.average_every

    def groups(self, workers: Sequence[str], version: int) -> dict[str, list[str]] | None:
        """Return, by worker, whose models its next one is the mean of; None if that is all of them.

        Args:
            workers: who is in the round; at least one.
            version: that the round makes.
        """
        if self._mixing is Mixing.FULL or len(workers) == 1 or _is_due(version, self._average_every):
            return None
        found = groups(self._mixing, len(workers), version)
        return {worker: [workers[i] for i in group] for worker, group in zip(workers, found, strict=True)}


def _is_due(version: int, average_every: int) -> bool:
    return average_every > 0 and version % average_every == 0


def shape_gossip(groups: Mapping[str, Sequence[str]], size_bytes: int) -> Shaped:
    """Return how a round goes in which each worker gets the models of its group, itself in it, and sums them."""
    trees = tuple(
        Trees(start=0, end=size_bytes, root=worker, parents={w: worker for w in group if w != worker}, sources={})
        for worker, group in groups.items()
    )
    each = max(map(len, groups.values())) - 1
    reason = f"each sums its own model and {each} other{'s' if each > 1 else ''}"
    summed = {worker: len(group) for worker, group in groups.items()}
    return Shaped(shape=Shape.DIRECT, trees=trees, transfers=(), reason=reason, summed=summed)
