"""Find topics in Reuters news; several workers add to shared counts: ``mlfabric run -n 4 examples/lda_gibbs.py``.

Latent Dirichlet allocation by collapsed Gibbs sampling: every word of every document has a topic, and a sweep draws
each topic anew, by how often it occurs in the document and how often this word has it in all documents. Each worker
has a share of the documents. The fabric holds the counts by word and topic as parameters. Their "gradient" is minus the
change, so SGD with learning rate 1 adds the change. So every worker samples from the counts of all workers, and no
count is lost or added twice.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lda.datasets
import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

import mlfabric

ALPHA, BETA = 0.1, 0.01  # prior of topics in a document, and of words in a topic
HELD_OUT = 10  # one of this many documents is held out for the score

Counts = NDArray[np.int64]
Matrix = NDArray[np.float32]  # of whole numbers: exact up to 2^24


@dataclass
class Shard:
    """Some documents: for each word its document, itself, and its topic now; ``document_topic`` counts these."""

    documents: Counts
    words: Counts
    topics: Counts
    document_topic: Matrix

    def add_to(self, word_topic: Matrix) -> None:
        """Add this shard's words to the counts."""
        np.add.at(word_topic, (self.words, self.topics), 1)

    def sweep(self, word_topic: Matrix, rng: np.random.Generator) -> None:
        """Draw every word's topic anew, moving it from count to count."""
        draw_topics(
            self.documents, self.words, self.topics, self.document_topic, word_topic, rng.random(len(self.words))
        )


@njit(cache=True)
def draw_topics(
    documents: Counts, words: Counts, topics: Counts, document_topic: Matrix, word_topic: Matrix, draws: Any
) -> None:
    """Give each word a new topic; ``draws`` are uniform in [0, 1), one a word."""
    totals = word_topic.sum(axis=0)
    below = np.empty(len(totals))
    for i in range(len(words)):
        in_document, of_word, topic = document_topic[documents[i]], word_topic[words[i]], topics[i]
        for counts in (in_document, of_word, totals):
            counts[topic] -= 1
        total = 0.0
        for k in range(len(totals)):
            total += (in_document[k] + ALPHA) * (of_word[k] + BETA) / (totals[k] + len(word_topic) * BETA)
            below[k] = total
        topic = topics[i] = min(np.searchsorted(below, draws[i] * total, side="right"), len(totals) - 1)
        for counts in (in_document, of_word, totals):
            counts[topic] += 1


def shard_of(texts: Counts, topics: int, seed: int, rank: int = 0, workers: int = 1) -> Shard:
    """Give every word a topic at random; return every ``workers``-th document from ``rank`` on."""
    documents, words = texts.nonzero()
    documents, words = np.repeat((documents, words), texts[documents, words], axis=1)
    drawn = np.random.default_rng(seed).integers(topics, size=len(words))
    mine = documents % workers == rank
    documents, words, drawn = documents[mine] // workers, words[mine], drawn[mine]
    document_topic = np.zeros((-(-len(texts) // workers), topics), np.float32)
    np.add.at(document_topic, (documents, drawn), 1)
    return Shard(documents, words, drawn, document_topic)


def score(word_topic: Matrix, held_out: Counts) -> float:
    """Return a held-out word's mean log-likelihood: half of each document tells its topics, the rest is scored."""
    told = np.random.default_rng(0).binomial(held_out, 0.5)
    in_topic = (word_topic + BETA) / (word_topic + BETA).sum(axis=0)
    in_document = np.full((len(held_out), word_topic.shape[1]), 1 / word_topic.shape[1])
    for _ in range(30):
        in_document *= told / (in_document @ in_topic.T) @ in_topic
        in_document += ALPHA
        in_document /= in_document.sum(axis=1, keepdims=True)
    scored = held_out - told
    return float((scored * np.log(in_document @ in_topic.T)).sum() / scored.sum())


class SharedCounts:
    """The counts in the fabric, and beside them how many turns each worker has had, so that all know when all are done.

    Args:
        shape: number of words, and of topics.
        tau_max: the most updates that may have been added to the counts since they were got for a turn.
    """

    def __init__(self, shape: tuple[int, int], rank: int, workers: int, tau_max: int, **options: Any) -> None:
        self.rank = rank
        self.tensors = [torch.zeros(shape, requires_grad=True), torch.zeros(workers, requires_grad=True)]
        self.word_topic, self.turns = (tensor.detach().numpy() for tensor in self.tensors)
        named = dict(zip(("word_topic", "turns"), self.tensors, strict=True))
        adding = mlfabric.RuleSpec(lr=1.0)
        self.worker = mlfabric.register_as_worker(named, rule=adding, tau_max=tau_max, **options)

    def turn(self, work: Callable[[Matrix], None]) -> None:
        """Let ``work`` change the newest counts, and push the change; one that is dropped for its delay goes again."""
        self.worker.get()
        before = [tensor.detach().clone() for tensor in self.tensors]
        work(self.word_topic)
        self.turns[self.rank] += 1
        gradients = [old - tensor.detach() for tensor, old in zip(self.tensors, before, strict=True)]
        while isinstance(outcome := self._push(gradients), mlfabric.Dropped):
            self.worker.get()
        if not isinstance(outcome, mlfabric.Committed):
            raise RuntimeError(f"a change was lost, and the counts may be wrong now: {outcome}")

    def _push(self, gradients: list[torch.Tensor]) -> object:
        """Push, and return what became of it."""
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            tensor.grad = gradient
        return self.worker.push().result()

    def wait(self, turns: int) -> None:
        """Wait until every worker has had so many turns."""
        while self.turns.min() < turns:
            self.worker.get(min_version=self.worker.version.number + 1)


def main() -> None:
    """Sample as the command line says; print progress, topics and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tau-max", type=int, help="delay bound; twice the number of workers unless given")
    a = parser.parse_args()
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    texts, held_out = load()
    shard, rng = shard_of(texts, a.topics, a.seed, rank, workers), np.random.default_rng((a.seed, rank))
    counts = SharedCounts((texts.shape[1], a.topics), rank, workers, 2 * workers if a.tau_max is None else a.tau_max)
    counts.turn(shard.add_to)
    counts.wait(turns=1)
    for sweep in range(1, a.sweeps + 1):
        counts.turn(lambda word_topic: shard.sweep(word_topic, rng))
        if rank == 0 and sweep % 20 == 0:
            print(f"sweep {sweep} of {a.sweeps}: {score(counts.word_topic, held_out):.3f} per held-out word")
    print(f"pushes that were dropped and went again: {counts.worker.drain().dropped}")
    if rank == 0:
        counts.wait(turns=1 + a.sweeps)
        describe(counts.word_topic, texts, held_out)


def load() -> tuple[Counts, Counts]:
    """Return how often each document has each word, of the documents to learn from and of those held out."""
    news = lda.datasets.load_reuters()
    kept = np.arange(len(news)) % HELD_OUT != HELD_OUT - 1
    return news[kept], news[~kept]


def describe(word_topic: Matrix, texts: Counts, held_out: Counts) -> None:
    """Print each topic's foremost words, whether all words are counted, and the score."""
    vocabulary = np.array(lda.datasets.load_reuters_vocab())
    for topic in word_topic.T:
        print(f"{topic.sum():6.0f} words:", *vocabulary[np.argsort(-topic)[:8]])
    print(f"counted {word_topic.sum():.0f} words, {abs(word_topic.sum(1) - texts.sum(0)).sum():.0f} of them wrongly")
    print(f"log-likelihood of a held-out word {score(word_topic, held_out):.5f}")


if __name__ == "__main__":
    main()
