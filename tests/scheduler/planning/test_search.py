from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.optimality import SHAPES, Instance, instance
from mlfabric.network import Network
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid.search_kernel import commit_order
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.ordering import order
from mlfabric.scheduler.planning.plan import Kind, Toward
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from mlfabric.scheduler.planning.profiles import Profiles
from mlfabric.scheduler.planning.search import MOST_UPDATES, Found, improve, reordered, warm
from mlfabric.scheduler.planning.stored import forward_stored

MS = 1_000_000
MBYTE = 1_000_000


class Case:
    """A lot over a network, and its plan by algorithm 3."""

    def __init__(self, problem: Instance, lot: Lot | None = None) -> None:
        self.problem, state = problem, problem.state
        sources = {c.source for c in problem.batch.updates} | {a.host for a in state.aggregators}
        hosts = dict.fromkeys(["server", *(a.host for a in state.aggregators)])
        self.world = World(problem.network, sorted(sources), list(hosts))
        tau_max = problem.config.tau_max
        self.ordering = order(
            problem.batch.updates, problem.network, "server", v_init=state.v_init, tau_max=tau_max, now_ns=state.now_ns
        )
        self.deadlines = None if tau_max is None else [slot.deadline or 0 for slot in self.ordering.slots]
        self.lot = self._lot() if lot is None else lot
        self.common: dict[str, Any] = {
            "now_ns": state.now_ns,
            "objective": problem.config.objective,
            "carried": 2 if problem.config.gamma else 1,
            "toward": Toward.PRIMARY,
        }
        self.given: Forwarding = forward_stored(
            self.lot, self.world, self.world.lines, "server", state.aggregators, **self.common
        )

    def _lot(self) -> Lot:
        of = {c.update: c for c in self.problem.batch.updates}
        chosen = [of[slot.update] for slot in self.ordering.slots]
        return Lot(
            updates=[c.update for c in chosen],
            sources=[c.source for c in chosen],
            bits=np.array([8 * c.size_bytes for c in chosen], np.int64),
            ready_ns=np.array([c.ready_ns for c in chosen], np.int64),
            fixed=0,
            direct=Profiles.of([slot.profile for slot in self.ordering.slots]),
            planned=[True] * len(chosen),
        )

    def improve(self, evaluations: int = 300) -> Found | None:
        return improve(
            self.lot,
            self.given,
            self.world,
            self.world.lines,
            "server",
            self.problem.state.aggregators,
            **self.common,
            deadlines=self.deadlines,
            evaluations=evaluations,
        )


def check(case: Case, found: Found) -> None:
    """Assert all that a plan must keep."""
    lot, forwarding, network = found.lot, found.forwarding, case.problem.network.copy()
    assert sorted(found.order) == list(range(len(case.lot.updates)))
    assert lot.updates == [case.lot.updates[i] for i in found.order]
    if case.deadlines is not None:
        assert all(place < case.deadlines[i] for place, i in enumerate(found.order))
    assert [place for begin, end in forwarding.groups for place in range(begin, end)] == list(range(len(found.order)))
    for index, transfer in enumerate(forwarding.transfers):
        if transfer.planned:
            network.reserve(index, transfer.path, transfer.profile)  # refuses what does not fit
        assert sum((end - start) * bps for start, end, bps in transfer.profile.pieces) >= (
            8 * 10**9 * transfer.size_bytes if transfer.path else 0
        )
        assert transfer.profile.start_ns >= transfer.ready_ns
        assert transfer.ready_ns >= max((forwarding.transfers[i].arrive_ns for i in transfer.inputs), default=0)
        assert set(transfer.inputs) <= set(range(index))
    for (begin, end), last in zip(forwarding.groups, forwarding.last, strict=True):
        transfer = forwarding.transfers[last]
        assert transfer.members == tuple(lot.updates[begin:end])
        assert transfer.destination == "server"
        assert set(forwarding.arrive_ns[begin:end].tolist()) == {transfer.arrive_ns}
        if end - begin > 1:
            sizes = [int(bits) // 8 for bits in lot.bits[begin:end]]
            assert (transfer.kind, transfer.size_bytes) == (Kind.SUM, max(sizes) * case.common["carried"])
    limits = {a.host: a.most_updates or len(lot.updates) for a in case.problem.state.aggregators}
    for host, most in limits.items():
        assert sum(t.source == host and bool(t.inputs) for t in forwarding.transfers) <= 1
        assert all(len(t.inputs) <= most for t in forwarding.transfers if t.source == host)


@given(st.integers(0, 10**6))
def test_what_is_found_is_better_and_a_valid_plan(number: int):
    case = Case(instance(7, number))
    found = case.improve()
    if found is not None:
        check(case, found)
        costs = [f.cost(case.problem.config.objective, 0) for f in (found.forwarding, case.given)]
        assert costs[0] < costs[1]


@given(st.integers(0, 10**6))
def test_more_evaluations_are_never_worse_than_none_and_the_same_problem_has_the_same_plan(number: int):
    case, again = Case(instance(8, number)), Case(instance(8, number))
    one, other = case.improve(), again.improve()
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.order, one.forwarding.transfers) == (other.order, other.forwarding.transfers)


def star(hosts: str) -> Network:
    network = Network.star(100 * MBYTE)
    for host in (*hosts, "server"):
        network.add_host(host)
    return network


