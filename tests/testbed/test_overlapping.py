"""Steps bucket by bucket: they last as long as others, and make each bucket when its share of backward is over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.testbed.overlapping import DDP_SHARES, Buckets, OverlappedCompute
from benchmarks.testbed.workload import NS_PER_S
from mlfabric.twin.settings import COMPUTE, ComputeSetting


class Clock:
    """Time that passes when somebody works or sleeps."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep_s(self, seconds: float) -> None:
        assert seconds >= 0
        self.ns += round(seconds * NS_PER_S)


def overlapped(clock: Clock, setting: ComputeSetting, dilation: float = 1.0) -> OverlappedCompute:
    return OverlappedCompute(
        setting, seed=9, worker=3, base_s=0.1, dilation=dilation, now_ns=clock.now_ns, sleep_s=clock.sleep_s
    )


def worked(clock: Clock, seconds: float) -> str:
    clock.sleep_s(seconds)
    return "done"


def made(clock: Clock, compute: OverlappedCompute, buckets: Buckets, step: int = 0, work_s: float = 0.0) -> list[float]:
    """Return when each bucket was made, in seconds since the step began; in the order in which they were."""
    began_ns, times = clock.ns, dict[int, float]()
    result = compute.run_in_buckets(
        step,
        buckets,
        partial(worked, clock, work_s),
        lambda bucket: times.__setitem__(bucket, (clock.ns - began_ns) / NS_PER_S),
    )
    assert result == "done"
    assert list(times) == list(reversed(range(len(buckets.ends))))
    return list(times.values())


def test_equal_buckets_are_made_at_even_distances_in_the_last_two_thirds():
    clock = Clock()
    compute = overlapped(clock, COMPUTE["C0"])
    assert made(clock, compute, Buckets.even(4000, 4)) == pytest.approx([0.05, 0.2 / 3, 0.25 / 3, 0.1])
    assert made(clock, compute, Buckets((300, 400))) == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize("dilation", [1.0, 2.0])
def test_a_step_lasts_its_dilated_time_times_its_slowdown_however_it_is_cut(dilation: float):
    clock, setting = Clock(), COMPUTE["C2"]
    compute = overlapped(clock, setting, dilation)
    for step in range(50):
        last_s = made(clock, compute, Buckets.by_shares(50_891, DDP_SHARES), step, work_s=0.001 * (step % 7))[-1]
        assert last_s == pytest.approx(0.1 * dilation * setting.slowdown(9, 3, step), abs=1e-6)
    assert compute.overruns == 0


def test_work_that_takes_longer_than_forward_is_counted_and_delays_only_what_it_must():
    clock = Clock()
    compute = overlapped(clock, COMPUTE["C0"])
    assert made(clock, compute, Buckets.even(4000, 4), work_s=0.06) == pytest.approx([0.06, 0.2 / 3, 0.25 / 3, 0.1])
    assert compute.overruns == 1


@given(st.integers(100, 10**6), st.lists(st.floats(0.1, 1.0), min_size=1, max_size=8))
def test_buckets_cover_the_model_without_gap_or_overlap(elements: int, weights: Sequence[float]):
    buckets = Buckets.by_shares(elements, [weight / sum(weights) for weight in weights])
    assert [i for part in buckets.slices for i in (part.start, part.stop)][::2] == [0, *buckets.ends[:-1]]
    assert buckets.ends[-1] == elements
    assert sum(buckets.shares) == pytest.approx(1.0)
