"""The order in which a batch of updates is sent and committed (paper, section 5.1, with its rule for drops mended).

The update at position p (from 1) is applied to version ``v_init + p - 1``, so its delay keeps the bound ``tau_max`` up
to the deadline position ``computed_from + tau_max - v_init + 1``. The default rule has four steps:

1. *Left at once*: a deadline below 1, or a path without capacity.
2. *Left for others*: positions are unit slots. At the smallest q with more than q deadlines <= q, the slowest of those
   updates is left (what is in flight last), until none is violated.
3. *Reserved*: updates whose deadline binds (it is at most the number of updates) reserve first, by deadline, so that a
   slow one starts at once instead of waiting behind shorter ones; then the rest, shortest transfer first.
4. *Committed*: each position goes to the first update to arrive whose choice leaves the others feasible.

So an update is left only if no order could have kept its bound together with theirs. Ties: (t_en, deadline, worker,
id). The paper's own rule (algorithm 2) is in ``paper.py``.

Small batches are ordered here, in plain Python; large ones by kernels that work on columns (``columns.py``), once
:func:`warm_up` has loaded these. Both give the same plan to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from mlfabric.network import HORIZON_NS, Network
from mlfabric.scheduler.planning import leaving, reserving
from mlfabric.scheduler.planning.contest import Contest
from mlfabric.scheduler.planning.paper import order_by_paper
from mlfabric.scheduler.planning.positions import commit_order, conflicts
from mlfabric.scheduler.planning.shortest import PythonReserver
from mlfabric.scheduler.planning.values import Candidate, DropRule, Ordering

if TYPE_CHECKING:
    from mlfabric.scheduler.planning.fluid.world import World

__all__ = ["order"]


def order(
    candidates: Sequence[Candidate],
    network: Network,
    destination: str,
    *,
    v_init: int,
    tau_max: int | None,
    now_ns: int,
    rule: DropRule = DropRule.FEASIBLE,
    world: World | None = None,
) -> Ordering:
    """Order a batch of updates to one server; ``network`` is not changed.

    Args:
        candidates: different updates; those in flight have their reservation in the network.
        destination: the server's host.
        v_init: the version to which the update at position 1 is applied.
        tau_max: delay bound, >= 0; None for no bound: then ties go by (t_en, worker, id).
        now_ns: nothing is planned before.
        world: of this network, if there is one already; has the ways from all sources to the server. It stays as it is.

    Returns:
        Every candidate, as a slot or left with its cause.

    Raises:
        UsageError: an unknown host, or a size out of range.
    """
    kernels = reserving.kernels_for(len(candidates))
    if kernels is not None:
        return kernels.order(
            candidates,
            network,
            destination,
            v_init=v_init,
            tau_max=tau_max,
            now_ns=now_ns,
            rule=rule,
            world=world,
        )
    batch = Contest(candidates, network, destination, v_init=v_init, tau_max=tau_max, now_ns=now_ns)
    if len(batch.candidates) == 1:
        return _order_one(batch, network)
    return order_by_paper(batch, network) if rule is DropRule.PAPER else _order_feasible(batch, network)


def _order_one(batch: Contest, network: Network) -> Ordering:
    """The hot case: a lone update competes with nobody, whatever the rule."""
    if not batch.profiles:
        profile = network.transfer(*batch.demands[0])
        if profile is None:
            batch.leave_unreachable(0)
            return batch.ordering([])
        batch.profiles[0] = profile
    batch.binding = 1
    return batch.ordering([0])


def _order_feasible(batch: Contest, network: Network) -> Ordering:
    reserver = PythonReserver(batch.demands, network)
    ends = reserver.solo_ends()
    for i, profile in batch.profiles.items():
        ends[i] = profile.end_ns
    waiting = _feasible(batch, ends)
    batch.binding = len(waiting) + len(batch.profiles)
    for i, planned in reserver.reserve(_by_deadline(batch, waiting)).items():
        if planned is None:
            batch.leave_unreachable(i)
        else:
            batch.profiles[i] = planned
    profiles = batch.profiles
    arrivals = sorted(profiles, key=lambda i: (profiles[i].end_ns, i))
    return batch.ordering([arrivals[n] for n in commit_order([batch.deadlines[i] for i in arrivals])])


def _feasible(batch: Contest, ends: Sequence[int]) -> list[int]:
    """Leave whoever cannot come at all, then who is in conflict; return those still to be reserved, by rank."""
    flying = set(batch.profiles)
    staying = []
    for i, end_ns in enumerate(ends):
        if i in flying or end_ns < HORIZON_NS:
            staying.append(i)
        else:
            batch.leave_unreachable(i)
    badness = [(i not in flying, ends[i], batch.candidates[i].update) for i in staying]
    due = conflicts([batch.deadlines[i] for i in staying], badness)
    for n, q in due:
        i = staying[n]
        batch.profiles.pop(i, None)
        batch.left.append(leaving.crowded_out(batch.candidates[i], q, ends[i] - batch.now_ns))
    gone = {staying[n] for n, _ in due}
    return [i for i in staying if i not in gone and i not in flying]


def _by_deadline(batch: Contest, waiting: Sequence[int]) -> Iterator[list[int]]:
    """Split into what reserves together: equal deadlines that bind, then all that do not bind."""
    deadlines, none_binds = batch.deadlines, batch.binding + 1
    for _, together in groupby(waiting, key=lambda i: min(deadlines[i], none_binds)):
        yield list(together)
