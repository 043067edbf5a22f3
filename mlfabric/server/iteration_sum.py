"""Adding up the parts of a synchronous iteration, where they lie. Holds no memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.model.images import add_value, runs_of
from mlfabric.model.specs import Layout
from mlfabric.server.kernels import all_finite, chunks
from mlfabric.server.model_images import Image

__all__ = ["add_up", "is_finite"]


def add_up(layout: Layout, images: Sequence[memoryview]) -> memoryview:
    """Add all images up in the memory of the first, one after the other, in each run's own dtype; see ``add_value``.

    Args:
        layout: theirs.
        images: one or more, each of ``layout.size_bytes``; the first is written.

    Returns:
        The first.
    """
    for run in runs_of(layout):
        flats = [run.of(image) for image in images]
        for part in chunks(flats[0].numel()):
            total = flats[0][part]
            for flat in flats[1:]:
                add_value(run, total, flat[part])
    return images[0]


def is_finite(layout: Layout, image: memoryview) -> bool:
    """Tell whether no element of an image is NaN or Inf, whatever its padding is."""
    return all(all_finite(flat) for flat in Image(layout, image).flat)
