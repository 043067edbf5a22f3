"""What the kernel works on: named arrays of 64-bit integers.

The machine code that numba keeps on disk knows the order of these fields, but is renewed only when ``kernel.py``
changes: change both together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Groups", "Ints", "Lines", "State"]

Ints = NDArray[np.int64]


class Lines(NamedTuple):
    """All linked lists; ``used`` holds how many nodes are taken, ``shared`` the head of the shared link's list."""

    at_ns: Ints
    bps: Ints
    following: Ints
    used: Ints
    shared: Ints


class Groups(NamedTuple):
    """Transfers in order of (batch, bits, rate, own link, ready, rank), and where each group of equals begins.

    ``head`` is by own link the head of its list. By group: ``own``, ``bits``, ``ready_ns``, ``bps`` (of its own link in
    the end) and ``first`` (one more, the end). ``rank`` is by transfer; ``batch`` by batch the first group (one more).
    """

    head: Ints
    own: Ints
    bits: Ints
    ready_ns: Ints
    bps: Ints
    first: Ints
    rank: Ints
    batch: Ints


class State(NamedTuple):
    """What changes while groups are reserved.

    By group: how many are ``taken``, the rank of the next (``head_rank``), the first group of its size in its batch
    (``low``). By class, which is named by that first group: where it ends (``high``), and the key under which the heap
    holds it, -1 for none. ``least`` is the tree: the least rank of the steady groups below each node. ``owner`` is by
    rank the group.
    """

    taken: Ints
    head_rank: Ints
    low: Ints
    high: Ints
    key_end: Ints
    key_rank: Ints
    least: Ints
    owner: Ints
