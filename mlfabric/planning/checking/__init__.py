"""Checks whether a plan keeps its promises, from the plan's values alone; shares no code with the planner.

view       the plan as tables: hosts, sizes, members
carriage   each transfer by itself, and all of them on each link: capacity is never exceeded at any instant
sums       what a transfer contains, that it had arrived before it was forwarded, limits of aggregators and distributors
sequence   groups, positions, versions, delays, commit times: each update exactly once
all_reduce the same without a server
leads      what the replica holds, and the divergence bound at every commit instant
answers    gets

A broken promise raises an AssertionError that says which one, and where.
"""

from __future__ import annotations

from mlfabric.network import Network
from mlfabric.planning.checking.all_reduce_check import check_results
from mlfabric.planning.checking.answers import check_gets
from mlfabric.planning.checking.carriage import check_capacity, check_transfers
from mlfabric.planning.checking.leads import check_divergence, check_replica
from mlfabric.planning.checking.sequence import check_commits, check_groups, check_once
from mlfabric.planning.checking.sums import check_relays, check_sums
from mlfabric.planning.checking.view import View
from mlfabric.planning.plan import Plan
from mlfabric.planning.problem import Consistency

__all__ = ["validate"]


def validate(plan: Plan, network: Network) -> None:
    """Assert that a plan keeps its promises.

    Args:
        network: as it was when the plan was made, reservations of what was in flight then included; not changed.

    Raises:
        AssertionError: a promise is broken; says which, and where.
    """
    view = View.of(plan)
    check_transfers(view, network)
    check_capacity(view, network)
    check_sums(view, network)
    check_relays(view)
    check_once(view)
    check_commits(view)
    if plan.config.consistency is Consistency.ALL_REDUCE:
        check_results(view)
    else:
        check_groups(view)
    check_replica(view)
    check_divergence(view)
    check_gets(view)
