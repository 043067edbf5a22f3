import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from benchmarks.exact.slotted import DIRECT, LEFT, Decisions, Slotted, replay, slotted
from benchmarks.exact.solving import ExactPlan, least_cost, solve
from benchmarks.optimality import SLOT_NS, Instance, instance
from mlfabric.errors import UsageError
from mlfabric.planning.problem import (
    Batch,
    Consistency,
    FabricState,
    Objective,
    PlannerConfig,
)
from tests.planning.worlds import an_update, helpers, star

MBYTE = 1_000_000
SLOT = 10_000_000  # one megabyte at 800 Mbit/s


def problem(
    sizes: Sequence[int], *, hosts: str = "", aggregators: str = "", ready: Sequence[int] = (), **config: object
) -> Instance:
    """Updates of so many slots each on a star of equal links, each from a host of its own unless told."""
    names = hosts or "abcdefgh"[: len(sizes)]
    network = star([*names, *aggregators, "server"], bps=800_000_000)
    ready_ns = [SLOT * slots for slots in ready or [0] * len(sizes)]
    updates = tuple(
        an_update(str(n), n, size * MBYTE, source=names[n], ready_ns=ready_ns[n], computed_from=9)
        for n, size in enumerate(sizes)
    )
    state = FabricState(now_ns=0, v_init=9, server="server", aggregators=helpers(aggregators))
    return Instance(
        batch=Batch(updates=updates),
        network=network,
        state=state,
        config=replace(PlannerConfig(objective=Objective.MEAN_COMMIT), **config),  # type: ignore[arg-type]
    )


def best(of: Instance, slots: int = 20, slot_ns: int = SLOT) -> ExactPlan:
    found = solve(in_slots(of, slots, slot_ns))
    assert found.is_proved
    return found


def in_slots(of: Instance, slots: int, slot_ns: int = SLOT) -> Slotted:
    return slotted(of.batch, of.network, of.state, of.config, slot_ns=slot_ns, slots=slots)


LAST: dict[str, Any] = {"objective": Objective.LAST_COMMIT}
SYNCHRONOUS: dict[str, Any] = {"consistency": Consistency.SYNCHRONOUS, "tau_max": 0}


@pytest.mark.parametrize(
    ("sizes", "given", "cost"),
    [
        ([3, 1, 2], {}, 10),
        ([3, 1, 2], LAST, 6),
        *(([3, 1, 2], {"objective": objective, **SYNCHRONOUS}, 6) for objective in Objective),
        ([1] * 4, {"aggregators": "x", **LAST}, 3),
        ([1] * 4, {"aggregators": "x", "gamma": 0.5, **LAST}, 4),
        ([4, 4], {"aggregators": "a", **LAST}, 8),
        ([4, 4, 4], {"aggregators": "a", **LAST}, 8),
        ([], {}, 0),
    ],
    ids=[
        "mean",
        "last commit",
        *(f"synchronous, {objective.name}" for objective in Objective),
        "a sum",
        "with momentum at the server a sum is twice as large",
        "on its aggregator's host an update is there at once",
        "and of the others one goes directly",
        "nobody",
    ],
)
def test_the_least_cost_is_known(sizes: list[int], given: dict[str, Any], cost: int):
    assert best(problem(sizes, **given)).cost == cost


def test_on_one_link_the_shortest_goes_first():
    found = best(problem([3, 1, 2]))
    assert (found.commits, set(found.where)) == ((6, 1, 3), {DIRECT})


def test_a_sum_is_used_where_it_helps():
    found = best(problem([1] * 5, aggregators="xy", **LAST), slots=6)
    # By 2 two have gone directly, and two or three to aggregators; sums by 3 and 4. By 3 there is no way.
    assert found.cost == 4
    assert found.where.count(DIRECT) <= 3


