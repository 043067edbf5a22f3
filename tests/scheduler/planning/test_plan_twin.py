"""Plans whose transfers all go by themselves, against the dumb twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning import reserving, warm_up
from mlfabric.scheduler.planning.plan import Transfer
from mlfabric.scheduler.planning.planner import plan
from mlfabric.scheduler.planning.problem import Consistency
from tests.scheduler.planning.twin import TwinPlan, twin_plan
from tests.scheduler.planning.twin.direct import Sent
from tests.scheduler.planning.worlds import Fabric, fabrics, random_fabric

WITH_SERVER = (Consistency.ASYNCHRONOUS, Consistency.SYNCHRONOUS, Consistency.STALE_SYNCHRONOUS)


def sent_as(transfers: Sequence[Transfer]) -> Counter[tuple[object, ...]]:
    """Return what travels, in no order."""
    return Counter((t.source, t.destination, t.size_bytes, t.profile, t.arrive_ns, t.members) for t in transfers)


def sent_by_twin(sent: Sequence[Sent]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(transfer) for transfer in sent)


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
