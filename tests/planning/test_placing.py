"""The compiled kernels against the same text in plain Python, on large batches of updates and gets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import up_link
from mlfabric.planning import kernel_choice
from mlfabric.planning.ordering import order
from tests.planning.worlds import WITH_SERVER, an_update, random_fabric, star

pytestmark = pytest.mark.usefixtures("compiled_planner")


@settings(max_examples=200)
@given(seed=st.integers(0, 2**48))
def test_large_batches_are_planned_alike_compiled_and_not(seed: int) -> None:
    fabric = random_fabric(Random(seed), consistencies=WITH_SERVER, most=60)
    fast = fabric.plan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_choice, "_loaded", [])
        assert fabric.plan() == fast


@settings(max_examples=100)
@given(seed=st.integers(0, 2**48))
def test_updates_are_ordered_alike_where_they_might_be_summed_and_where_not(seed: int) -> None:
    """The kernels number the ways in two manners: for the whole plan, or for the order alone."""
    fabric = random_fabric(Random(seed), most=60)
    alone = replace(fabric.state, replica=None, aggregators=())
    fabric = replace(fabric, config=replace(fabric.config, div_max=None))
    found, other = (
        replace(fabric, state=replace(alone, aggregators=helpers)).plan()
        for helpers in (fabric.state.aggregators, alone.aggregators)
    )
    assert [transfer.profile for transfer in found.transfers] == [transfer.profile for transfer in other.transfers]
    assert (found.commits, found.drops) == (other.commits, other.drops)


def test_there_is_room_for_however_many_pieces() -> None:
    network = star("as", bps=4 * 10**9)
    for n in range(1000):
        network.plan_rate_change(up_link("a"), n * 10**6, 10**9 * (1 + n % 2))
    batch = [an_update("a", n, 10**7, computed_from=3 * n % 10) for n in range(10)]
    found = order(batch, network, "s", v_init=0, tau_max=9, now_ns=0)
    assert sum(len(slot.profile.pieces) for slot in found.slots) > 400
