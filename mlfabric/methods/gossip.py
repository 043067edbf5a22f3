"""Gossip: who averages models with whom, and when (D-PSGD, AD-PSGD, RAND-PSGD, D1D-PSGD). Pure.

Each worker has a model of its own. A round gives each member the mean of its own and some others' models, so that the
mean over all workers stays what it is. D-PSGD (Lian et al., 2017) averages with fixed neighbours, RAND-PSGD (Zhang et
al., 2020, section 4) with those in a ring that is drawn anew for each round, D1D-PSGD (the same) with all. Where
links are slow, groups around workers with fast ones mix as well (``teams.py``). There a round has everybody. AD-PSGD
(Lian et al., 2018) waits for nobody: whoever is ready makes pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mlfabric.methods.all_reduce import Shaped
from mlfabric.methods.byte_trees import Trees
from mlfabric.methods.mixing import Mixing, groups
from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.methods.teams import Link, Team, teams
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method, ModelSpec
from mlfabric.planning import Shape

__all__ = ["Gossip", "Groups", "Neighbours", "shape_gossip"]

_PAIR = 2
_MIXINGS: Mapping[Method, Mixing] = {
    Method.RAND: Mixing.RANDOM_RING,
    Method.RAND_AWARE: Mixing.RANDOM_RING,
    Method.D1D: Mixing.FULL,
    Method.ADPSGD: Mixing.PAIRS,
}


class Gossip:
    """When rounds of models begin; no worker is ever too far behind for one."""

    most_waiting = 2**31
    waits_for_slow = False
    delay_bound = None

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

    def late(self, delay: int, gradients: int, *, can_renew: bool = False) -> Late:
        """Let it join: a worker offers its model, and adds what it learns meanwhile to the mean."""
        return Late.JOINS


class Groups(NamedTuple):
    """Who averages with whom in one round.

    ``of`` says, by worker, whose models its next one is the mean of; each sums these for itself, but where groups come
    to one mean each: then ``trees`` has, by who sums for a group, from whom each other member has the result.
    ``seconds_per_bit`` is how long the round takes at least, for each bit of a model; 0 if that is unknown. ``is_best``
    says that this is as long as the slowest link needs for one model.
    """

    of: Mapping[str, Sequence[str]]
    trees: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    seconds_per_bit: float = 0.0
    is_best: bool = False


class Neighbours:
    """Who averages with whom in the rounds of one model.

    Attributes:
        reads_links: that depends on what links carry.
    """

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self._mixing = _MIXINGS.get(spec.method) or Mixing(options.mixing)
        self._average_every = options.average_every
        self.reads_links = spec.method is Method.RAND_AWARE

    def groups(
        self, workers: Sequence[str], version: int, links: Mapping[str, Link] = MappingProxyType({})
    ) -> Groups | None:
        """Return who averages with whom; None if all do with all.

        Args:
            workers: who is in the round; at least one.
            version: that the round makes.
            links: what each worker's carries, in bit/s, if that is known.
        """
        if self._mixing is Mixing.FULL or len(workers) == 1 or _is_due(version, self._average_every):
            return None
        if links and (made := teams([links[worker] for worker in workers], version)):
            return _in_teams(workers, made, 1 / min(min(link) for link in links.values()))
        found = groups(self._mixing, len(workers), version)
        return Groups({worker: [workers[i] for i in group] for worker, group in zip(workers, found, strict=True)})


def _in_teams(workers: Sequence[str], made: Sequence[Team], least: float) -> Groups:
    of: dict[str, Sequence[str]] = {}
    trees: dict[str, Mapping[str, str]] = {}
    for team in made:
        collector, giver, *others = (workers[i] for i in (team.collector, team.giver, *team.others))
        of |= dict.fromkeys((collector, giver, *others), sorted((collector, giver, *others)))
        trees[collector] = {giver: collector, **dict.fromkeys(others, giver)}
    seconds_per_bit = max(team.time for team in made)
    return Groups(of, trees, seconds_per_bit, is_best=seconds_per_bit <= least)


def _is_due(version: int, average_every: int) -> bool:
    return average_every > 0 and version % average_every == 0


def shape_gossip(groups: Groups, size_bytes: int) -> Shaped:
    """Return how a round goes in which each worker gets the sum of its group's models, itself in it."""
    edges: Mapping[str, Mapping[str, str]] = groups.trees or {worker: {} for worker in groups.of}
    trees = tuple(
        Trees(
            start=0,
            end=size_bytes,
            root=root,
            parents={worker: root for worker in groups.of[root] if worker != root},
            sources=sources,
        )
        for root, sources in edges.items()
    )
    most = max(map(len, groups.of.values()))
    each = f"each sums its own model and {most - 1} other{'s' if most > 2 else ''}"
    return Shaped(
        shape=Shape.DIRECT,
        trees=trees,
        transfers=(),
        reason=f"{len(trees)} groups of up to {most}" if groups.trees else each,
        summed={worker: len(group) for worker, group in groups.of.items()},
        planned_ns=round(8e9 * size_bytes * groups.seconds_per_bit),
        is_best=groups.is_best,
    )
