"""The news in which topics are found, read and the sampler compiled as soon as this is imported.

That takes a second of CPU: a process that imports this before it forks spares tens of children the same.
"""

from __future__ import annotations

import warnings

import numpy as np

from examples import lda_gibbs

__all__ = ["HELD_OUT", "TEXTS"]

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # the package leaves its file to the garbage collector
    TEXTS, HELD_OUT = lda_gibbs.load()
"""How often each document has each word: of those to learn from, and of those that a model is judged by."""

lda_gibbs.shard_of(TEXTS[:1], 2, 0).sweep(np.ones((TEXTS.shape[1], 2), np.float32), np.random.default_rng(0))
