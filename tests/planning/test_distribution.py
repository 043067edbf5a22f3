"""Models are handed on while they still arrive."""

from __future__ import annotations

import pytest

from mlfabric.network import Network, down_link, up_link
from mlfabric.planning.plan import Plan
from mlfabric.planning.plan_values import GetCandidate
from mlfabric.planning.problem import Batch, FabricState, Objective, PlannerConfig
from tests.planning.worlds import SERVER, Fabric, a_get, helpers, names, star

pytestmark = pytest.mark.usefixtures("compiled_planner")

MS = 10**6
SIZE = 2 * 10**6
WIRE_MS = 80


def equal_star(workers: int, *others: str) -> tuple[Network, list[GetCandidate]]:
    """The issue's fabric: 200 Mbit/s, 1 ms, and a model of 2 MB, whose wire time is 80 ms."""
    network = star([SERVER, *names(workers), *others], MS, 200 * 10**6)
    return network, [a_get(host, size_bytes=SIZE) for host in names(workers)]


def planned(network: Network, gets: list[GetCandidate], hosts: list[str], **config: object) -> Plan:
    """Answer gets, with some hosts to hand the model on, and let the plan check itself."""
    state = FabricState(now_ns=0, server=SERVER, distributors=helpers(hosts))
    return Fabric(network, Batch(gets=tuple(gets)), state, PlannerConfig()).plan(**config)


def last_ms(found: Plan) -> float:
    return max(answer.arrive_ns for answer in found.gets) / MS


def handing_on(found: Plan) -> set[str]:
    return {transfer.source for transfer in found.transfers if transfer.path} - {SERVER}


@pytest.mark.parametrize("objective", Objective)
def test_thirty_equal_workers_have_the_model_within_little_more_than_two_wire_times(objective: Objective) -> None:
    found = planned(*equal_star(30), names(30), objective=objective)
    assert handing_on(found)
    assert last_ms(found) <= 2.2 * WIRE_MS


def test_a_few_distributors_without_gets_of_their_own_save_most_of_the_time_of_many_gets() -> None:
    others = [f"d{n}" for n in range(7)]
    network, gets = equal_star(70, *others)
    assert last_ms(planned(network, gets, [])) / last_ms(planned(network, gets, others)) > 4


def test_a_slow_host_hands_nothing_on_and_does_not_hold_up_the_others() -> None:
    network, gets = equal_star(8)
    network.set_rate(up_link("w000"), 10**7)
    network.set_rate(down_link("w000"), 50 * 10**6)
    found = planned(network, gets, names(8), objective=Objective.LAST_COMMIT)
    assert "w000" not in handing_on(found)
    slow = next(a.arrive_ns for a in found.gets if a.get.worker == "w000")
    assert slow == max(a.arrive_ns for a in found.gets) == 321 * MS  # as soon as if it were alone


@pytest.mark.parametrize("slow", [("w000",), ("w000", "w003"), ("w001", "w002", "w007")])
def test_who_would_hand_it_on_slowly_gets_it_from_others_and_not_before_them(slow: tuple[str, ...]) -> None:
    network, gets = equal_star(8)
    for host in slow:
        network.set_rate(up_link(host), 50 * 10**6)
    found = planned(network, gets, names(8))
    assert not handing_on(found) & set(slow)
    late = [a for a in found.gets if a.arrive_ns > 1.35 * WIRE_MS * MS]
    assert len(late) == len(slow) - 1, "the server and each fast host hand it on once in that time"


def test_late_gets_are_answered_by_the_server_and_wait_for_nobody() -> None:
    network, gets = equal_star(6)
    late = a_get("w005", 1, SIZE, ready_ns=300 * MS)
    found = planned(network, [*gets, late], names(6))
    transfer = next(t for t in found.transfers if t.get == late.get)
    assert handing_on(found)
    assert (transfer.source, transfer.profile.start_ns) == (SERVER, 300 * MS)


def test_a_host_that_nothing_reaches_is_deferred_and_the_others_are_served() -> None:
    network, gets = equal_star(4)
    network.set_rate(down_link("w001"), 0)
    found = planned(network, gets, names(4))
    assert [(str(d.what), d.reason) for d in found.deferred] == [("w001?0", "a link on its path has no capacity")]
    assert len(found.gets) == 3


def test_the_server_answers_the_shortest_first_and_defers_those_without_a_way() -> None:
    network = star([SERVER, "fast", "slow", "off"])
    network.set_rate(down_link("slow"), 10**8)
    network.set_rate(down_link("off"), 0)
    found = planned(network, [a_get(host) for host in ("off", "slow", "fast", SERVER)], [])
    assert [(answer.get.worker, answer.arrive_ns, answer.reason) for answer in found.gets] == [
        (SERVER, 0, "shortest transfer first: 0.0 ms"),
        ("fast", 8 * MS, "shortest transfer first: 8.0 ms"),
        ("slow", 88 * MS, "shortest transfer first: 88.0 ms"),
    ]
    assert [str(deferred.what) for deferred in found.deferred] == ["off?0"]
