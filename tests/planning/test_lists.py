"""Stale-synchronous plans: lists by clock, and gets that wait for the slowest worker."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.planning import Batch, Candidate, Consistency, FabricState, PlannerConfig, plan
from mlfabric.planning.checking import validate
from mlfabric.planning.clock_lists import order_lists
from mlfabric.planning.ordering import order
from mlfabric.planning.plan_values import Slot
from mlfabric.protocol import GetId
from tests.planning.worlds import KINDS, TIMES, a_get, an_update, random_network, random_update, star

CONFIG = PlannerConfig(consistency=Consistency.STALE_SYNCHRONOUS, slack=2)


def candidate(worker: str, clock: int, size_bytes: int = 10**6) -> Candidate:
    return an_update(worker, clock, size_bytes, clock=clock)


def test_a_lower_clock_commits_first_however_long_it_takes():
    network = star("abcs")
    updates = (candidate("a", 3, 1000), candidate("b", 2, 10**7), candidate("c", 3, 2000))
    found = plan(Batch(updates=updates), network, FabricState(now_ns=0, server="s"), CONFIG)
    assert [commit.update.worker for commit in found.commits] == ["b", "a", "c"]
    assert [commit.version for commit in found.commits] == [0, 1, 2]
    assert [commit.deadline for commit in found.commits] == [None] * 3
    validate(found, network)


def test_a_later_list_takes_what_the_earlier_leaves_free():
    network = star("abcs")
    updates = (candidate("a", 1), candidate("b", 2))
    found = plan(Batch(updates=updates), network, FabricState(now_ns=0, server="s"), CONFIG)
    assert [transfer.profile.end_ns for transfer in found.transfers] == [8_000_000, 16_000_000]


def test_whoever_is_too_far_ahead_gets_no_model_and_is_told_why():
    network = star("abcs")
    state = FabricState(now_ns=0, server="s", slowest_clock=5)
    found = plan(Batch(gets=(a_get("a", 7, clock=7), a_get("b", 8, clock=8))), network, state, CONFIG)
    assert [answer.get.worker for answer in found.gets] == ["a"]
    (held,) = found.deferred
    assert held.what == GetId("b", 0, 8)
    assert held.reason == ("the slowest worker has finished 5 iterations, so 7 are allowed; this one has finished 8")
    validate(found, network)


HOSTS = ("a", "b", "c", "s", "t")


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_lists_are_ordered_one_after_the_other_over_what_the_earlier_left(seed):
    rng = Random(seed)
    kind, now_ns = rng.choice(["tame", "wild"]), rng.choice(TIMES)
    network = random_network(rng, HOSTS, kind)
    updates = [random_update(rng, network, "s", 7, HOSTS, n, KINDS[kind][1]) for n in range(rng.randint(0, 9))]
    found = order_lists(updates, network, "s", v_init=7, now_ns=now_ns)
    free, left = network.copy(), set()
    slots: list[Slot] = []
    for clock in range(4):
        listed = {c.update: c for c in updates if c.clock == clock}
        one = order(list(listed.values()), free, "s", v_init=7, tau_max=None, now_ns=now_ns)
        for slot in one.slots:
            slots.append(replace(slot, position=len(slots) + 1))
            if listed[slot.update].in_flight is None:
                free.reserve(("list", slot.update), free.path(listed[slot.update].source, "s"), slot.profile)
        left |= {(one.update, one.cause, one.reason) for one in one.left}
    assert list(found.slots) == slots
    assert {(one.update, one.cause, one.reason) for one in found.left} == left
    network.validate()
