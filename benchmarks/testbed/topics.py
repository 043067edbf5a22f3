"""Topics of real news, found by collapsed Gibbs sampling: what the testbed trains where there is no gradient.

The model is how often each word has each topic, over all documents: whole numbers, kept as a flat float32 vector. Each
worker has its share of the documents, and its step is a sweep over all of their words (``examples/lda_gibbs.py``). The
changes of the counts are what it pushes, negated: a system that subtracts one worker's gradient as it is, or as many
times the mean of all as there are workers, adds up everybody's changes. So a change that was turned away must not be
forgotten, as the worker's words have their new topics already: it is pushed again with the next one, and counted in
meanwhile.
"""

from __future__ import annotations

import numpy as np

from benchmarks.testbed.news import HELD_OUT, TEXTS
from examples import lda_gibbs
from mlfabric.errors import LayoutError, UsageError

__all__ = ["Topics"]


class Topics:
    """The news and a number of topics; samples for one worker, that of the first call of :meth:`gradient`.

    Args:
        topics: how many, > 0.
        seed: of the words' topics at the beginning and of the sampling.
        workers: how many share the documents, > 0.
    """

    def __init__(self, *, topics: int, seed: int, workers: int) -> None:
        self._topics = topics
        self._seed = seed
        self._workers = workers
        self._worker: int | None = None
        self._shard: lda_gibbs.Shard | None = None
        self._shape = (TEXTS.shape[1], topics)
        self._pending = np.zeros(self._shape, dtype=np.float32)
        self._last = self._pending
        self.n_parameters = TEXTS.shape[1] * topics

    def initial(self) -> np.ndarray:
        """Return the counts before training, when every word has a topic at random: float32, (n_parameters,)."""
        counts = np.zeros(self._shape, dtype=np.float32)
        lda_gibbs.shard_of(TEXTS, self._topics, self._seed).add_to(counts)
        return counts.ravel()

    def gradient(
        self, weights: np.ndarray, worker: int, step: int, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Give every word of the worker's documents a new topic, and return the change of the counts, negated.

        Args:
            weights: the counts of all workers, this one's last change in it if it was not turned away.
            worker: the same in every call, below ``workers``.
            step: of the sampling.
            out: float32, (n_parameters,): takes the change instead of a new vector.

        Returns:
            The change, and 0: a sweep has no loss.

        Raises:
            UsageError: another worker's turn; each has to have topics of its own.
            LayoutError: ``weights`` has another shape.
        """
        shard = self._shard_of(worker)
        before = self._counts(weights)
        counts = before + self._pending
        shard.sweep(counts, np.random.default_rng((self._seed, 1, worker, step)))
        self._last = counts - before
        self._pending = np.zeros_like(counts)
        change = np.negative(self._last.ravel(), out=out)
        return change, 0.0

    def turned_away(self) -> None:
        """Keep the last change for the next one."""
        self._pending = self._last

    def accuracy(self, weights: np.ndarray) -> float:
        """Return the mean log-likelihood of a held-out word, in nats: below 0, more is better."""
        return lda_gibbs.score(self._counts(weights), HELD_OUT)

    def _counts(self, weights: np.ndarray) -> np.ndarray:
        """Return whole numbers again: a mean that is multiplied by its divisor is not quite the sum."""
        if weights.size != self.n_parameters:
            raise LayoutError(f"{weights.size} counts; allowed: {self.n_parameters}, for each word and topic one")
        whole: np.ndarray = np.rint(weights)
        return whole.reshape(self._shape)

    def _shard_of(self, worker: int) -> lda_gibbs.Shard:
        if self._shard is None:
            self._shard = lda_gibbs.shard_of(TEXTS, self._topics, self._seed, worker, self._workers)
            self._worker = worker
        if worker != self._worker:
            raise UsageError(f"worker {worker} samples with the topics of worker {self._worker}; build one for each")
        return self._shard
