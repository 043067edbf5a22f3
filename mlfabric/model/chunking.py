"""How a model's image is cut into chunks: what passes it on, and whoever plans for that, must agree on it. Pure.

A chunk is about a hundredth of the image, so that waiting for the first one costs little however many members a sum or
a model goes through; but at least about what one packet of an Ethernet holds. Images of 48 MiB and more
have chunks of a twenty-fourth, at most 4 MiB: there a fast link brings more than a core can add in smaller pieces.
"""

from __future__ import annotations

from mlfabric.model.specs import ALIGNMENT_BYTES

__all__ = ["chunk_bytes"]

CHUNKS_PER_IMAGE = 96
CHUNKS_PER_LARGE_IMAGE = 24
LARGE_IMAGE_BYTES = 48 * 1024 * 1024
MIN_CHUNK_BYTES = 1408
MAX_CHUNK_BYTES = 4 * 1024 * 1024


def chunk_bytes(image_bytes: int) -> int:
    """Return how long the chunks of an image are, a multiple of ``ALIGNMENT_BYTES``; the last one may be shorter."""
    count = CHUNKS_PER_IMAGE if image_bytes < LARGE_IMAGE_BYTES else CHUNKS_PER_LARGE_IMAGE
    aligned = image_bytes // count // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, aligned))
