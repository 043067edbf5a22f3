"""What a worker keeps of the result of a stopped attempt, and how the rest of the tensor is summed.

Where an attempt is begun anew along other paths, what all workers have of its result need not be summed again. What is
left is copied together, summed as if it were the tensor, and its sum copied to where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mlfabric.model.ranges import Ranges, count, covered, difference
from mlfabric.protocol import RoundId
from mlfabric.worker_daemon.attempts import Attempt, ReduceBuffers, padded_bytes

__all__ = ["KeptResult", "rest_of"]


class KeptResult:
    """The result of one tensor, as far as it has come.

    Args:
        size_bytes: of the tensor.

    Attributes:
        round: the attempt that was stopped last.
        kept: which bytes have come.
        total: all bytes, each where it belongs; whatever is in those that have not come.
    """

    def __init__(self, size_bytes: int) -> None:
        self.round: RoundId | None = None
        self.kept: Ranges = ()
        self.total = memoryview(np.empty(size_bytes, dtype=np.uint8).data)

    def has_all_but(self, rest: Ranges) -> bool:
        """Tell whether nothing has to be summed but the rest."""
        return not difference(difference(((0, len(self.total)),), rest), self.kept)

    def take(self, attempt: Attempt, rest: Ranges) -> None:
        """Copy what has come in an attempt.

        Args:
            rest: of which bytes of the tensor that was; none if of all.
        """
        found = list(self.kept)
        for pieces, data in attempt.come():
            at = 0
            for start, end in _placed(pieces, rest):
                self.total[start:end] = data[at : at + end - start]
                at += end - start
                found.append((start, end))
        self.kept = covered(found)


def rest_of(buffers: ReduceBuffers, rest: Ranges) -> ReduceBuffers:
    """Return the bytes of a tensor that are still to be summed, put together, and room for their sum."""
    given = None
    if buffers.given is not None:
        whole = np.frombuffer(buffers.given, np.uint8)
        given = memoryview(np.concatenate([whole[start:end] for start, end in rest]).data)
    result = memoryview(np.empty(padded_bytes(count(rest)), dtype=np.uint8).data)
    return ReduceBuffers(given=given, result=result, dtype=buffers.dtype)


def _placed(pieces: Iterable[tuple[int, int]], rest: Ranges) -> Iterator[tuple[int, int]]:
    """Give where pieces of what was put together belong; they themselves if that was everything."""
    if not rest:
        yield from pieces
        return
    for first, after in pieces:
        at = 0
        for start, end in rest:
            low, high = max(first, at), min(after, at + end - start)
            if low < high:
                yield start + low - at, start + high - at
            at += end - start
