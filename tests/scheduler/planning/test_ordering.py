"""The planner against its dumb twin, and the laws that every plan keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import given, settings

from mlfabric.errors import UsageError
from mlfabric.network import Profile, down_link, up_link
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


@pytest.fixture
def in_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "_loaded", [])


def assert_as_twin(world: World) -> None:
    plan = world.plan()
    twin = world.twin.order(world.candidates)
    assert [(s.update, s.profile, s.commit_ns) for s in plan.slots] == twin.slots
    assert {entry.update: entry.cause for entry in plan.left} == twin.left
    assert_laws(world, plan)


def assert_laws(world: World, plan: Ordering) -> None:
    placed = [slot.update for slot in plan.slots]
    given_ids = sorted(c.update for c in world.candidates)
    assert sorted([*placed, *(entry.update for entry in plan.left)]) == given_ids, "each once, as a slot or left"
    assert [slot.position for slot in plan.slots] == list(range(1, len(placed) + 1))
    candidates = {c.update: c for c in world.candidates}
    network = world.network.copy()
    for slot in plan.slots:
        candidate = candidates[slot.update]
        assert world.twin.tau_max is not None
        assert world.twin.v_init + slot.position - 1 - candidate.computed_from <= world.twin.tau_max, "delay bound"
        assert slot.commit_ns >= slot.profile.end_ns
        assert slot.reason
        if candidate.in_flight is None:
            assert slot.profile.start_ns >= world.twin.now_ns
            network.reserve(slot.update, network.path(candidate.source, SERVER), slot.profile)
    assert all(entry.reason for entry in plan.left)
    network.validate()
    world.network.validate()


@settings(max_examples=250)
@given(world=worlds(most=10))
def test_a_star_is_planned_as_the_twin_plans_it(world: World) -> None:
    assert_as_twin(world)


@settings(max_examples=150)
@given(world=worlds(most=10, graphs=True))
def test_a_graph_is_planned_as_the_twin_plans_it(world: World) -> None:
    assert_as_twin(world)


@pytest.mark.usefixtures("in_plain_python")
class TestPlainPython:
    @settings(max_examples=50)
    @given(world=worlds(graphs=True))
    def test_the_same_text_gives_the_same_plan_uncompiled(self, world: World) -> None:
        assert_as_twin(world)

    def test_nothing_is_compiled_for_it(self) -> None:
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
    here = [c for c in world.candidates if world.twin.profile(c, world.twin.network) is not None]
    deadlines = [world.twin.deadline(c) for c in here]
    most = max(
        sum(1 for _ in kept)
        for size in range(len(here) + 1)
        for kept in permutations(deadlines, size)
        if all(deadline >= position for position, deadline in enumerate(kept, start=1))
    )
    beyond_horizon = {e.update for e in plan.left if e.cause is DropReason.NO_CAPACITY} & {c.update for c in here}
    assert len(plan.slots) + len(beyond_horizon) == most


def candidate(n: int, source: str, *, computed_from: int = 0, size_bytes: int = 10**6) -> Candidate:
    return Candidate(
        update=UpdateId(f"w{n}", 0, 0), source=source, size_bytes=size_bytes, ready_ns=0, computed_from=computed_from
    )


def test_a_lone_update_is_sent_at_once() -> None:
    plan = order([candidate(0, "h0")], star([SERVER, "h0"]), SERVER, v_init=0, tau_max=4, now_ns=5 * MS)
    [slot] = plan.slots
    assert (slot.position, slot.profile.start_ns, slot.commit_ns) == (1, 5 * MS, 13 * MS)
    assert (slot.pick, slot.reason) == (Pick.SHORTEST, "shortest transfer first: 8.0 ms")


def test_a_slow_update_that_is_due_starts_at_once_and_lets_others_go_before_it() -> None:
    network = star([SERVER, "slow", "fast"])
    network.set_rate(up_link("slow"), 10**8)
    batch = [candidate(0, "slow"), *(candidate(n, "fast", computed_from=9) for n in (1, 2))]
    plan = order(batch, network, SERVER, v_init=0, tau_max=2, now_ns=0)
    assert [slot.update.worker for slot in plan.slots] == ["w1", "w2", "w0"]
    assert plan.slots[2].profile == Profile(0, 80 * MS, plan.slots[2].profile.pieces)
    assert plan.slots[2].reason == "deadline: position 3 of at most 3, 80.0 ms"


def test_of_two_updates_with_one_position_the_slower_is_left() -> None:
    network = star([SERVER, "slow", "fast"])
    network.set_rate(up_link("slow"), 10**8)
    plan = order([candidate(0, "slow"), candidate(1, "fast")], network, SERVER, v_init=0, tau_max=0, now_ns=0)
    assert [slot.update.worker for slot in plan.slots] == ["w1"]
    assert [(entry.update.worker, entry.cause) for entry in plan.left] == [("w0", DropReason.DEADLINE_CONFLICT)]


def test_what_is_in_flight_is_not_left_for_what_is_not() -> None:
    network = star([SERVER, "slow", "fast"])
    network.set_rate(up_link("slow"), 10**8)
    profile = network.transfer(network.path("slow", SERVER), 10**6, 0)
    flying = Candidate(
        update=UpdateId("w0", 0, 0), source="slow", size_bytes=10**6, ready_ns=0, computed_from=0, in_flight=profile
    )
    plan = order([flying, candidate(1, "fast")], network, SERVER, v_init=0, tau_max=0, now_ns=MS)
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


def test_without_a_delay_bound_the_shortest_goes_first_and_nothing_is_too_old() -> None:
    network = star([SERVER, "slow", "fast"])
    network.set_rate(up_link("slow"), 10**8)
    batch = [candidate(0, "slow"), candidate(1, "fast", computed_from=-(10**9))]
    plan = order(batch, network, SERVER, v_init=0, tau_max=None, now_ns=0)
    assert [(slot.update.worker, slot.deadline) for slot in plan.slots] == [("w1", None), ("w0", None)]


def test_an_empty_batch_gives_an_empty_plan() -> None:
    assert order([], star([SERVER]), SERVER, v_init=0, tau_max=0, now_ns=0) == Ordering(slots=())


def test_unknown_hosts_and_sizes_out_of_range_are_refused() -> None:
    network = star([SERVER, "h0"])
    with pytest.raises(UsageError, match="unknown host 'h9'"):
        order([candidate(0, "h9")], network, SERVER, v_init=0, tau_max=0, now_ns=0)
    with pytest.raises(UsageError, match="size_bytes=1125899906842625"):
        order([candidate(0, "h0", size_bytes=2**50 + 1)], network, SERVER, v_init=0, tau_max=0, now_ns=0)
