"""The order of a batch: laws that every order keeps, and what comes first where."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.network import Network, Profile, down_link, up_link
from mlfabric.protocol import DropReason, UpdateId
from mlfabric.scheduler.planning import Candidate, reserving
from mlfabric.scheduler.planning.ordering import order
from mlfabric.scheduler.planning.values import Ordering, Pick
from tests.scheduler.planning.worlds import SERVER, World, star, worlds

MS = 10**6


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    """Load nothing but these: the other stages' kernels take long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserving, "_loaded", [True])
        yield


def assert_laws(world: World) -> None:
    plan = world.plan()
    placed = [slot.update for slot in plan.slots]
    given_ids = sorted(c.update for c in world.candidates)
    assert sorted([*placed, *(entry.update for entry in plan.left)]) == given_ids, "each once, as a slot or left"
    assert [slot.position for slot in plan.slots] == list(range(1, len(placed) + 1))
    candidates = {c.update: c for c in world.candidates}
    network = world.network.copy()
    for slot in plan.slots:
        candidate = candidates[slot.update]
        assert world.v_init + slot.position - 1 - candidate.computed_from <= world.tau_max, "delay bound"
        assert slot.commit_ns >= slot.profile.end_ns
        assert slot.reason
        if candidate.in_flight is None:
            assert slot.profile.start_ns >= world.now_ns
            network.reserve(slot.update, network.path(candidate.source, SERVER), slot.profile)
    assert all(entry.reason for entry in plan.left)
    network.validate()
    world.network.validate()


@pytest.mark.parametrize("graphs", [False, True])
@settings(max_examples=200)
@given(data=st.data())
def test_each_order_keeps_the_delay_bound_and_the_capacity_of_links(graphs: bool, data: st.DataObject) -> None:
    assert_laws(data.draw(worlds(most=10, graphs=graphs)))


