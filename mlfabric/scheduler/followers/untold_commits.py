"""What a primary that is gone may have committed and not told: so much its replica makes good by itself. Pure.

The gate lets a primary commit what its replica holds by itself, for with its log entry that can be applied there. If
the primary dies with the report, the bytes are there and the entry is not. So what the replica holds counts as
committed unless it is known that it was dropped: what a version was made of before what was computed from that version,
what had come to the primary before what had not, else in the order of the plan. If the primary had not come to it yet,
its worker is told that it is committed when it asks again. The replica gives the versions their final numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import groupby
from typing import NamedTuple

from mlfabric.model.samples import Samples
from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind
from mlfabric.protocol import Commit, Committed, ModelVersion, UpdateId, UpdateKind
from mlfabric.scheduler.records import PlannedUpdate
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["foretold"]


class _Place(NamedTuple):
    """What is committed together.

    Args:
        computed_from: by update.
        rank: how sure it is that it was committed, the less the surer.
        samples: by update.
        lrs: by update, if they are known.
    """

    updates: tuple[UpdateId, ...]
    computed_from: tuple[int, ...]
    rank: int
    samples: tuple[Samples, ...]
    lrs: tuple[float, ...] = ()


def foretold(
    pushes: Pushes, held: Set[UpdateId], told: Mapping[UpdateId, Commit], version: ModelVersion
) -> Iterator[tuple[Commit, ...]]:
    """Give groups of commits that follow a version.

    Args:
        pushes: the model's updates; only read.
        held: what the replica has the bytes of, each by itself or within its sum.
        told: what the primary has told of.
        version: that the replica has applied, as far as is known.
    """
    together, rule, number = pushes.spec.method is Method.SYNCHRONOUS, pushes.spec.rule, version.number
    places = (*_known(pushes, held, told, number), *_planned(pushes, held))
    last, bound = max((c.version.number for c in told.values()), default=number), 0 if together else pushes.tau_max
    for place in sorted(places, key=lambda place: (place.computed_from, place.rank)):
        taus = [number + (0 if together else n) - base for n, base in enumerate(place.computed_from)]
        late = max(0, last - number) if place.rank else 0  # the primary had come so much further than the replica
        if not all(tau >= 0 and tau + late <= bound for tau in taus):
            continue
        lrs = place.lrs or (rule.lr_at(number, taus[0]),) * len(taus)
        numbers = [number + (1 if together else n) for n in range(1, len(taus) + 1)]
        yield tuple(
            Commit(
                update=update,
                version=ModelVersion(version.epoch, made),
                tau=tau,
                lr=lr,
                step_norm=0.0,
                samples=samples,
            )
            for update, made, tau, lr, samples in zip(place.updates, numbers, taus, lrs, place.samples, strict=True)
        )
        number = numbers[-1]


def _known(pushes: Pushes, held: Set[UpdateId], told: Mapping[UpdateId, Commit], number: int) -> Iterator[_Place]:
    """Give what is known to be committed after a version; the log may lack others between."""
    known = {update: (commit.version, commit.tau) for update, commit in told.items()}
    for update in held:
        outcome = pushes.settled.get(update)
        if isinstance(outcome, Committed) and outcome.version.epoch == pushes.version.epoch:
            known[update] = outcome.version, outcome.tau
    order = sorted((version, update) for update, (version, _) in known.items() if update in held)
    for version, step in groupby(order, key=lambda one: one[0]):
        updates, base = tuple(update for _, update in step), version.number - 1
        if version.number > number:
            samples = tuple(told[update].samples if update in told else () for update in updates)
            yield _Place(updates, tuple(base - known[update][1] for update in updates), 0, samples)


def _planned(pushes: Pushes, held: Set[UpdateId]) -> Iterator[_Place]:
    """Give what is planned and not settled as far as is known here, in the order of the plan."""
    has_rates = pushes.spec.method is not Method.SYNCHRONOUS and pushes.spec.rule.kind is not RuleKind.ADAM
    for _, planned in groupby(pushes.planned.values(), key=lambda planned: planned.seq):
        place = list(planned)
        if _is_there(pushes, place, held) and not any(_is_rolled_back(pushes, planned) for planned in place):
            name, requests = place[0].sum, [planned.request for planned in place]
            lrs = pushes.sums.whole(name).lrs if name is not None and has_rates else ()
            bases, rank = tuple(r.computed_from.number for r in requests), 1 if place[0].received else 2
            yield _Place(tuple(r.update for r in requests), bases, rank, tuple(r.samples for r in requests), lrs)


def _is_there(pushes: Pushes, place: list[PlannedUpdate], held: Set[UpdateId]) -> bool:
    """Tell whether all of a place is at the replica: each member of its sums, all parts of its iteration."""
    updates = {planned.request.update for planned in place if planned.asked}
    wanted = updates.union(*(pushes.sums.whole(p.sum).members for p in place if p.sum is not None))
    is_gradient = all(planned.request.kind is UpdateKind.GRADIENT for planned in place)
    is_whole = pushes.iteration is None or not pushes.iteration.owed
    return is_gradient and is_whole and len(updates) == len(place) and wanted == updates and updates <= held


def _is_rolled_back(pushes: Pushes, planned: PlannedUpdate) -> bool:
    return pushes.is_lost(planned.request.computed_from)
