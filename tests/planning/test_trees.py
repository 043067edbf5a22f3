"""Cut-through trees: sums leave while their inputs still come in; good ones are found."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mlfabric.network import Network, down_link
from mlfabric.planning.plan import Plan
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    Consistency,
    FabricState,
    Objective,
    PlannerConfig,
    Shape,
)
from mlfabric.planning.trees import MOST_UPDATES
from tests.planning.worlds import (
    SERVER,
    WITH_SERVER,
    Fabric,
    an_update,
    helpers,
    leaf_spine,
    names,
    random_fabric,
    set_host_rates,
    star,
)

pytestmark = pytest.mark.usefixtures("compiled_planner")

MS = 1_000_000
SIZE = 5_000_000
WIRE_MS = 40


def equal(count: int, bps: int = 10**9, latency_ns: int = MS // 10) -> Network:
    return star([*names(count), SERVER], latency_ns, bps)


def updates_of(hosts: list[str], size_bytes: int = SIZE) -> list[Candidate]:
    return [an_update(host, 0, size_bytes) for host in hosts]


def planned(
    network: Network, updates: list[Candidate], aggregators: tuple[Aggregator, ...] | None = None, **config: object
) -> Plan:
    """Plan updates to the server, by default with every source as an aggregator, and let the plan check itself."""
    able = helpers(dict.fromkeys(c.source for c in updates)) if aggregators is None else aggregators
    state = FabricState(now_ns=0, server=SERVER, aggregators=able)
    settings = PlannerConfig(objective=Objective.LAST_COMMIT)
    found = Fabric(network, Batch(updates=tuple(updates)), state, settings).plan(**config)
    assert len(found.commits) == len(updates)
    return found


def last_ms(found: Plan) -> float:
    return max(commit.commit_ns for commit in found.commits) / MS


class TestEqualHosts:
    @pytest.mark.parametrize(
        ("config", "wires"),
        [
            ({"objective": Objective.LAST_COMMIT}, 1),
            ({"objective": Objective.MEAN_COMMIT}, 1),
            ({"objective": Objective.MEAN_COMMIT, "consistency": Consistency.SYNCHRONOUS}, 1),
            ({"gamma": 0.5}, 2),  # a sum is two tensors then
        ],
    )
    def test_thirty_updates_take_little_more_than_two_wire_times(self, config: dict[str, Any], wires: int) -> None:
        found = planned(equal(30, 200_000_000, MS), updates_of(names(30), 2_000_000), **config)
        assert last_ms(found) <= 2.2 * 80 * wires

    @pytest.mark.parametrize(
        ("hosts", "count", "able", "size_bytes", "most_ms"),
        [
            (30, 30, names(5), SIZE, 6.5 * WIRE_MS),  # six ways in, so at least five wire times; stored, it is nine
            (24, 20, names(24)[20:], SIZE, 6 * WIRE_MS),  # those who help have no update
            (30, 30, names(30), 1250, 0.1 + 0.3),  # a hop costs ten updates: a chain would take 30 hops
        ],
        ids=["few aggregators", "aggregators without an update", "tiny updates"],
    )
    def test_aggregators_share_the_work(
        self, hosts: int, count: int, able: list[str], size_bytes: int, most_ms: float
    ) -> None:
        found = planned(equal(hosts), updates_of(names(count), size_bytes), helpers(able))
        assert last_ms(found) <= most_ms


class TestUnevenHosts:
    def test_a_slow_host_delays_the_last_commit_no_more_than_alone(self) -> None:
        network = equal(20)
        set_host_rates(network, "w007", 10**8, 10**8)
        assert last_ms(planned(network, updates_of(names(20)))) <= 1.03 * 10 * WIRE_MS

    def test_slow_hosts_pass_nothing_on(self) -> None:
        network, slow = equal(20), {"w003", "w011", "w012"}
        for host in slow:
            set_host_rates(network, host, 10**9, 10**7)
        found = planned(network, updates_of(names(20)))
        assert not {transfer.destination for transfer in found.transfers} & slow
        assert last_ms(found) <= 2.5 * WIRE_MS

    def test_a_late_update_delays_nobody_else_s_sum(self) -> None:
        updates = updates_of(names(20))
        updates[-1] = replace(updates[-1], ready_ns=200 * MS)
        assert last_ms(planned(equal(20), updates)) <= 200 + WIRE_MS + 2

    def test_racks_with_one_uplink_each_are_summed_before_they_are_left(self) -> None:
        network = leaf_spine([SERVER, *names(24)], leaves=4, latency_ns=MS // 50)
        assert last_ms(planned(network, updates_of(names(24)))) <= 3.5 * WIRE_MS


class TestWhoMayTakePart:
    def test_an_aggregator_sums_no_more_than_it_may(self) -> None:
        found = planned(equal(12), updates_of(names(12)), helpers(names(12), most_updates=3))
        assert max(len(group.members) for group in found.groups) == 3

    def test_what_is_on_its_way_goes_directly_as_planned_before(self) -> None:
        network, updates = equal(6), updates_of(names(6))
        path = network.path("w000", SERVER)
        flying = network.transfer(path, SIZE, 0)
        assert flying is not None
        network.reserve(updates[0].update, path, flying)
        found = planned(network, [replace(updates[0], in_flight=flying), *updates[1:]])
        first = found.transfers[0]
        assert (first.profile, first.planned, len(found.groups[0].members)) == (flying, False, 1)
        assert found.shape is Shape.TREE

    @pytest.mark.parametrize("able", [8, 4 * MOST_UPDATES])
    def test_a_large_lot_is_planned_in_parts_that_share_the_aggregators(self, able: int) -> None:
        count = 4 * MOST_UPDATES
        found = planned(equal(count), updates_of(names(count)), helpers(names(able)))
        assert last_ms(found) <= count * WIRE_MS / (able + 1) * 1.6 + 500

    @pytest.mark.parametrize("able", [[], [SERVER]])
    def test_nothing_is_summed_where_nobody_may(self, able: list[str]) -> None:
        found = planned(equal(3), updates_of(names(3)), helpers(able))
        assert (found.shape, len(found.transfers)) == (Shape.DIRECT, 3)

    def test_nothing_is_summed_of_one_update_or_where_nothing_passes(self) -> None:
        network = equal(3)
        assert planned(network, updates_of(names(1))).shape is Shape.DIRECT
        network.set_rate(down_link(SERVER), 0)
        batch = Batch(updates=tuple(updates_of(names(3))))
        state = FabricState(now_ns=0, server=SERVER, aggregators=helpers(names(3)))
        found = Fabric(network, batch, state, PlannerConfig()).plan()
        assert (len(found.drops), len(found.transfers)) == (3, 0)


@pytest.mark.parametrize("seed", range(120))
def test_every_forest_keeps_the_promises_of_plans(seed: int) -> None:
    random_fabric(Random(seed), WITH_SERVER, frozenset(Shape), most=24, most_hosts=14).plan()