def test_nothing_is_compiled_for_an_order_in_plain_python() -> None:
    program = (
        "from mlfabric.scheduler.planning.fluid import jit; from tests.scheduler.planning.test_ordering import *; "
        "order([candidate(n, 'h0') for n in (1, 2)], star([SERVER, 'h0']), SERVER, v_init=0, tau_max=1, now_ns=0); "
        "sys.exit(any(kernel.stats.cache_hits or kernel.overloads for kernel in jit._kernels))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@settings(max_examples=150)
@given(world=worlds(most=5))
def test_nothing_is_left_while_some_order_keeps_every_bound(world: World) -> None:
    plan = world.plan()
    here = [c for c in world.candidates if c.in_flight or can_be_sent(world, c)]
    deadlines = [c.computed_from + world.tau_max - world.v_init + 1 for c in here]
    most = max(
        sum(1 for _ in kept)
        for size in range(len(here) + 1)
        for kept in permutations(deadlines, size)
        if all(deadline >= position for position, deadline in enumerate(kept, start=1))
    )
    beyond_horizon = {e.update for e in plan.left if e.cause is DropReason.NO_CAPACITY} & {c.update for c in here}
    assert len(plan.slots) + len(beyond_horizon) == most


def can_be_sent(world: World, c: Candidate) -> bool:
    path, ready_ns = world.network.path(c.source, SERVER), max(c.ready_ns, world.now_ns)
    return world.network.transfer(path, c.size_bytes, ready_ns) is not None


def candidate(n: int, source: str, *, computed_from: int = 0, size_bytes: int = 10**6) -> Candidate:
    return Candidate(
        update=UpdateId(f"w{n}", 0, 0), source=source, size_bytes=size_bytes, ready_ns=0, computed_from=computed_from
    )


def test_a_lone_update_is_sent_at_once() -> None:
    plan = order([candidate(0, "h0")], star([SERVER, "h0"]), SERVER, v_init=0, tau_max=4, now_ns=5 * MS)
    [slot] = plan.slots
    assert (slot.position, slot.profile.start_ns, slot.commit_ns) == (1, 5 * MS, 13 * MS)
    assert (slot.pick, slot.reason) == (Pick.SHORTEST, "shortest transfer first: 8.0 ms")


@pytest.fixture
def uneven() -> Network:
    """A host with a tenth of the rate of all others."""
    network = star([SERVER, "slow", "fast"])
    network.set_rate(up_link("slow"), 10**8)
    return network


def test_a_slow_update_that_is_due_starts_at_once_and_lets_others_go_before_it(uneven: Network) -> None:
    batch = [candidate(0, "slow"), *(candidate(n, "fast", computed_from=9) for n in (1, 2))]
    plan = order(batch, uneven, SERVER, v_init=0, tau_max=2, now_ns=0)
    assert [slot.update.worker for slot in plan.slots] == ["w1", "w2", "w0"]
    assert plan.slots[2].profile == Profile(0, 80 * MS, plan.slots[2].profile.pieces)
    assert plan.slots[2].reason == "deadline: position 3 of at most 3, 80.0 ms"


def test_of_two_updates_with_one_position_the_slower_is_left(uneven: Network) -> None:
    plan = order([candidate(0, "slow"), candidate(1, "fast")], uneven, SERVER, v_init=0, tau_max=0, now_ns=0)
    assert [slot.update.worker for slot in plan.slots] == ["w1"]
    assert [(entry.update.worker, entry.cause) for entry in plan.left] == [("w0", DropReason.DEADLINE_CONFLICT)]


def test_of_updates_of_one_host_the_shortest_goes_first_and_of_equals_the_least_id() -> None:
    batch = [candidate(n, "h0", size_bytes=size) for n, size in ((2, 10**6), (1, 3 * 10**6), (4, 10**6), (3, 10**6))]
    plan = order(batch, star([SERVER, "h0"]), SERVER, v_init=0, tau_max=9, now_ns=0)
    found = [(slot.update.worker, slot.profile.start_ns, slot.profile.end_ns) for slot in plan.slots]
    assert found == [("w2", 0, 8 * MS), ("w3", 8 * MS, 16 * MS), ("w4", 16 * MS, 24 * MS), ("w1", 24 * MS, 48 * MS)]


def test_what_is_in_flight_is_not_left_for_what_is_not(uneven: Network) -> None:
    flying = replace(candidate(0, "slow"), in_flight=uneven.transfer(uneven.path("slow", SERVER), 10**6, 0))
    plan = order([flying, candidate(1, "fast")], uneven, SERVER, v_init=0, tau_max=0, now_ns=MS)
    assert [(slot.update.worker, slot.reason) for slot in plan.slots] == [("w0", "already sending: 79.0 ms")]


def test_an_update_that_is_too_old_is_left_with_its_delay() -> None:
    plan = order([candidate(0, "h0")], star([SERVER, "h0"]), SERVER, v_init=7, tau_max=6, now_ns=0)
    [left] = plan.left
    assert (left.cause, left.reason) == (DropReason.DEADLINE_PAST, "its delay would be 7 or more, the bound is 6")


def test_a_fresh_update_keeps_a_delay_bound_of_zero() -> None:
    plan = order([candidate(0, "h0", computed_from=7)], star([SERVER, "h0"]), SERVER, v_init=7, tau_max=0, now_ns=0)
    assert len(plan.slots) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_without_any_capacity_all_are_left_and_planning_ends(count: int) -> None:
    network = star([SERVER, "h0"])
    network.set_rate(down_link(SERVER), 0)
    plan = order([candidate(n, "h0") for n in range(count)], network, SERVER, v_init=0, tau_max=9, now_ns=0)
    assert [entry.cause for entry in plan.left] == [DropReason.NO_CAPACITY] * count


def test_without_a_delay_bound_the_shortest_goes_first_and_nothing_is_too_old(uneven: Network) -> None:
    batch = [candidate(0, "slow"), candidate(1, "fast", computed_from=-(10**9))]
    plan = order(batch, uneven, SERVER, v_init=0, tau_max=None, now_ns=0)
    assert [(slot.update.worker, slot.deadline) for slot in plan.slots] == [("w1", None), ("w0", None)]


def test_an_empty_batch_gives_an_empty_plan() -> None:
    assert order([], star([SERVER]), SERVER, v_init=0, tau_max=0, now_ns=0) == Ordering(slots=())


def test_unknown_hosts_and_sizes_out_of_range_are_refused() -> None:
    network = star([SERVER, "h0"])
    with pytest.raises(UsageError, match="unknown host 'h9'"):
        order([candidate(0, "h9")], network, SERVER, v_init=0, tau_max=0, now_ns=0)
    with pytest.raises(UsageError, match="size_bytes=1125899906842625"):
        order([candidate(0, "h0", size_bytes=2**50 + 1)], network, SERVER, v_init=0, tau_max=0, now_ns=0)
