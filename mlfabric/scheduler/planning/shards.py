"""Updates to a model that is split across several servers (paper, section 10.2): ordering, without aggregation.

All parts of an update share its deadline and are reserved together, so that every part of the model sees as many
updates. ``t_en`` of an update is that of its last part, reserved as in ``fluid/parts_kernel.py``: part by part, the
least ``t_en`` over what the others left first, then the lower server. With it the rules are those for one server:

* the default: left at once, left for others, reserved, committed (``ordering.py``); ends count without latency;
* the paper's rule for drops (``paper.py``): a pick that is due is dropped if the next pick would be through before it.

What is in flight keeps the profiles of its parts. An update is committed when every server has its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mlfabric.errors import UsageError
from mlfabric.network import HORIZON_NS, Network
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.fluid.lines import Lines
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.parts import PartsReserver, check_parts
from mlfabric.scheduler.planning.parts_contest import PartsContest
from mlfabric.scheduler.planning.parts_paper import order_parts_by_paper
from mlfabric.scheduler.planning.plan import Transfer
from mlfabric.scheduler.planning.positions import commit_order, conflicts
from mlfabric.scheduler.planning.values import Candidate, DropRule, Ordering

__all__ = ["PartsOrdering", "order_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsOrdering:
    """The order of commits and what is sent for it.

    Args:
        ordering: as for one server; a slot's profile has no rates, only when the first part starts and the last ends.
        transfers: the part of the update at position p for server s is number ``(p - 1) * servers + s``.
        arrive_ns: by position (from 0), when its last part has arrived.
        lines: what is free when all of them are reserved.
    """

    ordering: Ordering
    transfers: Sequence[Transfer]
    arrive_ns: Sequence[int]
    lines: Lines = field(compare=False, repr=False)


def order_parts(
    candidates: Sequence[Candidate],
    network: Network,
    servers: Sequence[str],
    *,
    v_init: int,
    tau_max: int | None,
    now_ns: int,
    rule: DropRule = DropRule.FEASIBLE,
    over: tuple[World, Lines] | None = None,
) -> PartsOrdering:
    """Order a batch of updates whose parts go to different servers; ``network`` is not changed.

    Args:
        candidates: different updates with ``part_bytes``, and ``in_flight_parts`` if they are in flight.
        servers: hosts, one for each part, the same one as often as it has parts.
        v_init: the version to which the update at position 1 is applied.
        tau_max: delay bound, >= 0; None for no bound.
        now_ns: nothing is planned before.
        over: a world with the paths from all sources to the servers, and what is free there; None for what is free in
            the network.

    Returns:
        Every candidate, as a slot with its transfers or left with its cause.

    Raises:
        UsageError: an unknown host, a size out of range, or parts that do not match the servers.
    """
    for candidate in candidates:
        check_parts(candidate.update, candidate.part_bytes, servers)
        if candidate.in_flight is not None and len(candidate.in_flight_parts) != len(servers):
            raise UsageError(f"{candidate.update} is in flight; give the profile of each of its {len(servers)} parts")
    floor_ns = max(now_ns, network.floor_ns)
    contest = PartsContest(candidates, servers, v_init=v_init, tau_max=tau_max, now_ns=floor_ns)
    world, lines = over or (None, None)
    if world is None or lines is None:
        world = World(network, sorted({c.source for c in candidates}), list(dict.fromkeys(servers)))
        lines = world.lines
    by_rule = order_parts_by_paper if rule is DropRule.PAPER else _feasible
    by_position, lines = by_rule(contest, contest.reserver(world), lines)
    transfers = [transfer for i in by_position for transfer in contest.transfers(i, network)]
    of_update = [transfers[n : n + len(servers)] for n in range(0, len(transfers), len(servers))]
    return PartsOrdering(
        ordering=contest.ordering(by_position),
        transfers=transfers,
        arrive_ns=[max(transfer.arrive_ns for transfer in parts) for parts in of_update],
        lines=lines,
    )


def _feasible(contest: PartsContest, reserver: PartsReserver, lines: Lines) -> tuple[list[int], Lines]:
    """The default rule, as in ``ordering.py``; return who commits, by position, and what is free then."""
    waiting = _staying(contest, contest.solo_ends(reserver, lines))
    contest.binding = len(waiting) + len(contest.profiles)
    found, lines = reserver.reserve(lines, _by_deadline(contest, waiting))
    contest.keep(found)
    for i in waiting:
        if i not in found:
            contest.leave_unreachable(i)
    arrivals = sorted(contest.profiles, key=lambda i: (contest.end_ns(i), i))
    return [arrivals[n] for n in commit_order([contest.due[i] for i in arrivals])], lines


def _staying(contest: PartsContest, ends: Sequence[int]) -> list[int]:
    """Leave whoever cannot come at all, then who is in conflict; return those still to be reserved, by rank."""
    staying = []
    for i, end_ns in enumerate(ends):
        if i in contest.flying or end_ns < HORIZON_NS:
            staying.append(i)
        else:
            contest.leave_unreachable(i)
    badness = [(i not in contest.flying, ends[i], contest.candidates[i].update) for i in staying]
    due = conflicts([contest.due[i] for i in staying], badness)
    for n, q in due:
        i = staying[n]
        contest.leave(i, leaving.crowded_out(contest.candidates[i], q, ends[i] - contest.now_ns))
    gone = {staying[n] for n, _ in due}
    return [i for i in staying if i not in gone and i not in contest.flying]


def _by_deadline(contest: PartsContest, waiting: Sequence[int]) -> Iterator[list[int]]:
    """Split into what reserves together: equal deadlines that bind, then all that do not bind."""
    none_binds = contest.binding + 1
    for _, together in groupby(waiting, key=lambda i: min(contest.due[i], none_binds)):
        yield list(together)
