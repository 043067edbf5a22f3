"""The planner's stages, and all of them together, against the dumb twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning import reserving, warm_up
from mlfabric.scheduler.planning.distribution import distribute
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.plan import Toward, Transfer
from mlfabric.scheduler.planning.planner import plan
from mlfabric.scheduler.planning.problem import Consistency, Shape
from mlfabric.scheduler.planning.profiles import Profiles
from mlfabric.scheduler.planning.replication import replicate
from mlfabric.scheduler.planning.stored import forward_stored
from tests.scheduler.planning.twin import TwinPlan, TwinPlanner, twin_plan
from tests.scheduler.planning.twin.aggregation import Item, Sent, Stored, TwinForwarding
from tests.scheduler.planning.twin.distribution import Distributing
from tests.scheduler.planning.twin.replication import TwinReplication
from tests.scheduler.planning.twin.replication import replicate as twin_replicate
from tests.scheduler.planning.worlds import Fabric, fabrics, random_fabric

WITH_SERVER = (Consistency.ASYNCHRONOUS, Consistency.SYNCHRONOUS, Consistency.STALE_SYNCHRONOUS)


def sent_as(transfers: Sequence[Transfer]) -> Counter[tuple[object, ...]]:
    """Return what travels, in no order."""
    return Counter((t.source, t.destination, t.size_bytes, t.profile, t.arrive_ns, t.members) for t in transfers)


def sent_by_twin(sent: Sequence[Sent]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(transfer) for transfer in sent)


def lot_of(items: Sequence[Item], fixed: int) -> Lot:
    """Lay items out as columns."""
    directly = [item.direct for item in items if item.direct is not None]
    return Lot(
        updates=[item.members[0] for item in items],
        sources=[item.source for item in items],
        bits=np.array([8 * item.size_bytes for item in items], np.int64),
        ready_ns=np.array([item.ready_ns for item in items], np.int64),
        fixed=fixed,
        direct=Profiles.of(directly) if len(directly) == len(items) else None,
        planned=[not item.reserved for item in items],
    )


def assert_stored_as_twin(fabric: Fabric, *, ordered: bool) -> TwinForwarding:
    """Forward a lot in the order of its commits, or as it was listed and without profiles."""
    state, config = fabric.state, fabric.config
    server, carried = state.server, 2 if config.gamma > 0 else 1
    order = TwinPlanner(fabric.twin, state.server, state.v_init, None, state.now_ns)
    now_ns = state.now_ns
    if ordered:
        placed = order.order(fabric.batch.updates).placed
        items = [
            Item((c.update,), c.source, c.size_bytes, max(c.ready_ns, now_ns), profile, c.in_flight is not None)
            for c, profile in placed
        ]
    else:
        updates = fabric.batch.updates
        items = [Item((c.update,), c.source, c.size_bytes, max(c.ready_ns, now_ns)) for c in updates]
    fixed = max([0, *(place for place, item in enumerate(items, start=1) if item.reserved)])
    hosts = [aggregator.host for aggregator in state.aggregators]
    world = World(fabric.network, sorted({*hosts, *(item.source for item in items)}), [*hosts, server])
    found = forward_stored(
        lot_of(items, fixed),
        world,
        world.lines,
        server,
        state.aggregators,
        now_ns=now_ns,
        objective=config.objective,
        carried=carried,
        toward=Toward.PRIMARY,
    )
    twin = Stored(items, fabric.twin, server, state.aggregators, now_ns, carried).best(config.objective, fixed)
    assert_same_forwarding(found, twin)
    return twin


def assert_same_forwarding(found: Forwarding, twin: TwinForwarding) -> None:
    assert [list(range(*group)) for group in found.groups] == twin.groups
    arrivals = [at_ns for group, at_ns in zip(twin.groups, twin.arrive_ns, strict=True) for _ in group]
    assert found.arrive_ns.tolist() == arrivals
    assert sent_as(found.transfers) == sent_by_twin(twin.sent)


def assert_replicated_as_twin(fabric: Fabric) -> TwinReplication:
    """Replicate updates in the order in which they are listed, each with the primary as soon as it is ready."""
    state, now_ns = fabric.state, fabric.state.now_ns
    items = [Item((c.update,), c.source, c.size_bytes, max(c.ready_ns, now_ns)) for c in fabric.batch.updates]
    norms = [c.norm for c in fabric.batch.updates]
    arrive_ns = sorted(item.ready_ns for item in items)
    replica = state.replica
    hosts, pending = ([], ()) if replica is None else ([a.host for a in replica.aggregators], replica.pending)
    sources = {*hosts, *(item.source for item in items), *(p.source for p in pending)}
    world = World(fabric.network, sorted(sources), [*hosts, *([replica.host] if replica else [])])
    arrivals = np.array(arrive_ns, np.int64)
    lot = lot_of(items, 0)
    found = replicate(lot, norms, arrivals, replica, fabric.config, world, world.lines, now_ns=now_ns)
    twin = twin_replicate(items, norms, arrive_ns, fabric.twin, replica, fabric.config, now_ns)
    assert found.commit_ns.tolist() == twin.commit_ns
    assert [(step.members, step.arrive_ns) for step in found.steps] == twin.steps
    assert [punt.update for punt in found.punts] == twin.punted
    assert [d.what for d in found.deferred] == [item.members[0] for item in items[len(twin.commit_ns) :]]
    assert sent_as(found.transfers) == sent_by_twin(twin.sent)
    return twin


def assert_distributed_as_twin(fabric: Fabric) -> bool:
    """Answer gets of a network without updates; return whether a distributor was of use."""
    state, gets = fabric.state, fabric.batch.gets
    found = distribute(
        gets,
        fabric.network,
        state.server,
        state.distributors,
        now_ns=state.now_ns,
        objective=fabric.config.objective,
        shapes={Shape.DIRECT, Shape.STORED},
    )
    task = Distributing(fabric.twin, state.server, state.distributors, state.now_ns, fabric.config.objective)
    twin = task.best(gets)
    assert {answer.get: answer.arrive_ns for answer in found.answers} == twin.answers
    assert {d.what for d in found.deferred} == twin.deferred
    assert sent_as(found.transfers) == sent_by_twin(twin.sent)
    return any(sent.source != state.server for sent in twin.sent)


def assert_planned_as_twin(fabric: Fabric) -> TwinPlan:
    found = plan(fabric.batch, fabric.network, fabric.state, fabric.config)
    found.validate(fabric.network)
    twin = twin_plan(fabric.batch, fabric.twin, fabric.state, fabric.config)
    commits = [(c.update, c.position, c.version, c.tau, c.arrive_ns, c.commit_ns) for c in found.commits]
    assert commits == [tuple(commit) for commit in twin.commits]
    assert [group.members for group in found.groups] == twin.groups
    assert {left.update: left.cause for left in found.drops} == twin.drops
    assert [(step.members, step.arrive_ns) for step in found.replica_steps] == twin.steps
    assert [punt.update for punt in found.punts] == twin.punts
    assert [d.what for d in found.deferred if isinstance(d.what, UpdateId)] == twin.deferred_updates
    assert {d.what for d in found.deferred if isinstance(d.what, GetId)} == twin.deferred_gets
    assert {answer.get: answer.arrive_ns for answer in found.gets} == twin.gets
    assert sent_as(found.transfers) == sent_by_twin(twin.sent)
    return twin


@settings(max_examples=150)
@given(fabric=fabrics())
def test_an_order_is_forwarded_as_the_twin_forwards_it(fabric: Fabric) -> None:
    twin = assert_stored_as_twin(fabric, ordered=True)
    event(f"{sum(len(group) > 1 for group in twin.groups)} sums")


@settings(max_examples=100)
@given(fabric=fabrics())
def test_a_lot_that_no_ordering_planned_is_forwarded_as_the_twin_forwards_it(fabric: Fabric) -> None:
    twin = assert_stored_as_twin(fabric, ordered=False)
    event("all sent" if sum(map(len, twin.groups)) == len(fabric.batch.updates) else "stuck")


@settings(max_examples=150)
@given(fabric=fabrics())
def test_a_replica_gets_what_the_twin_gives_it(fabric: Fabric) -> None:
    twin = assert_replicated_as_twin(fabric)
    event(f"{min(2, len(twin.steps))} steps or more")


@settings(max_examples=100)
@given(fabric=fabrics())
def test_gets_are_answered_as_the_twin_answers_them(fabric: Fabric) -> None:
    event("handed on" if assert_distributed_as_twin(fabric) else "direct")


@settings(max_examples=200)
@given(fabric=fabrics())
def test_an_asynchronous_batch_is_planned_as_the_twin_plans_it(fabric: Fabric) -> None:
    assert_planned_as_twin(fabric)


@settings(max_examples=100)
@given(fabric=fabrics(consistencies=(Consistency.SYNCHRONOUS, Consistency.STALE_SYNCHRONOUS)))
def test_lists_are_planned_as_the_twin_plans_them(fabric: Fabric) -> None:
    assert_planned_as_twin(fabric)


@pytest.fixture(scope="module")
def kernels() -> None:
    warm_up(lambda line: None)


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**48))
def test_whatever_there_is_is_planned_as_the_twin_plans_it(kernels: None, seed: int) -> None:
    """By seed: many more cases in the same time, though hypothesis cannot shrink them; with and without kernels."""
    fabric = random_fabric(Random(seed), consistencies=WITH_SERVER, most=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserving, "_loaded", [True][: seed % 8])
        assert_planned_as_twin(fabric)
