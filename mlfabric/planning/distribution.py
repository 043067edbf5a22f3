"""How a model gets from its server to many workers (paper, section 10.3): aggregation mirrored in time.

All gets of a batch are answered with one version. *Direct*: each by the server, shortest transfer first, as
``order_gets`` plans it; what it cannot send is deferred, and a lone get is always answered so. A better way is searched
for the *early* gets, which are ready when the first of the batch is; nobody waits for the *late* ones.

*Tree* (``spreads.py``): distributors relay the model while it still arrives. They are taken in the order in which the
server alone would reach them with the model (of the size of the largest early get; ties: as given), without the
server's own host, at most 64. A tree is taken if it costs less than direct. Cost is the latest answer, or the sum over
the early gets.

Then late gets are reserved, shortest first, and the tree is used only if everything together costs less than direct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mlfabric.network import HORIZON_NS, Network, Profile
from mlfabric.planning.fans import Fan, Way, answers_of, make_fan, transfers_of
from mlfabric.planning.get_order import order_gets
from mlfabric.planning.lazy import joined
from mlfabric.planning.plan import Deferred, GetServed, Kind, Toward, Transfer
from mlfabric.planning.plan_values import GetCandidate, GetSlot
from mlfabric.planning.problem import Aggregator, FabricState, Objective, PlannerConfig, Shape, objective_of
from mlfabric.planning.spreads import spread
from mlfabric.values import dataclass

__all__ = ["Distribution", "distribute", "with_reserved"]

MOST_DISTRIBUTORS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How a batch of gets is answered.

    Args:
        shape: DIRECT or TREE.
        transfers: inputs come before what is made of them; numbered from the ``index`` that was given.
        answers: one for each get that is not deferred; it names the transfer that arrives last for it.
    """

    shape: Shape
    transfers: Sequence[Transfer]
    answers: Sequence[GetServed]
    deferred: Sequence[Deferred] = ()


class _Task(NamedTuple):
    """The input of all ways; ``now_ns`` is not before the network's floor."""

    network: Network
    server: str
    now_ns: int
    objective: Objective
    chunk_bytes: int
    first: int


def distribute(
    gets: Sequence[GetCandidate], network: Network, state: FabricState, config: PlannerConfig, *, index: int = 0
) -> Distribution:
    """Plan how all these gets are answered with one version of the model; ``network`` is not changed.

    Args:
        gets: different ones.
        index: number of the first transfer in the plan.

    Raises:
        UsageError: an unknown host, or a size out of range.
    """
    now_ns = max(state.now_ns, network.floor_ns)
    task = _Task(network, state.server, now_ns, objective_of(config), config.chunk_bytes, index)
    alone = _alone(task, gets)
    if len(alone.gets) < 2 or not state.distributors or Shape.TREE not in config.shapes:
        return _directly(task, alone)
    other = _handed_on(task, gets, alone, state.distributors)
    return replace(other, deferred=alone.deferred) if other else _directly(task, alone)


def with_reserved(network: Network, transfers: Sequence[Transfer]) -> Network:
    """Return a network in which planned transfers, too, are reserved; the network itself if there are none."""
    if not len(transfers):
        return network
    left = network.copy()
    for transfer in transfers:
        if transfer.planned:
            left.reserve(object(), transfer.path, transfer.profile)
    return left


def _cost_ns(arrive_ns: Sequence[int], objective: Objective) -> int:
    return max(arrive_ns, default=0) if objective is Objective.LAST_COMMIT else sum(arrive_ns)


class _Alone(NamedTuple):
    """Gets that the server answers itself, in columns, and those that it cannot answer."""

    gets: list[GetCandidate]
    slots: list[GetSlot]
    profiles: list[Profile]
    arrive_ns: list[int]
    deferred: list[Deferred]


def _alone(task: _Task, gets: Sequence[GetCandidate]) -> _Alone:
    by_get, found, network = {get.get: get for get in gets}, _Alone([], [], [], [], []), task.network
    for slot in order_gets(gets, network, task.server, now_ns=task.now_ns):
        if slot.profile is None:
            found.deferred.append(Deferred(what=slot.get, reason=slot.reason))
            continue
        get = by_get[slot.get]
        found.gets.append(get)
        found.slots.append(slot)
        found.profiles.append(slot.profile)
        latency_ns = network.latency_ns(network.path(task.server, get.destination))
        found.arrive_ns.append(slot.profile.end_ns + latency_ns)
    return found