def test_an_aggregator_takes_no_more_than_it_may():
    of = problem([1] * 6, aggregators="x", objective=Objective.LAST_COMMIT)
    free = best(of)
    limited = best(replace(of, state=replace(of.state, aggregators=helpers("x", most_updates=2))))
    assert (free.cost, limited.cost) == (4, 5)
    assert limited.where.count(1) == 2


def test_nothing_is_sent_before_it_is_ready():
    assert best(problem([2, 1], ready=[0, 5])).commits == (2, 6)


def test_latency_counts_in_whole_slots():
    of = problem([1, 1])
    network = star(["a", "b", "server"], SLOT // 2, 800_000_000)
    assert sorted(best(replace(of, network=network)).commits) == [2, 3]


def test_a_rate_that_changes_is_used_as_it_is():
    of = problem([2, 2], objective=Objective.LAST_COMMIT)
    for at_ns, bps in ((SLOT, 0), (3 * SLOT, 1_600_000_000)):
        of.network.plan_rate_change(of.network.path("a", "server")[1], at_ns, bps)
    # One slot at the full rate, two of nothing, then both hosts at once.
    assert best(of).cost == 5


def test_a_deadline_is_kept_although_it_costs_time():
    of = problem([1, 4], tau_max=2)
    first, second = of.batch.updates
    bound = replace(of, batch=Batch(updates=(first, replace(second, computed_from=7))))
    assert best(of).commits == (1, 5)
    assert best(bound).commits in ((5, 4), (5, 5))
    assert best(bound).cost == 9


def test_most_updates_are_committed_first_then_those_that_cost_least():
    found = best(problem([5, 1, 3], tau_max=0))
    assert (found.where, found.commits) == ((LEFT, DIRECT, LEFT), (-1, 1, -1))


def test_members_of_a_sum_are_neighbours_in_the_order_of_commits():
    of = problem([2] * 4, aggregators="x", objective=Objective.LAST_COMMIT, tau_max=3)
    ages = [1, 3, 0, 0]  # deadlines 3, 1, 4, 4
    aged = tuple(replace(c, computed_from=9 - age) for c, age in zip(of.batch.updates, ages, strict=True))
    found = best(replace(of, batch=Batch(updates=aged)))
    groups = [found.where[i] for i in sorted(range(4), key=lambda i: (found.commits[i], found.where[i]))]
    assert found.cost < 8
    assert groups.count(1) >= 2


def test_a_sum_may_have_three_members_where_deadlines_bind():
    of = problem([1] * 6, aggregators="x", objective=Objective.LAST_COMMIT, tau_max=5)
    aged = (replace(of.batch.updates[0], computed_from=8), *of.batch.updates[1:])
    found = best(replace(of, batch=Batch(updates=aged)), slots=6)
    assert (found.cost, found.where.count(1)) == (4, 3)


def test_an_aggregator_makes_one_sum_also_where_sums_of_one_and_of_several_differ():
    of = problem([1] * 5, hosts="aaabb", aggregators="x", objective=Objective.LAST_COMMIT, gamma=0.5)
    (up, into), (out, down) = of.network.path("a", "x"), of.network.path("x", "server")
    for link, bps in ((into, 2), (out, 4), (down, 0)):
        of.network.set_rate(link, bps * 800_000_000)
    of.network.plan_rate_change(down, 2 * SLOT, 8 * 800_000_000)
    of = replace(of, state=replace(of.state, aggregators=helpers("x", most_updates=2)))
    # Nothing reaches the server before 2. By 3 each host sends one; two of one host and one of the other are too many.
    assert of.network.rate_bps(up, 0) == 800_000_000
    assert best(of, slots=6).cost == 4


def test_what_is_on_its_way_keeps_its_links_and_may_commit_at_another_position():
    of = problem([6, 1])
    path = of.network.path("a", "server")
    profile = of.network.transfer(path, 6 * MBYTE, 0)
    assert profile is not None
    of.network.reserve("a", path, profile)
    flown = replace(of.batch.updates[0], in_flight=profile)
    found = best(replace(of, batch=Batch(updates=(flown, of.batch.updates[1]))))
    assert found.commits == (6, 7)


def test_who_cannot_be_sent_or_is_too_late_is_not_in_the_problem():
    of = problem([1, 1, 1], tau_max=0)
    of.network.set_rate(of.network.path("a", "server")[0], 0)
    late = replace(of.batch.updates[1], computed_from=8)
    found = best(replace(of, batch=Batch(updates=(of.batch.updates[0], late, of.batch.updates[2]))))
    assert [update.worker for update in found.problem.updates] == ["2"]


def all_decisions(of: Slotted) -> list[Decisions]:
    everyone = range(len(of.updates))
    ways = product(*(range(1 + len(of.sums)) for _ in everyone))
    return [Decisions(where, order) for where in ways for order in permutations(everyone)]


SMALL = [n for n in range(400) if len(instance(3, n).batch.updates) <= 3 and instance(3, n).state.aggregators][:30]


@pytest.mark.parametrize("number", SMALL)
def test_no_replay_of_any_decisions_is_better_and_one_is_as_good(number: int):
    of = instance(3, number)
    known = [replay(in_slots(of, 64, SLOT_NS), decisions) for decisions in all_decisions(in_slots(of, 1, SLOT_NS))]
    costs = [replayed.cost for replayed in known if replayed is not None]
    if costs and in_slots(of, 1).commits == len(in_slots(of, 1).updates):
        found = solve(
            in_slots(of, max(max(r.commits, default=1) for r in known if r and r.cost == min(costs)) + 4, SLOT_NS)
        )
        assert (found.cost, found.is_proved) == (min(costs), True)


def test_a_bound_is_known_even_if_there_is_no_time_to_solve():
    of = in_slots(problem([2, 2, 4], ready=[0, 0, 5], aggregators="x"), 20)
    found = solve(of, Decisions((DIRECT, DIRECT, DIRECT), (0, 1, 2)), limit_s=0)
    assert 2 + 2 + 9 == least_cost(of) <= found.bound <= 2 + 4 + 9 <= found.cost


def test_a_known_plan_to_begin_with_changes_nothing():
    of = in_slots(problem([1] * 4, aggregators="x", gamma=0.5, tau_max=3), 8)
    start = Decisions((0, 0, 1, 1), (0, 1, 2, 3))
    assert replay(of, start) is not None
    assert solve(of, start).cost == solve(of).cost


def test_too_few_slots_are_an_error_that_says_how_many():
    with pytest.raises(UsageError, match="no plan was found within 2 slots"):
        best(problem([3]), slots=2)


def test_without_the_solver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(UsageError, match=r"mlfabric\[exact\]"):
        best(problem([1]))


def test_slots_hold_what_is_free_in_them():
    of = problem([1])
    link = of.network.path("a", "server")[0]
    of.network.plan_rate_change(link, SLOT + SLOT // 4, 400_000_000)
    shown = in_slots(of, 3)
    assert np.array_equal(shown.free[0], [8_000_000, 5_000_000, 4_000_000])


def test_decisions_that_do_not_fit_or_miss_a_deadline_have_no_replay():
    of = problem([1, 2], tau_max=1)
    older = tuple(replace(c, computed_from=9 - n) for n, c in enumerate(of.batch.updates))
    aged = replace(of, batch=Batch(updates=older))
    direct = Decisions((DIRECT, DIRECT), (0, 1))
    assert replay(in_slots(aged, 2), direct) is None
    known = replay(in_slots(aged, 3), direct)
    assert known is not None
    assert (known.order, known.commits) == ((1, 0), (3, 3))
    both_first = replace(of, batch=Batch(updates=tuple(replace(c, computed_from=8) for c in of.batch.updates)))
    assert replay(in_slots(both_first, 3), direct) is None
