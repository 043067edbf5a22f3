"""Stale-synchronous plans: lists by clock, and gets that wait for the slowest worker."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import Network
from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning import Batch, Candidate, Consistency, FabricState, GetCandidate, PlannerConfig, plan
from mlfabric.scheduler.planning.checking import validate
from mlfabric.scheduler.planning.lists import order_lists
from mlfabric.scheduler.planning.ordering import order
from mlfabric.scheduler.planning.values import Slot
from tests.scheduler.planning.wild import SIZES, TIMES, random_network, seeds

CONFIG = PlannerConfig(consistency=Consistency.STALE_SYNCHRONOUS, slack=2)


def star() -> Network:
    network = Network.star(10**9)
    for host in ("a", "b", "c", "s"):
        network.add_host(host)
    return network


def candidate(worker: str, clock: int, size_bytes: int = 10**6) -> Candidate:
    return Candidate(
        update=UpdateId(worker, 0, clock),
        source=worker,
        size_bytes=size_bytes,
        ready_ns=0,
        computed_from=0,
        clock=clock,
    )


def get(worker: str, clock: int) -> GetCandidate:
    return GetCandidate(get=GetId(worker, 0, clock), destination=worker, size_bytes=10**6, ready_ns=0, clock=clock)


def test_a_lower_clock_commits_first_however_long_it_takes():
    network = star()
    updates = (candidate("a", 3, 1000), candidate("b", 2, 10**7), candidate("c", 3, 2000))
    found = plan(Batch(updates=updates), network, FabricState(now_ns=0, server="s"), CONFIG)
    assert [commit.update.worker for commit in found.commits] == ["b", "a", "c"]
    assert [commit.version for commit in found.commits] == [0, 1, 2]
    assert [commit.deadline for commit in found.commits] == [None] * 3
    validate(found, network)


def test_a_later_list_takes_what_the_earlier_leaves_free():
    network = star()
    updates = (candidate("a", 1), candidate("b", 2))
    found = plan(Batch(updates=updates), network, FabricState(now_ns=0, server="s"), CONFIG)
    assert [transfer.profile.end_ns for transfer in found.transfers] == [8_000_000, 16_000_000]


def test_whoever_is_too_far_ahead_gets_no_model_and_is_told_why():
    network = star()
    state = FabricState(now_ns=0, server="s", slowest_clock=5)
    found = plan(Batch(gets=(get("a", 7), get("b", 8))), network, state, CONFIG)
    assert [answer.get.worker for answer in found.gets] == ["a"]
    (held,) = found.deferred
    assert held.what == GetId("b", 0, 8)
    assert held.reason == ("the slowest worker has finished 5 iterations, so 7 are allowed; this one has finished 8")
    validate(found, network)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 10**7)), max_size=8))
def test_clocks_never_fall_along_the_commits(drawn):
    network = star()
    unique = {(worker, clock): size for worker, clock, size in drawn}
    updates = tuple(candidate(worker, clock, size) for (worker, clock), size in unique.items())
    found = plan(Batch(updates=updates), network, FabricState(now_ns=0, server="s"), CONFIG)
    clocks = [commit.update.counter for commit in found.commits]
    assert clocks == sorted(clocks)
    assert len(clocks) == len(updates)
    validate(found, network)


HOSTS = ("a", "b", "c", "s", "t")


def random_updates(rng: Random, network: Network) -> list[Candidate]:
    """Make updates of several clocks; some are on their way already."""
    updates = []
    for n in range(rng.randint(0, 9)):
        size_bytes, source, ready_ns = rng.choice(SIZES), rng.choice(HOSTS), rng.choice(TIMES)
        update = UpdateId(rng.choice("abc"), 0, n)
        in_flight, path = None, network.path(source, "s")
        if rng.random() < 0.2:
            in_flight = network.transfer(path, size_bytes, ready_ns)
        if in_flight is not None:
            network.reserve(update, path, in_flight)
        updates.append(
            Candidate(
                update=update,
                source=source,
                size_bytes=size_bytes,
                ready_ns=ready_ns,
                computed_from=rng.randint(0, 3),
                clock=rng.randint(0, 3),
                in_flight=in_flight,
            )
        )
    return updates


@settings(max_examples=400, deadline=None)
@given(seed=seeds)
def test_lists_are_ordered_one_after_the_other_over_what_the_earlier_left(seed):
    rng = Random(seed)
    network, now_ns = random_network(rng, HOSTS, tame=rng.random() < 0.5), rng.choice(TIMES)
    updates = random_updates(rng, network)
    found = order_lists(updates, network, "s", v_init=7, now_ns=now_ns)
    free, left = network.copy(), set()
    slots: list[Slot] = []
    for clock in range(4):
        listed = {c.update: c for c in updates if c.clock == clock}
        one = order(list(listed.values()), free, "s", v_init=7, tau_max=None, now_ns=now_ns)
        for slot in one.slots:
            commit_ns = max(slot.commit_ns, slots[-1].commit_ns if slots else now_ns)
            slots.append(replace(slot, position=len(slots) + 1, commit_ns=commit_ns))
            if listed[slot.update].in_flight is None:
                free.reserve(("list", slot.update), free.path(listed[slot.update].source, "s"), slot.profile)
        left |= {(one.update, one.cause, one.reason) for one in one.left}
    assert list(found.slots) == slots
    assert {(one.update, one.cause, one.reason) for one in found.left} == left
    network.validate()
