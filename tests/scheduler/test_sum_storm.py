"""Whatever breaks, sums end: every update is committed once or dropped, and nothing stays reserved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import Committed
from mlfabric.rules import RuleSpec
from tests.scheduler.stage import SPEC
from tests.scheduler.storm import Storm
from tests.scheduler.storm_members import Aggregator, Server, Worker, lost

pytestmark = pytest.mark.usefixtures("compiled_planner")


def play(seed: int, faults: int) -> tuple[Storm, Server, list[Worker]]:
    rule = RuleSpec(lr=0.1, momentum=0.9 if seed % 3 == 0 else 0.0)
    storm = Storm(seed, replace(SPEC, tau_max=None if seed % 2 else 12, rule=rule), calm=not faults)
    server, workers = Server(storm), [Worker(storm, f"w{n}", updates=6) for n in range(5)]
    storm.begin([server, *(Aggregator(storm, f"g{n}") for n in range(1 + seed % 3)), *workers])
    storm.later(50, 60, lambda: storm.strike(faults))
    storm.run(40_000)
    return storm, server, workers


@pytest.mark.parametrize("seed", range(30))
def test_in_a_storm_nothing_is_lost_or_applied_twice_and_everything_ends(seed):
    storm, server, workers = play(seed, faults=40)
    pushes = storm.state.models["net"].pushes
    assert lost(workers, server) == []
    assert not pushes.waiting
    assert not len(pushes.sums)
    versions = [o.version.number for o in server.applied.values() if isinstance(o, Committed)]
    assert sorted(versions) == list(range(1, storm.version + 1))
    network = storm.state.context.network
    network.prune(storm.now_ns)
    assert all(network.busy_until(link, storm.now_ns) == storm.now_ns for link in network.links)


def test_in_calm_weather_sums_are_made_and_none_is_torn():
    storm, _, workers = play(1, faults=0)
    assert not storm.state.count.torn
    assert any(members > 1 for _, members in storm.state.count.groups)
    assert all(isinstance(o, Committed) for w in workers for o in w.outcomes.values())
