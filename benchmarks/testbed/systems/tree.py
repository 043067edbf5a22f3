"""A static binary tree over gloo's send and recv: gradients are summed up the tree, the sum comes down it.

Worker r sends to worker (r - 1) // 2 and hears from 2r + 1 and 2r + 2. Both ways are pipelined in chunks, and the sum's
first chunk is on its way down while the last ones are still on their way up; otherwise each of the tree's levels would
cost two whole transfers each way. A worker with two children takes in two vectors on their way up and one on its way
down, so no chunking gets below 3 wire times of the vector.

Chunks: with K of them, filling the pipeline costs two chunk times a level and way (two children share their parent's
link), 16 at 30 workers, and every chunk costs o of CPU and headers, so a step takes about (3K + 16)(T / K + o) for a
wire time T. That is flat around K = sqrt(16 T / 3 o): 38 for T = 80 ms and o = 0.3 ms. Measured on the testbed (30
hosts, dilation 2), 16 and 32 take the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.testbed.runs import Forwarded, Place, RunPlan, WorkerLog, worker_name
from benchmarks.testbed.systems.collective import SumOfAll, train

__all__ = ["CHUNKS", "worker"]

CHUNKS = 32
FLOAT32_BYTES = 4


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a binary-tree all-reduce of the flat gradient in every step.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    with ThreadPoolExecutor(1) as upwards:
        log = train(place, plan, partial(SumOfAll, place, plan, lambda elements: _Tree(place, elements, upwards)))
    return log if place.own_rank == 0 else replace(log, forwarded=_forwarded(place.own_rank, log, plan))


def _forwarded(rank: int, log: WorkerLog, plan: RunPlan) -> Forwarded:
    """Return the sums that this worker sent up the tree: one a step, once it had its gradient."""
    n_bytes = plan.workload.build().n_parameters * FLOAT32_BYTES
    return Forwarded(
        to=worker_name(_parent(rank)),
        began_ns=log.computed_ns,
        n_bytes=np.full(len(log.computed_ns), n_bytes, dtype=np.int64),
    )


def _parent(rank: int) -> int:
    return (rank - 1) // 2


class _Tree:
    """One worker's place in the tree.

    A chunk of the sum lands where this worker's own chunk was: its parent cannot have it before that one has left.

    Args:
        place: of the worker.
        elements: of the vectors that are summed.
        upwards: one thread, which sums up the tree while the caller's brings the sum down.
    """

    def __init__(self, place: Place, elements: int, upwards: ThreadPoolExecutor) -> None:
        rank = place.own_rank
        self._parent = _parent(rank) if rank else None
        self._children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < place.workers]
        self._room = [torch.empty(elements).tensor_split(CHUNKS) for _ in self._children]
        self._upwards = upwards
        self._coming: list[list[dist.Work]] = []

    def expect(self) -> None:
        """Let children that are earlier send while this worker computes."""
        self._coming = [
            [_receive(chunk, child, tag) for tag, chunk in enumerate(room)]
            for child, room in zip(self._children, self._room, strict=True)
        ]

    def reduce(self, vector: torch.Tensor) -> None:
        """Sum the vector over all workers."""
        chunks = vector.tensor_split(CHUNKS)
        if self._parent is None:
            sent = self._up(chunks, self._children, CHUNKS)
        else:
            coming = [_receive(chunk, self._parent, CHUNKS + tag) for tag, chunk in enumerate(chunks)]
            up = self._upwards.submit(self._up, chunks, [self._parent], 0)
            sent = self._down(chunks, coming) + up.result()
        for work in sent:
            work.wait()

    def _up(self, chunks: Sequence[torch.Tensor], to: Sequence[int], first_tag: int) -> list[dist.Work]:
        """Add the children's chunks to this worker's, and send each on when it is complete."""
        sent = []
        for tag, chunk in enumerate(chunks):
            for coming, room in zip(self._coming, self._room, strict=True):
                coming[tag].wait()
                chunk.add_(room[tag])
            sent += [_send(chunk, worker, first_tag + tag) for worker in to]
        return sent

    def _down(self, chunks: Sequence[torch.Tensor], coming: Sequence[dist.Work]) -> list[dist.Work]:
        """Send the sum's chunks on to the children as they come."""
        sent = []
        for tag, (chunk, work) in enumerate(zip(chunks, coming, strict=True), start=CHUNKS):
            work.wait()
            sent += [_send(chunk, child, tag) for child in self._children]
        return sent


def _send(chunk: torch.Tensor, to: int, tag: int) -> dist.Work:
    work = dist.isend(chunk, to, tag=tag)
    assert work is not None, "this process is in the group"
    return work


def _receive(chunk: torch.Tensor, source: int, tag: int) -> dist.Work:
    work = dist.irecv(chunk, source, tag=tag)
    assert work is not None, "this process is in the group"
    return work
