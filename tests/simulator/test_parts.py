"""The parts of the simulated world: links, lines, the store double, the clock."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import RuleSpec
from mlfabric.network import down_link, up_link
from mlfabric.protocol import (
    Committed,
    Expect,
    Expected,
    ModelVersion,
    SumId,
    UpdateId,
    UpdateKind,
)
from mlfabric.server.actions import ApplyStep, StepKind
from mlfabric.simulator.config import SimulationConfig
from mlfabric.simulator.deposed import DeposedWitness
from mlfabric.simulator.double import StoreDouble
from mlfabric.simulator.exact import cut, joined
from mlfabric.simulator.link_sharing import Flows
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.simulated_connections import Connection, End, Stream
from mlfabric.simulator.witness import Truth, Witness
from mlfabric.simulator.world import World

MS = 1_000_000
NEAR, FAR = Process("near", "a"), Process("far", "s")
A, B, SUM = UpdateId("a", 1, 0), UpdateId("b", 1, 0), SumId(1, 0)


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
            flows.start(source, destination, 1_000_000, 0, lambda: over.update({name: world.now_ns - began}))

        world.later(round(after_ms * MS), name, begin)
    run(world)
    return {name: round(ns / MS, 3) for name, ns in over.items()}


def test_a_transfer_has_no_more_than_its_pace_and_than_its_part_of_its_narrower_link(world, flows):
    flows.set_rate(down_link("b"), 100_000_000)
    assert moved(world, flows, ("slow", "a", "b", 0), ("fast", "a", "s", 0)) == {"slow": 80, "fast": 16}
    began, over = world.now_ns, []
    flows.start("a", "s", 1_000_000, 250_000_000, lambda: over.append(world.now_ns - began))
    run(world)
    assert over == [32 * MS]


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
    stream = Stream(world, "x", lambda end: None, NEAR, FAR)
    heard: list[int] = []
    for number in range(50):
        stream.send(End.FAR, "number", partial(heard.append, number))
    run(world)
    assert heard == list(range(50))


def test_what_is_on_its_way_is_lost_with_the_line_and_both_ends_notice(world):
    heard: list[End] = []
    stream = Stream(world, "x", heard.append, NEAR, FAR)
    stream.send(End.FAR, "never", lambda: pytest.fail("it arrived"))
    stream.break_up()
    run(world)
    assert sorted(heard, key=lambda e: e.value) == [End.FAR, End.NEAR]


def test_a_connection_that_breaks_stops_its_bytes(world, flows):
    connection = Connection(world, flows, 1, "x", lambda end: None, NEAR, FAR)
    connection.move(End.FAR, 1_000_000, 0, lambda: pytest.fail("they arrived"))
    world.later(4 * MS, "break", connection.break_up)
    run(world)


PLAIN = RuleSpec(lr=0.5)


def step(*names, kind=StepKind.ONE, lrs=(0.5,), version=1):
    """Return the order to apply transfers together, to make this version."""
    return ApplyStep(model="net", transfers=names, kind=kind, lrs=lrs, version=ModelVersion(1, version))


def store_of_100(limit=2, rule=PLAIN):
    store = StoreDouble(limit, rule)
    store.initialise(100)
    return store


def test_the_store_notices_a_version_that_is_no_news():
    store = store_of_100()
    store.begin(step(A, version=2), [(2,)])
    store.finish(2)
    store.begin(step(B, version=2), [(2,)])
    with pytest.raises(AssertionError, match="made version 2 after 2"):
        store.finish(2)


def test_the_store_notices_who_reads_half_a_step():
    store = store_of_100()
    store.begin(step(A), [(1,)])
    with pytest.raises(AssertionError, match="in place"):
        store.acquire()


def witness_of(*bases):
    """Return a witness of a model that holds 100, and updates that bring 2, 4, ... computed from these versions."""
    witness, first = Witness(), UpdateId("first", 1, 0)
    witness.rules["net"] = PLAIN
    weights = Truth(model="net", step=100, computed_from=ModelVersion(0, 0), kind=UpdateKind.INITIAL)
    witness.truths[first] = weights
    witness.installs(first, ModelVersion(1, 0))
    for place, (name, base) in enumerate(zip((A, B), bases, strict=True), start=1):
        version = ModelVersion(1, base)
        witness.truths[name] = Truth(model="net", step=2 * place, computed_from=version, kind=UpdateKind.GRADIENT)
    return witness


def test_of_a_server_that_was_replaced_the_witness_takes_an_iteration_for_one_version_that_no_other_gives():
    witness = witness_of(0, 0)
    one, other = DeposedWitness(witness), DeposedWitness(witness)
    iteration = (A, B), step(A, B, kind=StepKind.MEAN, lrs=(0.5, 0.5))
    one.commits(*iteration)
    assert witness.lost == {name: [Committed(version=ModelVersion(1, 1), tau=0)] for name in (A, B)}
    with pytest.raises(AssertionError, match="given twice"):
        other.commits(*iteration)


def test_the_witness_notices_versions_that_a_group_cannot_make():
    with pytest.raises(AssertionError, match="made version"):
        witness_of(0, 0).commits((A, B), step(SUM, kind=StepKind.SUM, lrs=(0.5, 0.5), version=3))


def expected(witness, name, *members, seq=1):
    order = Expect(
        to="s",
        transfer=name,
        members=tuple(Expected(member, ModelVersion(1, 0), 0) for member in members),
        model="net",
        seq=seq,
        ticket=b"",
        size_bytes=16,
        tau_max=0,
        kind=UpdateKind.GRADIENT,
        after=(),
        reason="",
    )
    witness.expected(order)


def test_the_witness_notices_an_iteration_of_two_places():
    witness = witness_of(0, 0)
    expected(witness, A, A, seq=1)
    expected(witness, B, B, seq=2)
    with pytest.raises(AssertionError, match="make one version though they were planned at"):
        witness.begins(step(A, B, kind=StepKind.MEAN, lrs=(0.5, 0.5)), (A, B), [])


def test_a_payload_that_lacks_a_part_of_a_chunk_is_noticed():
    chunks = dict(enumerate(cut((5, 7), 3)))
    assert joined(chunks) == (5, 7)
    with pytest.raises(AssertionError, match="do not fit together"):
        joined(chunks | {2: (15, 20)})