def simple(count: int, aggregators: str = "xy", objective: Objective = Objective.LAST_COMMIT) -> Instance:
    """Equal updates of 80 ms each."""
    hosts = "abcdefghijklmnopqrstu"[:count]
    problem = instance(0, 0)
    updates = tuple(
        replace(
            problem.batch.updates[0],
            update=UpdateId(host, 0, 0),
            source=host,
            size_bytes=MBYTE,
            ready_ns=0,
            computed_from=problem.state.v_init,
        )
        for host in hosts
    )
    return Instance(
        batch=replace(problem.batch, updates=updates),
        network=star(hosts + aggregators),
        state=replace(problem.state, aggregators=tuple(Aggregator(host=host) for host in aggregators)),
        config=replace(problem.config, tau_max=None, objective=objective, gamma=0.0),
    )


def test_updates_may_go_directly_after_a_sum_too():
    case = Case(simple(5, "x", Objective.MEAN_COMMIT))
    found = case.improve()
    # Two go directly by 80 and 160 ms, two into the aggregator by 160, their sum by 240, and the last directly by 320.
    assert found is not None
    check(case, found)
    assert found.forwarding.cost(Objective.MEAN_COMMIT, 0) == (1 + 2 + 3 + 3 + 4) * 80 * MS
    assert case.given.cost(Objective.MEAN_COMMIT, 0) == 14 * 80 * MS
    assert found.forwarding.shape is Shape.STORED


def test_without_aggregators_the_order_of_reservations_is_improved():
    problem = simple(2, "")
    slow, fast = problem.batch.updates
    problem.network.add_host("a", 50 * MBYTE)
    problem = replace(problem, batch=replace(problem.batch, updates=(slow, replace(fast, size_bytes=MBYTE * 3 // 2))))
    case = Case(problem)
    found = case.improve()
    # Shortest first sends the fast one at full rate for 120 ms; side by side both need the 200 ms of the server's link.
    assert case.given.cost(Objective.LAST_COMMIT, 0) > 200 * MS
    assert found is not None
    assert found.forwarding.shape is Shape.DIRECT
    assert found.forwarding.cost(Objective.LAST_COMMIT, 0) == 200 * MS


def test_what_is_on_its_way_stays_and_may_commit_at_another_position():
    problem = simple(4, objective=Objective.MEAN_COMMIT)
    path = problem.network.path("a", "server")
    problem.network.set_rate(path[0], 10 * MBYTE)
    profile = problem.network.transfer(path, MBYTE, 0)
    assert profile is not None
    base = Case(problem).lot
    problem.network.reserve("a", path, profile)
    slow = base.updates.index(UpdateId("a", 0, 0))
    first = [slow, *(i for i in range(4) if i != slow)]
    lot = base._replace(updates=[base.updates[i] for i in first], sources=[base.sources[i] for i in first], direct=None)
    flown = lot._replace(direct=Profiles.of([profile] * 4), planned=[False, True, True, True], fixed=1)
    case = Case(problem, lot)
    case.lot = flown
    found = case.improve()
    assert found is not None
    check(case, found)
    kept = next(t for t in found.forwarding.transfers if not t.planned)
    assert (kept.profile, kept.destination, kept.members) == (profile, "server", (UpdateId("a", 0, 0),))
    assert found.lot.planned == [True, True, True, False]
    assert found.order[-1] == 0


@pytest.mark.parametrize(("count", "evaluations"), [(1, 100), (MOST_UPDATES + 1, 100), (8, 0)])
def test_nothing_is_looked_for_in_large_or_single_lots_or_without_evaluations(count: int, evaluations: int):
    assert Case(simple(count)).improve(evaluations) is None


def test_nothing_is_found_where_some_update_cannot_be_sent():
    problem = simple(3)
    case = Case(problem)
    for host in "abc":
        problem.network.set_rate(problem.network.path(host, "server")[0], 0)
    case.world = World(problem.network, "abcxy", ["server", "x", "y"])
    assert case.improve() is None


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=6),
)
def test_an_order_of_commits_is_found_whenever_there_is_one(updates: list[tuple[int, int, int]]):
    where, arrive_ns, deadlines = (np.array(column, np.int64) for column in zip(*updates, strict=True))
    count = len(updates)

    def fits(places: tuple[int, ...]) -> bool:
        spans = [[n for n, i in enumerate(places) if where[i] == d] for d in (1, 2)]
        together = all(span[-1] - span[0] == len(span) - 1 for span in spans if span)
        return together and all(n < deadlines[i] for n, i in enumerate(places))

    order, marks = np.zeros(count, np.int64), np.zeros(count, np.int64)
    found = commit_order(where, arrive_ns, deadlines, np.argsort(deadlines, kind="stable"), marks, order)
    assert found == any(map(fits, permutations(range(count))))
    assert not found or fits(tuple(order.tolist()))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=6))
def test_single_updates_are_ordered_as_well_as_can_be(updates: list[tuple[int, int]]):
    arrive_ns, deadlines = (np.array(column, np.int64) for column in zip(*updates, strict=True))
    count = len(updates)

    def cost(places: tuple[int, ...]) -> int:
        if any(n >= deadlines[i] for n, i in enumerate(places)):
            return 10**9
        return int(np.maximum.accumulate(arrive_ns[list(places)]).sum())

    order, none = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if commit_order(none, arrive_ns, deadlines, np.argsort(deadlines, kind="stable"), none.copy(), order):
        assert cost(tuple(order.tolist())) == min(map(cost, permutations(range(count))))


def test_an_ordering_is_brought_into_another_order():
    ordering = Case(simple(3)).ordering
    turned = reordered(ordering, [2, 0, 1])
    assert [slot.position for slot in turned.slots] == [1, 2, 3]
    assert [slot.update for slot in turned.slots] == [ordering.slots[i].update for i in (2, 0, 1)]
    assert turned.left == ordering.left


def test_warming_up_needs_nothing():
    warm()


def test_shapes_of_the_benchmark_are_those_that_are_searched():
    assert {Shape.DIRECT, Shape.STORED} == SHAPES
