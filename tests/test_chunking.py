"""Chunks of a model's image: aligned, neither too small nor too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.chunking import LARGE_IMAGE_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, chunk_bytes
from mlfabric.model.specs import ALIGNMENT_BYTES


@given(image_bytes=st.integers(0, 10**12))
def test_chunks_are_aligned_and_within_bounds(image_bytes):
    found = chunk_bytes(image_bytes)
    assert found % ALIGNMENT_BYTES == 0
    assert MIN_CHUNK_BYTES <= found <= MAX_CHUNK_BYTES


def test_the_first_chunk_of_a_model_is_about_a_hundredth_of_it_and_of_a_large_one_a_twenty_fourth():
    assert 90 <= 10_000_000 / chunk_bytes(10_000_000) <= 100
    assert 24 <= LARGE_IMAGE_BYTES / chunk_bytes(LARGE_IMAGE_BYTES) <= 25
