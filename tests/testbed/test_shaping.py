from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.testbed.shaping import ETHERNET_BYTES, Bucket, Shaper

RATES = st.integers(100_000, 40_000_000_000)
QUEUES = st.floats(0.001, 10)


@given(rate_bps=RATES, full_bps=RATES, queue_s=QUEUES)
def test_full_packets_always_fit_into_bucket_and_queue(rate_bps, full_bps, queue_s):
    bucket = Bucket(rate_bps=rate_bps, full_bps=full_bps, queue_s=queue_s)

    assert bucket.burst_bytes >= 2 * ETHERNET_BYTES
    assert 32 * ETHERNET_BYTES <= bucket.queue_bytes < 2**32


@given(one_bps=RATES, other_bps=RATES, full_bps=RATES, queue_s=QUEUES)
def test_a_packet_that_fitted_into_a_links_bucket_fits_at_all_of_its_rates(one_bps, other_bps, full_bps, queue_s):
    one, other = (Bucket(rate_bps=bps, full_bps=full_bps, queue_s=queue_s) for bps in (one_bps, other_bps))

    assert one.burst_bytes == other.burst_bytes


@pytest.mark.root
def test_an_interface_that_is_not_there_is_an_error(four_hosts):
    with pytest.raises(OSError, match="no interface with this name"):
        Shaper(four_hosts.hosts[0].namespace, ["eth9"])
