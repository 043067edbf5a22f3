from __future__ import annotations

from dataclasses import replace

from benchmarks.testbed.cell import plan_of, spared_in
from benchmarks.testbed.spec import result_from
from benchmarks.testbed.systems import fabric
from tests.testbed.made_up import SPEC, result_for

FABRIC = replace(SPEC, system="fabric-async", delay_bound=30)


def test_the_weather_leaves_servers_and_the_scheduler_their_full_rate():
    assert spared_in(FABRIC, [*fabric.SERVICES, "replica"]) == {"scheduler", "server", "replica"}
    assert spared_in(SPEC, []) == frozenset()


def test_on_demand_the_weather_is_on_servers_too_but_never_on_the_scheduler():
    spec = replace(FABRIC, server_weather=True)

    assert spared_in(spec, [*fabric.SERVICES, "replica"]) == {"scheduler"}
    assert spared_in(replace(spec, system="ps-async"), ["server"]) == frozenset()


def test_runs_with_and_without_weather_on_servers_are_different_runs():
    calm, changing = result_for(FABRIC), result_for(replace(FABRIC, server_weather=True))

    assert calm.spec.file_name != changing.spec.file_name
    assert result_from(changing.as_json()) == changing


def test_members_are_told_the_rate_that_links_have():
    plan = plan_of(FABRIC, FABRIC.link_bps(50_000))

    assert plan.link_bps == 50_000 * 32 / (0.08 * 2.0)
    assert (plan.delay_bound, plan.dilation) == (30, 2.0)
