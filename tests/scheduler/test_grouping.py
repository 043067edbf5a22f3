"""What a plan's group asks of whom holds for every plan: nobody is summed twice, and all roads lead to the server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import Network, up_link
from mlfabric.planning import Aggregator, Batch, Candidate, FabricState, Plan, PlannerConfig, Shape, plan
from mlfabric.planning.paper_plan import plan_by_paper
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.updates.groups import Gathering, gather, hops

pytestmark = pytest.mark.usefixtures("compiled_planner")
GIGABIT = 10**9


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a batch behind a slow server; some workers share hosts with aggregators, or with each other."""
    helpers = [f"g{n}" for n in range(draw(st.integers(1, 3)))]
    own = [f"w{n}" for n in range(draw(st.integers(1, 5)))]
    network = Network.star(GIGABIT)
    for host in (*helpers, *own):
        network.add_host(host)
    network.add_host("s", 0, GIGABIT // draw(st.sampled_from([1, 4, 20])))
    for host in own:
        network.set_rate(up_link(host), GIGABIT // draw(st.sampled_from([1, 2, 8])))
    sources = draw(st.lists(st.sampled_from([*own, *helpers]), min_size=2, max_size=9))
    updates = tuple(
        Candidate(update=UpdateId(f"u{n}", 1, 0), source=source, size_bytes=10**6, ready_ns=0, computed_from=0)
        for n, source in enumerate(sources)
    )
    most = draw(st.integers(0, 4))
    state = FabricState(now_ns=0, server="s", aggregators=tuple(Aggregator(host=h, most_updates=most) for h in helpers))
    make = draw(st.sampled_from([plan, plan_by_paper]))
    return make(Batch(updates=updates), network, state, PlannerConfig(gamma=draw(st.sampled_from([0, 0.9]))))


def members_of(gatherings: list[Gathering], place: int) -> set[UpdateId]:
    one = gatherings[place]
    return {leg.update for leg in one.legs}.union(*(members_of(gatherings, child) for child in one.children))


def hops_from(gatherings: list[Gathering], place: int) -> int:
    return 1 + max([hops_from(gatherings, child) for child in gatherings[place].children], default=1)


@given(plans())
def test_the_hops_of_a_group_are_those_of_its_longest_way(found):
    for group in found.groups:
        if group.shape is not Shape.DIRECT:
            gatherings = gather(found, group)
            assert hops(gatherings) == hops_from(gatherings, 0)


@given(plans())
def test_every_update_of_a_group_is_added_up_once_on_its_way_to_the_server(found):
    sources = {candidate.update: candidate.source for candidate in found.batch.updates}
    for group in found.groups:
        if group.shape is Shape.DIRECT:
            continue
        gatherings = gather(found, group)
        assert sorted(leg.update for g in gatherings for leg in g.legs) == sorted(group.members)
        assert gatherings[0].transfer.destination == "s"
        for place, one in enumerate(gatherings):
            assert members_of(gatherings, place) == set(one.transfer.members)
            assert all(child > place for child in one.children)
            assert {gatherings[child].transfer.destination for child in one.children} <= {one.transfer.source}
            for leg in one.legs:
                assert (leg.path == ()) == (sources[leg.update] == one.transfer.source)
        children = [child for one in gatherings for child in one.children]
        assert sorted(children) == list(range(1, len(gatherings)))
