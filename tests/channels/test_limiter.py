"""The token bucket on a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels.limiter import TokenBucket, chunk_bytes
from mlfabric.errors import ConfigError

S = 1_000_000_000
MS = 1_000_000

rates = st.integers(min_value=1_000_000, max_value=100_000_000_000)
sizes = st.lists(st.integers(min_value=0, max_value=1 << 20), min_size=1, max_size=50)


def wire_ns(n_bytes: int, rate_bps: int) -> float:
    return n_bytes * 8 * S / rate_bps


@given(rates, sizes, st.integers(min_value=0, max_value=10 * S))
def test_a_punctual_taker_gets_exactly_the_nominal_rate_from_the_first_byte_on(
    rate: int, takes: list[int], start_ns: int
) -> None:
    bucket, now_ns = TokenBucket(rate), start_ns
    bucket.begin(now_ns)
    for n in takes:
        now_ns += bucket.take(n, now_ns)
    assert wire_ns(sum(takes), rate) <= now_ns - start_ns <= wire_ns(sum(takes), rate) + len(takes)


@given(rates, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 20 * MS)), min_size=1, max_size=50))
def test_however_late_takers_come_no_byte_passes_before_its_wire_time(rate: int, takes: list[tuple[int, int]]) -> None:
    bucket, now_ns, taken = TokenBucket(rate), 0, 0
    bucket.begin(0)
    for n, late_ns in takes:
        now_ns += late_ns
        taken += n
        assert now_ns + bucket.take(n, now_ns) >= wire_ns(taken, rate)


@given(
    st.integers(min_value=20_000_000, max_value=4_000_000_000),
    st.lists(st.integers(min_value=0, max_value=19 * MS // 10), min_size=1, max_size=50),
)
def test_lateness_below_a_chunks_time_is_caught_up_wholly(rate: int, late_ns: list[int]) -> None:
    bucket, now_ns, n = TokenBucket(rate), 0, chunk_bytes(rate)
    bucket.begin(0)
    for late in late_ns:
        now_ns += bucket.take(n, now_ns) + late
    end_ns = now_ns + bucket.take(n, now_ns)
    chunks = len(late_ns) + 1
    assert end_ns <= wire_ns(n, rate) * chunks + chunks


@given(rates, sizes, st.integers(min_value=1, max_value=100))
def test_takers_with_one_chunk_each_share_the_rate_equally(rate: int, rounds: list[int], takers: int) -> None:
    bucket, n = TokenBucket(rate), chunk_bytes(rate)
    ready_ns = [0] * takers
    for _ in range(takers):
        bucket.begin(0)
    passed = [0] * takers
    for _ in range(takers * len(rounds)):
        taker = min(range(takers), key=lambda t: (ready_ns[t], t))
        ready_ns[taker] += bucket.take(n, ready_ns[taker])
        passed[taker] += n
    assert max(passed) - min(passed) <= n


def test_an_idle_bucket_saves_no_credit_for_the_next_transfer() -> None:
    bucket = TokenBucket(8_000_000)
    bucket.begin(0)
    bucket.take(1000, 0)
    bucket.end()
    bucket.begin(100 * S)
    assert bucket.take(1000, 100 * S) == 1 * MS


def test_a_second_transfer_waits_for_what_the_first_one_has_taken() -> None:
    bucket = TokenBucket(8_000_000)
    bucket.begin(0)
    bucket.take(5000, 0)
    bucket.begin(1 * MS)
    assert bucket.take(1000, 1 * MS) == 5 * MS


def test_only_as_much_lateness_as_the_burst_allows_is_caught_up() -> None:
    bucket = TokenBucket(8_000_000)
    bucket.begin(0)
    bucket.take(1000, 0)
    assert bucket.take(64 * 1024 + 1000, 500 * MS) == 1 * MS


@pytest.mark.parametrize("rate_bps", [0, -1])
def test_a_rate_that_is_not_positive_is_refused(rate_bps: int) -> None:
    with pytest.raises(ConfigError, match="allowed: > 0"):
        TokenBucket(rate_bps)


@given(st.integers(min_value=1, max_value=10**13))
def test_chunks_are_small_against_a_transfer_and_never_empty(rate: int) -> None:
    assert 4 * 1024 <= chunk_bytes(rate) <= 1 << 20
