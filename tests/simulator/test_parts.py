"""The parts of the simulated world: links, lines, the store double, the clock."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import up_link
from mlfabric.protocol import UpdateId
from mlfabric.simulator.config import SimulationConfig
from mlfabric.simulator.double import ReceiveBuffers, StoreDouble
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.lines import Connection, End, Stream
from mlfabric.simulator.world import World

MS = 1_000_000
A, B = UpdateId("a", 1, 0), UpdateId("b", 1, 0)


@pytest.fixture
def world():
    return World(SimulationConfig(seed=1, link_bps=1_000_000_000))


@pytest.fixture
def flows(world):
    flows = Flows(world)
    for host in ("a", "b", "s"):
        flows.add_host(host)
    return flows


def run(world):
    while world.step():
        pass


def moved(world, flows, *starts):
    """Start transfers of 1 MB (8 ms alone) and return after how many ms each was over."""
    began, over = world.now_ns, {}
    for name, source, destination, after_ms in starts:

        def begin(name=name, source=source, destination=destination):
            flows.start(name, source, destination, 1_000_000, 0, lambda: over.update({name: world.now_ns - began}))

        world.later(round(after_ms * MS), name, begin)
    run(world)
    return {name: round(ns / MS, 3) for name, ns in over.items()}


def test_a_lone_transfer_takes_the_links_rate(world, flows):
    assert moved(world, flows, ("x", "a", "s", 0)) == {"x": 8}


def test_transfers_share_a_link_evenly(world, flows):
    assert moved(world, flows, ("x", "a", "s", 0), ("y", "b", "s", 0)) == {"x": 16, "y": 16}


def test_a_transfer_that_joins_slows_the_other_from_then_on(world, flows):
    assert moved(world, flows, ("x", "a", "s", 0), ("y", "b", "s", 4)) == {"x": 12, "y": 16}


def test_transfers_on_different_links_do_not_meet(world, flows):
    assert moved(world, flows, ("x", "a", "s", 0), ("y", "s", "b", 0)) == {"x": 8, "y": 8}


def test_a_link_that_slows_down_slows_what_runs(world, flows):
    world.later(4 * MS, "slower", lambda: flows.set_rate(up_link("a"), 500_000_000))
    assert moved(world, flows, ("x", "a", "s", 0)) == {"x": 12}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), min_size=1, max_size=8))
def test_a_shared_link_is_never_idle_while_there_is_something_to_send(starts):
    world = World(SimulationConfig(seed=1, link_bps=1_000_000_000))
    flows = Flows(world)
    for host in ("a", "b", "s"):
        flows.add_host(host)
    over = moved(world, flows, *((f"{n}", source, "s", after) for n, (source, after) in enumerate(starts)))
    end = 0.0
    for after in sorted(after for _, after in starts):
        end = max(end, after) + 8
    assert max(over.values()) == pytest.approx(end, abs=0.001)


def test_messages_of_one_direction_keep_their_order(world):
    stream = Stream(world, "x", lambda end: None)
    heard: list[int] = []
    for number in range(50):
        stream.send(End.FAR, "number", partial(heard.append, number))
    run(world)
    assert heard == list(range(50))


def test_what_is_on_its_way_is_lost_with_the_line_and_both_ends_notice(world):
    heard: list[End] = []
    stream = Stream(world, "x", heard.append)
    stream.send(End.FAR, "never", lambda: pytest.fail("it arrived"))
    stream.break_up()
    run(world)
    assert sorted(heard, key=lambda e: e.value) == [End.FAR, End.NEAR]


def test_an_end_that_closes_hears_nothing_more(world):
    heard: list[End] = []
    stream = Stream(world, "x", heard.append)
    stream.close(End.NEAR)
    run(world)
    assert heard == [End.FAR]


def test_a_connection_that_breaks_stops_its_bytes(world, flows):
    connection = Connection(world, flows, 1, "x", lambda end: None)
    connection.move("a", "s", 1_000_000, 0, lambda: pytest.fail("they arrived"))
    world.later(4 * MS, "break", connection.break_up)
    run(world)


def test_the_store_writes_in_place_only_what_nobody_reads():
    store = StoreDouble(limit=2)
    store.initialise(100)
    held = store.acquire()
    store.begin(A, 1)
    store.finish()
    assert (store.value, held.value) == (101, 100)
    store.release(held)
    assert store.log == [A]


def test_the_store_notices_a_step_that_has_no_buffer():
    store = StoreDouble(limit=1)
    store.initialise(100)
    store.acquire()
    with pytest.raises(AssertionError, match="copies are pinned"):
        store.begin(A, 1)


def test_the_store_notices_who_reads_half_a_step():
    store = StoreDouble(limit=2)
    store.initialise(100)
    store.begin(A, 1)
    with pytest.raises(AssertionError, match="in place"):
        store.acquire()


def test_a_buffer_is_filled_only_by_its_own_connection():
    buffers = ReceiveBuffers()
    buffers.reserve(A, 1)
    with pytest.raises(AssertionError, match="belongs to 1"):
        buffers.fill(A, 2, 7)
    with pytest.raises(AssertionError, match="second buffer"):
        buffers.reserve(A, 3)
    with pytest.raises(AssertionError, match="no buffer"):
        buffers.forget(B)


def test_things_of_one_instant_happen_in_the_order_in_which_they_were_asked_for(world):
    heard: list[int] = []
    for number in range(20):
        world.later(5, "number", partial(heard.append, number))
    run(world)
    assert heard == list(range(20))