def _directly(task: _Task, alone: _Alone) -> Distribution:
    transfers = [_transfer(task, get, profile) for get, profile in zip(alone.gets, alone.profiles, strict=True)]
    answers = [
        GetServed(get=slot.get, transfer=number, arrive_ns=arrive_ns, reason=slot.reason)
        for number, (slot, arrive_ns) in enumerate(zip(alone.slots, alone.arrive_ns, strict=True), start=task.first)
    ]
    return Distribution(shape=Shape.DIRECT, transfers=transfers, answers=answers, deferred=alone.deferred)


def _transfer(task: _Task, get: GetCandidate, profile: Profile) -> Transfer:
    """Make the transfer by which a server answers a get itself."""
    path = task.network.path(task.server, get.destination)
    return Transfer(
        kind=Kind.MODEL,
        toward=Toward.WORKERS,
        source=task.server,
        destination=get.destination,
        path=path,
        size_bytes=get.size_bytes,
        ready_ns=max(get.ready_ns, task.now_ns),
        profile=profile,
        arrive_ns=profile.end_ns + task.network.latency_ns(path),
        get=get.get,
    )


def _handed_on(
    task: _Task,
    gets: Sequence[GetCandidate],
    direct: _Alone,
    distributors: Sequence[Aggregator],
) -> Distribution | None:
    """Let distributors relay the model to the early gets; None if that does not cost less than direct."""
    if direct.deferred:
        reachable = {get.get for get in direct.gets}
        gets = [get for get in gets if get.get in reachable]
    ready_ns = max(task.now_ns, min(get.ready_ns for get in gets))
    early = {get.get: get for get in gets if get.ready_ns <= ready_ns}
    late = [get for get in gets if get.get not in early]
    helpers = _nearest(task, distributors, max(get.size_bytes for get in early.values()), ready_ns)
    if len(early) < 2 or not helpers:
        return None
    alone = _alone(task, list(early.values())) if late else direct
    fan = make_fan(
        task.network,
        task.server,
        [early[get.get] for get in alone.gets],
        helpers,
        ready_ns=ready_ns,
        objective=task.objective,
        chunk_bytes=task.chunk_bytes,
    )
    way = spread(fan)
    if way is None or way.cost_ns >= fan.cost_ns(alone.arrive_ns):
        return None
    return _with_late(task, fan, way, late, _cost_ns(direct.arrive_ns, task.objective))


def _nearest(task: _Task, distributors: Sequence[Aggregator], size_bytes: int, ready_ns: int) -> list[Aggregator]:
    """Choose distributors, in the order in which the server alone would reach them."""
    network, server = task.network, task.server
    away = [distributor for distributor in distributors if distributor.host != server]
    profiles = (network.transfer(network.path(server, d.host), size_bytes, ready_ns) for d in away)
    ends = [HORIZON_NS if profile is None else profile.end_ns for profile in profiles]
    places = sorted((end_ns, place) for place, end_ns in enumerate(ends) if end_ns < HORIZON_NS)
    return [away[place] for _, place in places[:MOST_DISTRIBUTORS]]


def _with_late(task: _Task, fan: Fan, way: Way, late: Sequence[GetCandidate], direct_ns: int) -> Distribution | None:
    """Add the late gets, which the server answers; None if it cannot, or if the whole costs as much as direct."""
    answers, arrive_ns = answers_of(fan, way, task.first, task.now_ns)
    transfers = list(transfers_of(fan, way, task.first))
    after = _alone(task._replace(network=with_reserved(task.network, transfers)), late)
    if after.deferred or _cost_ns([*arrive_ns, *after.arrive_ns], task.objective) >= direct_ns:
        return None
    if not late:
        return Distribution(shape=Shape.TREE, transfers=transfers, answers=answers)
    last = _directly(task._replace(first=task.first + len(transfers)), after)
    return Distribution(
        shape=Shape.TREE, transfers=[*transfers, *last.transfers], answers=joined(answers, last.answers)
    )
