"""Laws that every plan keeps: it checks itself, the same input gives the same plan, more choice makes it no later."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlfabric.network import Network
from mlfabric.planning.plan import Plan
from mlfabric.planning.problem import (
    Batch,
    Consistency,
    FabricState,
    Objective,
    PlannerConfig,
    Shape,
)
from tests.planning.handmade import with_transfer
from tests.planning.worlds import (
    TIMES,
    TOPOLOGIES,
    WITH_SERVER,
    Fabric,
    a_get,
    fabrics,
    helpers,
    names,
    random_fabric,
    random_network,
    star,
)

MS = 10**6
ALL_SHAPES = frozenset(Shape)
ALL = tuple(Consistency)


def cost(found: Plan, objective: Objective) -> int:
    """Return what the plan was to make small, over all that it commits, or else answers."""
    times = [commit.commit_ns for commit in found.commits] or [answer.arrive_ns for answer in found.gets]
    return max(times, default=0) if objective is Objective.LAST_COMMIT else sum(times)


def objective_of(config: PlannerConfig) -> Objective:
    asynchronous = config.consistency in (Consistency.ASYNCHRONOUS, Consistency.STALE_SYNCHRONOUS)
    return config.objective if asynchronous else Objective.LAST_COMMIT


class TestEveryPlanChecksItself:
    @settings(max_examples=200)
    @given(fabric=fabrics(consistencies=WITH_SERVER, shapes=ALL_SHAPES))
    def test_with_a_server(self, fabric: Fabric) -> None:
        fabric.plan()

    @settings(max_examples=100)
    @given(fabric=fabrics(consistencies=(Consistency.ALL_REDUCE,), shapes=ALL_SHAPES))
    def test_with_all_reduce(self, fabric: Fabric) -> None:
        fabric.plan()

    @pytest.mark.parametrize("topology", TOPOLOGIES)
    def test_with_many_hosts(self, topology: str) -> None:
        for seed in range(12):
            random_fabric(
                Random(seed), WITH_SERVER, ALL_SHAPES, most=40, kinds=["tame"], topologies=[topology], most_hosts=30
            ).plan()


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
@example(seed=681728)
def test_no_stream_could_start_a_nanosecond_earlier(seed: int) -> None:
    """What a stream sends on has come by then, less a chunk: a stream that starts earlier is refused."""
    kinds = ["tame", "narrow", "narrow", "even"]
    fabric = random_fabric(Random(seed), consistencies=WITH_SERVER, shapes=ALL_SHAPES, most=16, kinds=kinds)
    found = fabric.plan()
    for i, stream in enumerate(found.transfers):
        if not stream.cut_through or not stream.profile.pieces:
            continue
        free = fabric.network.copy()
        for k, other in enumerate(found.transfers):
            if k != i and other.planned:
                free.reserve(("other", k), other.path, other.profile)
        first = stream.profile.pieces[0]
        sooner = free.transfer(stream.path, stream.size_bytes, first.start_ns - 1)
        if sooner is None or sooner.pieces[0]._replace(end_ns=0) != (first.start_ns - 1, 0, first.bps):
            continue  # others were given that time, or some of it, after this one was planned
        arrive_ns = sooner.end_ns + free.latency_ns(stream.path)
        early = with_transfer(found, i, ready_ns=0, profile=sooner, arrive_ns=arrive_ns)
        with pytest.raises(AssertionError, match=r"it has sent more than has arrived|ready at|is answered at"):
            early.validate(fabric.network)


class TestMoreChoiceNeverMakesAPlanLater:
    """Without a bound on divergence: it may force commits to wait after the shape is chosen."""

    @settings(max_examples=200)
    @given(seed=st.integers(0, 2**32))
    def test_each_shape_that_is_allowed_makes_the_objective_no_worse(self, seed: int) -> None:
        fabric = random_fabric(Random(seed), WITH_SERVER, ALL_SHAPES, most=16)
        fabric = replace(fabric, config=replace(fabric.config, div_max=None))
        objective = objective_of(fabric.config)
        plans = [fabric.plan(shapes=frozenset({Shape.DIRECT})), fabric.plan()]
        assert len({len(found.commits) for found in plans}) == 1
        costs = [cost(found, objective) for found in plans]
        assert costs == sorted(costs, reverse=True)

    @settings(max_examples=200)
    @given(seed=st.integers(0, 2**32))
    def test_models_that_may_be_handed_on_are_there_no_later_and_the_same_gets_are_answered(self, seed: int) -> None:
        rng, hosts = Random(seed), ["s", *names(6)]
        network, ready_ns = random_network(rng, hosts, "tame"), rng.choice([[0], [0, 0, 0, 8 * MS, 10**9 + 1]])
        sizes, able = rng.choice([[10**6], [0, 1000, 10**6, 12_345_677]]), rng.sample(hosts, rng.randint(1, 4))
        gets = [
            a_get("w", n, rng.choice(sizes), destination=rng.choice(hosts), ready_ns=rng.choice(ready_ns))
            for n in range(rng.randint(0, 9))
        ]
        state = FabricState(now_ns=rng.choice(TIMES), server="s", distributors=helpers(able, rng.choice([0, 0, 1, 2])))
        config = PlannerConfig(objective=rng.choice([*Objective]))
        fabric = Fabric(network, Batch(gets=tuple(gets)), state, config)
        direct, other = fabric.plan(shapes=frozenset({Shape.DIRECT})), fabric.plan()
        assert cost(other, fabric.config.objective) <= cost(direct, fabric.config.objective)
        assert {d.what for d in other.deferred} == {d.what for d in direct.deferred}


class TestSamePlan:
    @settings(max_examples=80)
    @given(fabric=fabrics(consistencies=WITH_SERVER, shapes=ALL_SHAPES), rng=st.randoms())
    def test_the_order_in_which_updates_and_gets_are_listed_does_not_matter(self, fabric: Fabric, rng: Random) -> None:
        updates, gets = list(fabric.batch.updates), list(fabric.batch.gets)
        rng.shuffle(updates)
        rng.shuffle(gets)
        shuffled = replace(fabric, batch=Batch(updates=tuple(updates), gets=tuple(gets)))
        assert content(fabric.plan()) == content(shuffled.plan())

    @settings(max_examples=80)
    @given(fabric=fabrics(consistencies=ALL, shapes=ALL_SHAPES))
    def test_the_network_is_left_as_it_was(self, fabric: Fabric) -> None:
        before = free(fabric.network)
        fabric.plan()
        assert free(fabric.network) == before

    @settings(max_examples=80)
    @given(seed=st.integers(0, 2**32), consistency=st.sampled_from(WITH_SERVER))
    def test_twice_the_bytes_over_links_twice_as_fast_take_as_long(self, seed: int, consistency: Consistency) -> None:
        """With a server: the parts of a ring are rounded up to bytes."""
        slow, fast = [
            random_fabric(Random(seed), consistencies=(consistency,), shapes=ALL_SHAPES, kinds=["tame"], times=n)
            for n in (1, 2)
        ]
        chunk_bytes = 2 * slow.config.chunk_bytes
        assert times_of(slow.plan()) == times_of(fast.plan(chunk_bytes=chunk_bytes))


def free(network: Network) -> list[tuple[list[int], list[int]]]:
    """Copy what is free on every link."""
    return [(list(line.times), list(line.values)) for line in map(network.free_line, network.links)]


def content(found: Plan) -> list[list[object]]:
    """Return everything in a plan but the batch that it was made for; what is left out, in no order."""
    parts = (found.transfers, found.groups, found.commits, found.replica_steps, found.gets)
    unordered = (found.drops, found.punts, found.deferred)
    return [*map(list, parts), *(sorted(part, key=repr) for part in unordered)]


def times_of(found: Plan) -> list[object]:
    """Return all times in a plan."""
    sent = [(t.source, t.destination, t.ready_ns, t.profile.start_ns, t.profile.end_ns) for t in found.transfers]
    return [sent, [(c.update, c.arrive_ns, c.commit_ns) for c in found.commits], [g.arrive_ns for g in found.gets]]


def test_an_empty_batch_makes_an_empty_plan() -> None:
    able = helpers(names(3))
    state = FabricState(now_ns=0, server="s", aggregators=able, distributors=able)
    found = Fabric(star(["s", *names(3)]), Batch(), state, PlannerConfig()).plan()
    assert not any((found.transfers, found.commits, found.drops, found.gets, found.deferred))
