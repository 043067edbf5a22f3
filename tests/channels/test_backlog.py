"""A stream's sender knows what the links carried while they, and not its input, held it up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels.backlog import Backlog, Path

SEGMENT = 1448
CHUNK = 4096


def sent(in_bps: float, out_bps: float, rtt_ns: int = 0, chunks: int = 100) -> Backlog:
    """Return what is known after chunks came at one rate and left at another; acknowledgements take a round trip."""
    backlog, every_ns = Backlog(Path(SEGMENT, rtt_ns)), round(8e9 * CHUNK / in_bps)

    def acknowledged(at_ns: int) -> int:
        """What had left a round trip ago, in whole pairs of segments unless that was all."""
        then_ns = at_ns - rtt_ns
        come = min(chunks, max(0, then_ns // every_ns)) * CHUNK
        left = min(come, max(0, int(out_bps * (then_ns - every_ns) / 8e9)))
        return left if left == chunks * CHUNK else left // (2 * SEGMENT) * (2 * SEGMENT)

    for i in range(1, chunks + 1):
        written, now_ns = (i - 1) * CHUNK, i * every_ns
        backlog.look(written, written - acknowledged(now_ns), now_ns)
    end_ns = now_ns + round(8e9 * chunks * CHUNK / min(in_bps, out_bps) / 4)
    backlog.look(chunks * CHUNK, chunks * CHUNK - acknowledged(end_ns), end_ns)
    return backlog


@given(in_bps=st.floats(1e7, 1e9), share=st.floats(0.02, 0.7), rtt_ns=st.integers(0, 200_000))
def test_a_stream_that_the_links_hold_up_tells_what_they_carry(in_bps: float, share: float, rtt_ns: int) -> None:
    backlog = sent(in_bps, share * in_bps, rtt_ns)
    assert backlog.bytes > 20 * CHUNK
    assert 8e9 * backlog.bytes / backlog.ns == pytest.approx(share * in_bps, rel=0.1)


@given(in_bps=st.floats(1e6, 1e9), factor=st.floats(1.5, 1000), rtt_ns=st.integers(0, 50_000_000))
def test_a_stream_that_waits_for_its_bytes_tells_nothing_however_long_the_way(
    in_bps: float, factor: float, rtt_ns: int
) -> None:
    assert sent(in_bps, factor * in_bps, rtt_ns).bytes <= 5 * CHUNK


def test_nothing_is_known_at_the_first_look() -> None:
    backlog = Backlog(Path(0, 0))
    backlog.look(0, 500, 10)
    assert (backlog.bytes, backlog.ns) == (0, 0)
    backlog.look(100, 300, 30)
    assert (backlog.bytes, backlog.ns) == (300, 20)


def stalled() -> Backlog:
    """Nothing is acknowledged for a second, while pieces are written; then there is more to come."""
    backlog = Backlog(Path(SEGMENT, 1_000_000))
    backlog.look(0, 0, 0)
    backlog.look(50_000, 50_000, 500_000_000)
    backlog.look(60_000, 60_000, 1_000_000_000)
    return backlog


def test_links_that_carry_nothing_for_a_while_were_busy_all_the_same() -> None:
    backlog = stalled()
    assert (backlog.bytes, backlog.ns) == (0, 500_000_000)  # the first piece might have been on its way


def test_what_is_acknowledged_late_and_all_at_once_counts() -> None:
    backlog = stalled()
    backlog.look(70_000, 0, 1_100_000_000)
    assert (backlog.bytes, backlog.ns) == (70_000, 600_000_000)
    backlog.look(80_000, 0, 1_200_000_000)
    assert (backlog.bytes, backlog.ns) == (70_000, 600_000_000)


def test_until_the_last_byte_has_left_the_links_are_busy_however_little_is_on_its_way_then() -> None:
    backlog = Backlog(Path(SEGMENT, 0))
    backlog.look(0, 0, 0)
    backlog.look(50_000, 1000, 100, held_up=True)
    assert (backlog.bytes, backlog.ns) == (49_000, 100)
