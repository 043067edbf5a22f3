"""The order of a batch: who goes first, and who is left; that it keeps all bounds is shown of whole plans."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.network import Network, Profile, down_link, up_link
from mlfabric.planning import Candidate, kernel_choice
from mlfabric.planning.ordering import order
from mlfabric.planning.plan_values import Ordering, Pick
from mlfabric.protocol import DropReason, UpdateId
from tests.planning.worlds import SERVER, World, an_update, star, worlds

MS = 10**6


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    """Load nothing but these: the other stages' kernels take long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_choice, "_loaded", [True])
        yield


def test_nothing_is_compiled_for_an_order_in_plain_python() -> None:
    program = (
        "from mlfabric.planning.fluid import jit; from tests.planning.test_ordering import *; "
        "order([candidate(n, 'h0') for n in (1, 2)], star([SERVER, 'h0']), SERVER, v_init=0, tau_max=1, now_ns=0); "
        "sys.exit(any(kernel.stats.cache_hits or kernel.overloads for kernel in jit._kernels))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@settings(max_examples=150)
@given(world=worlds(most=5))
def test_nothing_is_left_while_some_order_keeps_every_bound(world: World) -> None:
    plan = world.plan()
    here = [c for c in world.candidates if c.in_flight or can_be_sent(world, c)]
    assert world.tau_max is not None
    deadlines = [c.computed_from + world.tau_max - world.v_init + 1 for c in here]
    most = max(
        sum(1 for _ in kept)
        for size in range(len(here) + 1)
        for kept in permutations(deadlines, size)
        if all(deadline >= position for position, deadline in enumerate(kept, start=1))
    )
    beyond_horizon = {e.update for e in plan.left if e.cause is DropReason.NO_CAPACITY} & {c.update for c in here}
    assert len(plan.slots) + len(beyond_horizon) == most


@settings(max_examples=150)
@given(world=worlds(most=5))
def test_each_position_goes_to_the_first_arrival_that_leaves_the_rest_feasible(world: World) -> None:
    slots = world.plan().slots
    ranks = {c.update: (c.computed_from, c.update) for c in world.candidates}
    arrivals = sorted(slots, key=lambda slot: (slot.profile.end_ns, ranks[slot.update]))
    feasible = (
        kept
        for kept in permutations(arrivals)
        if all(slot.deadline is not None and position <= slot.deadline for position, slot in enumerate(kept, start=1))
    )
    assert [slot.update for slot in slots] == [slot.update for slot in next(feasible)]


def can_be_sent(world: World, c: Candidate) -> bool:
    path, ready_ns = world.network.path(c.source, SERVER), max(c.ready_ns, world.now_ns)
    return world.network.transfer(path, c.size_bytes, ready_ns) is not None


def candidate(n: int, source: str, **more: Any) -> Candidate:
    return an_update(f"w{n}", source=source, **more)


def shortest_first(world: World) -> list[tuple[UpdateId, Profile]]:
    """Reserve one after the other whichever would arrive first over what is left; list all as they arrive."""
    free, waiting = world.network.copy(), [c for c in world.candidates if c.in_flight is None]
    placed = [(c.update, c.in_flight) for c in world.candidates if c.in_flight is not None]
    while waiting:
        ready_ns = {c.update: max(c.ready_ns, world.now_ns) for c in waiting}
        paths = {c.update: free.path(c.source, SERVER) for c in waiting}
        profiles = {c.update: free.transfer(paths[c.update], c.size_bytes, ready_ns[c.update]) for c in waiting}
        ends = [(profile.end_ns, update, profile) for update, profile in profiles.items() if profile is not None]
        if not ends:
            break
        _, update, profile = min(ends)
        free.reserve(("placed", update), paths[update], profile)
        placed.append((update, profile))
        waiting = [c for c in waiting if c.update != update]
    return sorted(placed, key=lambda one: (one[1].end_ns, one[0]))


@pytest.mark.parametrize("graphs", [False, True])
@settings(max_examples=200)
@given(data=st.data())
def test_without_a_bound_each_place_goes_to_whom_arrives_first_over_what_is_left(
    graphs: bool, data: st.DataObject
) -> None:
    world = data.draw(worlds(most=10, graphs=graphs))
    plan = replace(world, tau_max=None).plan()
    assert [(slot.update, slot.profile) for slot in plan.slots] == shortest_first(world)


def test_a_lone_update_is_sent_at_once() -> None:
    plan = order([candidate(0, "h0")], star([SERVER, "h0"]), SERVER, v_init=0, tau_max=4, now_ns=5 * MS)
    [slot] = plan.slots
    assert (slot.position, slot.profile.start_ns, slot.profile.end_ns) == (1, 5 * MS, 13 * MS)
    assert slot.pick is Pick.SHORTEST


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
    assert plan.slots[2].pick is Pick.DEADLINE


@pytest.mark.parametrize(
    ("batch", "left"),
    [
        ([("slow", 1), ("fast", 1)], ["w0"]),
        ([("slow", 2), ("fast", 1), ("fast", 1), ("fast", 3)], ["w2"]),
        ([("slow", 2), ("fast", 1), ("fast", 2), ("fast", 2), ("fast", 9)], ["w0", "w3"]),
    ],
)
def test_at_the_first_position_that_too_many_want_the_slowest_due_is_left(
    uneven: Network, batch: list[tuple[str, int]], left: list[str]
) -> None:
    """Of updates of one host, which are alike, the greatest id is left."""
    updates = [candidate(n, host, computed_from=deadline - 1) for n, (host, deadline) in enumerate(batch)]
    plan = order(updates, uneven, SERVER, v_init=0, tau_max=0, now_ns=0)
    conflict = DropReason.DEADLINE_CONFLICT
    assert [(entry.update.worker, entry.cause) for entry in plan.left] == [(worker, conflict) for worker in left]


def test_what_is_in_flight_is_not_left_for_what_is_not(uneven: Network) -> None:
    flying = replace(candidate(0, "slow"), in_flight=uneven.transfer(uneven.path("slow", SERVER), 10**6, 0))
    plan = order([flying, candidate(1, "fast")], uneven, SERVER, v_init=0, tau_max=0, now_ns=MS)
    assert [(slot.update.worker, slot.pick) for slot in plan.slots] == [("w0", Pick.IN_FLIGHT)]


@pytest.mark.parametrize("count", [1, 20])
def test_an_update_that_is_too_old_is_left_with_its_delay(count: int) -> None:
    batch = [candidate(n, "h0") for n in range(count)]
    plan = order(batch, star([SERVER, "h0"]), SERVER, v_init=7, tau_max=6, now_ns=0)
    assert len(plan.left) == count
    left = plan.left[0]
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


@pytest.mark.parametrize("others", [0, 12])
def test_unknown_hosts_and_sizes_out_of_range_are_refused(others: int) -> None:
    network, batch = star([SERVER, "h0"]), [candidate(n, "h0") for n in range(1, others + 1)]
    with pytest.raises(UsageError, match="unknown host 'h9'"):
        order([*batch, candidate(0, "h9")], network, SERVER, v_init=0, tau_max=99, now_ns=0)
    for size_bytes in (-1, 2**50 + 1):
        with pytest.raises(UsageError, match=f"size_bytes={size_bytes}"):
            order([*batch, candidate(0, "h0", size_bytes=size_bytes)], network, SERVER, v_init=0, tau_max=99, now_ns=0)
