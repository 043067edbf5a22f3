"""Transfers on shared links, against a dumb stepper, and who waits for whom."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.twin.flow_kernel import CUT, INPUT, NEXT
from mlfabric.twin.flows import Flows, NewFlow

HOSTS = 3


def field(rates: list[float] | None = None) -> Flows:
    return Flows(np.array(rates or [1.0] * (2 * HOSTS)))


def flow(source: int, destination: int, bits: float, ready_ns: float = 0.0, **more: float) -> NewFlow:
    return NewFlow(up=source, down=HOSTS + destination, bits=bits, ready_ns=ready_ns, **more)  # type: ignore[arg-type]


def arrivals(flows: Flows, count: int) -> dict[int, float]:
    found: dict[int, float] = {}
    while len(found) < count:
        number = flows.run(1e18)
        assert number is not None, f"{count - len(found)} never arrive"
        found[number] = flows.now_ns
    return found


def shares(running: list[NewFlow], rates: list[float]) -> list[float]:
    """The max-min fair rates: all grow together, and who has filled a link or reached its pace stops."""
    speed, growing = [0.0] * len(running), set(range(len(running)))
    while growing:
        steps = [running[i].pace - speed[i] for i in growing]
        for link, rate in enumerate(rates):
            on = [i for i, t in enumerate(running) if link in (t.up, t.down)]
            if growing & set(on):
                steps.append((rate - sum(speed[i] for i in on)) / len(growing & set(on)))
        for i in growing:
            speed[i] += min(steps)
        full = {
            link
            for link, rate in enumerate(rates)
            if sum(speed[i] for i, t in enumerate(running) if link in (t.up, t.down)) >= rate - 1e-9
        }
        growing -= {i for i in growing if speed[i] >= running[i].pace - 1e-9 or {running[i].up, running[i].down} & full}
    return speed


def stepped(transfers: list[NewFlow], rates: list[float]) -> list[float]:
    """When each arrives: from one event to the next, in plain Python."""
    left, ended, now = [t.bits for t in transfers], [math.inf] * len(transfers), 0.0
    while math.inf in ended:
        running = [i for i, t in enumerate(transfers) if t.ready_ns <= now and ended[i] == math.inf]
        speed = dict(zip(running, shares([transfers[i] for i in running], rates), strict=True))
        events = [left[i] / speed[i] for i in running]
        events += [t.ready_ns - now for t in transfers if t.ready_ns > now]
        span = min(events)
        for i in running:
            left[i] -= speed[i] * span
            if left[i] <= 1e-6:
                ended[i] = now + span
        now += span
    return ended


TRANSFERS = st.lists(
    st.builds(
        flow,
        st.integers(0, HOSTS - 1),
        st.integers(0, HOSTS - 1),
        st.integers(1, 1000).map(float),
        st.integers(0, 500).map(float),
        pace=st.sampled_from([math.inf, 0.3, 0.8]),
    ),
    min_size=1,
    max_size=12,
)


@given(TRANSFERS, st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2 * HOSTS, max_size=2 * HOSTS))
def test_links_are_shared_fairly_as_a_dumb_stepper_shares_them(transfers, rates):
    flows = field(rates)
    numbers = flows.enter(transfers)
    found = arrivals(flows, len(transfers))
    assert [found[number] for number in numbers] == pytest.approx(stepped(transfers, rates), rel=1e-6, abs=1e-3)
    for link in range(2 * HOSTS):
        sent = sum(t.bits for t in transfers if link in (t.up, t.down))
        assert flows.carried_bits[link] == pytest.approx(sent)


def test_what_is_planned_after_waits_for_what_is_offered_and_not_for_what_is_late():
    flows = field()
    early, late = flows.enter([flow(0, 2, 100), flow(1, 2, 100)], [(0, 1, NEXT)])
    found = arrivals(flows, 2)
    assert [found[early], found[late]] == pytest.approx([100, 200])
    flows.free([early, late])
    tardy, keen = flows.enter([flow(0, 2, 100, 1000), flow(1, 2, 100, 500)], [(0, 1, NEXT)])
    found = arrivals(flows, 2)
    assert [found[keen], found[tardy]] == pytest.approx([600, 1100])


def test_one_that_takes_too_long_keeps_nobody_waiting_any_more():
    flows = field()
    slow, other = flows.enter([flow(0, 2, 100, pace=0.1, patience_ns=300.0), flow(1, 2, 100)], [(0, 1, NEXT)])
    found = arrivals(flows, 2)
    assert found[slow] == pytest.approx(1000)
    assert found[other] == pytest.approx(300 + 100 / 0.9, rel=0.15)


def test_a_sum_leaves_when_all_is_here_and_a_stream_with_the_first_chunk():
    flows = field()
    _, stored = flows.enter([flow(0, 1, 100), flow(1, 2, 100)], [(0, 1, INPUT)])
    found = arrivals(flows, 2)
    assert found[stored] == pytest.approx(200)
    flows = field()
    numbers = flows.enter([flow(0, 1, 100, chunk=10.0), flow(1, 2, 100, chunk=10.0)], [(0, 1, CUT)])
    assert arrivals(flows, 2)[numbers[1]] == pytest.approx(110)


def test_a_stream_has_not_arrived_before_the_last_chunk_of_its_slowest_input():
    flows = field([0.1, *[1.0] * (2 * HOSTS - 1)])
    numbers = flows.enter([flow(0, 1, 100, chunk=10.0), flow(1, 2, 100, chunk=10.0)], [(0, 1, CUT)])
    assert arrivals(flows, 2)[numbers[1]] == pytest.approx(1010)


def test_what_is_held_goes_when_it_is_released():
    flows = field()
    (number,) = flows.enter([flow(0, 1, 100, holds=1)])
    assert flows.run(1000) is None
    flows.release(number, 1500)
    assert arrivals(flows, 1)[number] == pytest.approx(1600)


def test_what_is_cancelled_leaves_its_links_to_others():
    flows = field()
    gone, stays = flows.enter([flow(0, 2, 100), flow(1, 2, 100)])
    assert flows.run(100) is None
    flows.cancel([gone])
    assert arrivals(flows, 1)[stays] == pytest.approx(150)
    assert flows.carried_bits[HOSTS + 2] == pytest.approx(150)


def test_there_is_room_for_any_number():
    flows = field()
    for _ in range(3):
        numbers = flows.enter(
            [flow(n % 3, (n + 1) % 3, 10) for n in range(700)], [(n, n + 1, NEXT) for n in range(699)]
        )
        arrivals(flows, 700)
        flows.arrived()
        flows.free(numbers)
    assert flows.carried_bits.sum() == pytest.approx(2 * 3 * 700 * 10)


def test_an_instant_at_which_nothing_happens_is_reached_and_what_is_entered_then_is_not_missed():
    flows = field()
    (slow,) = flows.enter([flow(0, 1, 1000)])
    assert [flows.run(at) for at in (10, 20, 30)] == [None] * 3
    (quick,) = flows.enter([flow(1, 2, 5, ready_ns=30)])
    assert flows.run(1e18) == quick
    assert flows.now_ns == 35
    flows.set_rates(np.full(2 * HOSTS, 2.0))
    assert flows.run(1e18) == slow
    assert flows.now_ns == 35 + (1000 - 35) / 2
