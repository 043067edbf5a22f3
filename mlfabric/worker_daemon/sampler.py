"""Batches of a data set that the workers of a job share, each sample with one of them, whoever comes and goes.

The stream of samples goes through the data once per epoch, each time in another order, which is the same at all
workers. A worker draws the next positions in it that nobody has; so who is faster trains on more, and nobody needs to
know how many there are. What was drawn by a worker that is gone, or for an update that was dropped, is drawn again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch

from mlfabric.arguments import instance_of, integer_of
from mlfabric.errors import FabricError, UsageError
from mlfabric.model.samples import LAST_POSITION, MOST_RUNS, Samples, samples_of, union
from mlfabric.model.specs import Method
from mlfabric.protocol import DrawAnswer, SamplesGranted
from mlfabric.worker_daemon.thread import DrawFuture
from mlfabric.worker_daemon.worker import Worker

__all__ = ["FabricSampler"]

PAUSE_S = 0.05
RETURN_WITHIN_S = 1.0
_ORDERS_KEPT = 2
_FAR_APART = 0x9E3779B97F4A7C15
Item = TypeVar("Item")


class FabricSampler:
    """Gives the indices of one batch after the other; the ``batch_sampler`` of a PyTorch ``DataLoader``::

        sampler = mlfabric.FabricSampler(worker, len(dataset), batch_size=32, epochs=3)
        for inputs, labels in sampler.over(DataLoader(dataset, batch_sampler=sampler)):
            ...

    :meth:`over` also tells the worker which samples each push is computed from, however far ahead the loader is.

    Args:
        worker: a registered worker, not of AllReduce.
        size: how many samples there are, >= 1; the same at all workers.
        batch_size: of this worker, >= 1; the last batch may be smaller.
        epochs: how often to go through the data, >= 1.
        shuffle: whether each epoch has an order of its own; else the data's. The same at all workers.
        seed: of these orders; the same at all workers.
        again: whether samples of updates that were dropped are drawn again, by whoever comes first.

    Raises:
        UsageError: an argument is out of range, or the worker's method is AllReduce.
    """

    def __init__(
        self,
        worker: Worker,
        size: int,
        *,
        batch_size: int,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        again: bool = True,
    ) -> None:
        instance_of(Worker, "worker", worker, "a registered worker; of a wrapped optimizer it is optimizer.worker")
        for name, value in (("size", size), ("batch_size", batch_size), ("epochs", epochs)):
            integer_of(name, value, least=1)
        integer_of("seed", seed)
        if size * epochs > LAST_POSITION:
            raise UsageError(f"{epochs} epochs of {size} samples; allowed: 2**62 samples in all")
        if worker.method is Method.ALL_REDUCE:
            raise UsageError("a sampler with method all_reduce, which has no server that knows what was trained on")
        self._worker = worker
        self._size = size
        self._batch_size = batch_size
        self._limit = size * epochs
        self._shuffle = shuffle
        self._seed = seed
        self._again = again
        self._orders: dict[int, torch.Tensor] = {}
        self._given: deque[Samples] = deque()
        self._returned: Samples = ()
        self._coming: DrawFuture | None = None
        self._drawn: SamplesGranted | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """Give batches until none is left to draw; some may come back from other workers, see :meth:`over`."""
        self._put_back()
        while (answer := self._next()).answer is DrawAnswer.GRANTED:
            self._given.append(answer.samples)
            yield self.indices(answer.samples)

    def over(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Go through what a loader makes of these batches, and tell the worker of each what it is.

        Asynchronous, it goes on until all samples were trained on: when there are none left to draw it waits for what
        others, or this worker itself, have under way. With the other methods, whose workers must not wait for one
        another here, it ends when there are none left. Left early, it gives back what it has drawn and was not used.

        Args:
            batches: a loader with this sampler, or the sampler itself; it is gone through again if samples come back.
        """
        try:
            while True:
                for item in batches:
                    if not self._given:
                        raise UsageError("the loader gives more than this sampler gave it; make it with batch_sampler=")
                    self._worker.trains_on(self._given.popleft())
                    yield item
                if self._worker.method is not Method.ASYNCHRONOUS or not self._comes_back():
                    return
        finally:
            with suppress(FabricError, TimeoutError):  # whoever has left, or cannot be heard, has nothing any more
                self._return_unused()

    def indices(self, samples: Samples) -> list[int]:
        """Return where in the data set these samples are, in the order of the stream."""
        return [
            int(self._order(position // self._size)[position % self._size])
            for start, stop in samples
            for position in range(start, stop)
        ]

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            while len(self._orders) >= _ORDERS_KEPT:
                del self._orders[min(self._orders)]
            generator = torch.Generator().manual_seed((self._seed * _FAR_APART + epoch) % 2**63)
            self._orders[epoch] = (
                torch.randperm(self._size, generator=generator) if self._shuffle else torch.arange(self._size)
            )
        return self._orders[epoch]

    def _next(self) -> SamplesGranted:
        """Draw a batch, or learn that there is none; the one after it is asked for at once."""
        if self._drawn is not None:
            answer, self._drawn = self._drawn, None
            return answer
        while True:
            answer = (self._coming or self._draw()).result()
            self._coming = self._draw() if answer.answer is DrawAnswer.GRANTED else None
            if answer.answer is not DrawAnswer.NOT_YET:
                return answer
            time.sleep(PAUSE_S)

    def _draw(self, *, wants: bool = True) -> DrawFuture:
        limit = self._limit if wants else 0
        answer = self._worker.draw(self._batch_size, limit, again=self._again, returned=self._returned)
        self._returned = ()
        return answer

    def _put_back(self) -> None:
        """Let what was given and not used be returned with the next draw."""
        self._returned = union(self._returned, samples_of((one for given in self._given for one in given), MOST_RUNS))
        self._given.clear()

    def _return_unused(self) -> None:
        self._put_back()
        if self._coming is not None:
            self._drawn, self._coming = self._coming.result(RETURN_WITHIN_S), None
        if self._drawn is not None:
            self._returned = union(self._returned, self._drawn.samples)
            self._drawn = None
        if self._returned:
            self._draw(wants=False).result(RETURN_WITHIN_S)

    def _comes_back(self) -> bool:
        """Wait until there is something to draw again, or all is over; tell which."""
        self._worker.drain()
        while (answer := self._next()).answer is DrawAnswer.UNDER_WAY:
            time.sleep(PAUSE_S)
        self._drawn = answer if answer.answer is DrawAnswer.GRANTED else None
        return self._drawn is not None
