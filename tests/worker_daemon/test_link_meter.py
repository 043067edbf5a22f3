"""What a link carried at best is found from counters, however they rise and whenever they are looked at."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from mlfabric import clock
from mlfabric.channels import interfaces
from mlfabric.channels.interfaces import counter_of
from mlfabric.worker_daemon import link_meter
from mlfabric.worker_daemon.link_meter import LinkMeter
from mlfabric.worker_daemon.link_peaks import least_bytes, pauses_s, peaks_bps

MS = 1_000_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the interface says at each look, the last one again and again."""
    counters: list[tuple[int, int]] = []
    monkeypatch.setattr(interfaces, "interface_of", lambda address: {"10.0.0.7": "eth7", "127.0.0.1": "lo"}[address])
    monkeypatch.setattr(interfaces, "is_loopback", lambda interface: interface == "lo")
    monkeypatch.setattr(interfaces, "carried_bytes", lambda _: counters.pop(0) if len(counters) > 1 else counters[0])
    times = (ns for began_ns in range(0, 10**12, 10 * MS) for ns in (began_ns, began_ns))
    monkeypatch.setattr(clock, "monotonic_ns", lambda: next(times))
    return counters


async def measured(address: str, looks: int) -> LinkMeter:
    meter = LinkMeter(counter_of(address))
    async with meter.watching():
        for _ in range(looks):
            await asyncio.sleep(0)
    return meter


async def test_the_best_stretch_with_enough_bytes_counts_in_each_direction_by_itself(counted, monkeypatch) -> None:
    monkeypatch.setattr(link_meter, "FIRST_PAUSE_S", 0)
    counted += [(0, 0), (30_000, 0), (130_000, 41_000), (140_000, 90_000), (150_000, 190_000), (150_000, 190_000)]
    meter = await measured("10.0.0.7:50", 100)
    assert meter.peaks_bps(100_000) == (100_000 * 8 * 100, 100_000 * 8 * 100)
    assert meter.peaks_bps(140_000) == (0, 149_000 * 8 * 100 // 2)
    assert meter.peaks_bps(200_000) == (0, 0)


async def test_the_loopback_is_no_link(counted) -> None:
    counted += [(0, 0), (10**9, 10**9)]
    meter = LinkMeter(counter_of("127.0.0.1:50"))
    async with meter.watching():
        await asyncio.sleep(0)
    assert meter.peaks_bps(1) == (0, 0)


def test_two_looks_at_one_instant_show_no_rate() -> None:
    assert peaks_bps([7, 7], [7, 7], [(0,), (10**6,)], 1).tolist() == [0]
    assert peaks_bps([7], [7], [(10**6,)], 1).tolist() == [0]


@pytest.mark.parametrize("read_late", [False, True])
@pytest.mark.parametrize("held_up", [1, 2, 3])
def test_a_look_that_takes_long_makes_no_link_faster_than_it_is(held_up: int, read_late: bool) -> None:
    began_ns = [n * 20 * MS for n in range(5)]
    ended_ns = [at_ns + 15 * MS * (n == held_up) for n, at_ns in enumerate(began_ns)]
    carried = [((ended if read_late else began) / 1e9 * 1e6,) for began, ended in zip(began_ns, ended_ns, strict=True)]
    found = peaks_bps(began_ns, ended_ns, carried, 1)[0]
    assert 0.7 * 8e6 < found <= 8e6 * (1 + 1e-9)


def test_links_are_looked_at_often_first_and_rarely_later() -> None:
    pauses = list(pauses_s())
    assert pauses[0] == 0.005
    assert all(late == pytest.approx(1.25 * early) for early, late in pairwise(pauses))
    assert 20 < sum(pauses) < 300


def test_what_a_token_bucket_lets_pass_at_once_makes_no_link_faster_than_it_is() -> None:
    at_ns = [n * 10 * MS for n in range(8)]
    carried = [(0,), *((10_000 + 10_000 * n,) for n in range(1, 8))]
    assert peaks_bps(at_ns, at_ns, carried, 40_000) == 8e6


def test_a_quarter_of_a_tensor_counts_and_never_less_than_buffers_hold() -> None:
    assert least_bytes(10**6) == 250_000
    assert least_bytes(1000) == 32 * 1024
