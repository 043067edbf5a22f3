"""The example that finds topics: its sampler, the counts that no dropped push may spoil, and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import lda_gibbs
from tests.fabric.harness import fabric

MLFABRIC = (sys.executable, "-m", "mlfabric")
WITHIN_S = 100
PATIENCE_S = 30.0


def some_texts(documents: int = 12, words: int = 30, seed: int = 0) -> lda_gibbs.Counts:
    return np.random.default_rng(seed).poisson(1.0, (documents, words))


def counted(shards: list[lda_gibbs.Shard], words: int, topics: int) -> lda_gibbs.Matrix:
    word_topic = np.zeros((words, topics), np.float32)
    for shard in shards:
        shard.add_to(word_topic)
    return word_topic


def plainly_drawn(shard: lda_gibbs.Shard, word_topic: lda_gibbs.Matrix, draws: list[float]) -> list[int]:
    """Draw the topics of one sweep as the formula says it, counting everything afresh for every word."""
    word_topic = word_topic.astype(np.float64)
    topics: list[int] = shard.topics.tolist()
    for i, (document, word) in enumerate(zip(shard.documents, shard.words, strict=True)):
        word_topic[word, topics[i]] -= 1
        others = [t for j, t in enumerate(topics) if j != i and shard.documents[j] == document]
        in_document = np.bincount(others, minlength=word_topic.shape[1])
        weights = (in_document + lda_gibbs.ALPHA) * (word_topic[word] + lda_gibbs.BETA)
        weights /= word_topic.sum(axis=0) + len(word_topic) * lda_gibbs.BETA
        topics[i] = int((weights.cumsum() <= draws[i] * weights.sum()).sum())
        word_topic[word, topics[i]] += 1
    return topics


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 3))
def test_a_sweep_draws_what_the_formula_says_and_keeps_the_counts(seed: int, topics: int, workers: int) -> None:
    texts = some_texts(6, 8, seed)
    shards = [lda_gibbs.shard_of(texts, topics, seed, rank, workers) for rank in range(workers)]
    word_topic = counted(shards, 8, topics)
    assert word_topic.sum(axis=1).tolist() == texts.sum(axis=0).tolist()
    draws = np.random.default_rng(seed).random(len(shards[0].words)).tolist()
    wanted = plainly_drawn(shards[0], word_topic, draws)
    shards[0].sweep(word_topic, np.random.default_rng(seed))
    assert shards[0].topics.tolist() == wanted
    assert np.array_equal(word_topic, counted(shards, 8, topics))
    assert np.array_equal(shards[0].document_topic.sum(axis=1), texts[::workers].sum(axis=1))


def test_the_shards_begin_with_the_topics_of_one_process() -> None:
    texts = some_texts()
    whole = lda_gibbs.shard_of(texts, 4, seed=3)
    parts = [lda_gibbs.shard_of(texts, 4, 3, rank, workers=5) for rank in range(5)]
    assert np.array_equal(counted([whole], 30, 4), counted(parts, 30, 4))


def test_topics_that_share_no_word_are_found_and_score_better_than_none() -> None:
    rng = np.random.default_rng(1)
    texts = np.zeros((40, 20), np.int64)
    for document, text in enumerate(texts):
        half = slice(0, 10) if document % 2 else slice(10, 20)
        text[half] = rng.poisson(3.0, 10)
    shard = lda_gibbs.shard_of(texts[:30], 2, seed=0)
    word_topic = counted([shard], 20, 2)
    for _ in range(50):
        shard.sweep(word_topic, rng)
    blind = lda_gibbs.score(texts[:30].sum(axis=0, keepdims=True).T.astype(np.float32), texts[30:])
    assert lda_gibbs.score(word_topic, texts[30:]) > blind + 0.6  # log 2, had it infinitely many words


def test_dropped_changes_go_again_and_the_counts_never_drift() -> None:
    workers, sweeps, topics = 3, 4, 5
    texts = some_texts()
    shards = [lda_gibbs.shard_of(texts, topics, 0, rank, workers) for rank in range(workers)]
    together = threading.Barrier(workers)

    def work(rank: int) -> int:
        rng = np.random.default_rng(rank)

        def meet_and_sweep(word_topic: lda_gibbs.Matrix) -> None:
            together.wait(PATIENCE_S)  # all have got the counts, so all but one push are too old
            shards[rank].sweep(word_topic, rng)

        counts[rank].turn(shards[rank].add_to)
        for _ in range(sweeps):
            together.wait(PATIENCE_S)
            counts[rank].turn(meet_and_sweep)
        return counts[rank].worker.drain().dropped

    with fabric() as running:
        counts = [
            lda_gibbs.SharedCounts((30, topics), rank, workers, tau_max=0, settings=running.settings(f"w{rank}"))
            for rank in range(workers)
        ]
        for shared in counts:
            running.enter(shared.worker)
        with ThreadPoolExecutor(workers) as threads:
            dropped = sum(threads.map(work, range(workers)))
        assert dropped >= (workers - 1) * sweeps
        assert [shared.worker.drain().committed for shared in counts] == [1 + sweeps] * workers
        for shared in counts:
            shared.worker.get(min_version=(1 + sweeps) * workers)
            assert np.array_equal(shared.word_topic, counted(shards, 30, topics))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # lda.datasets leaves its files to the collector
def test_two_workers_find_topics_in_the_news() -> None:
    with fabric() as running:
        address = running.scheduler.address
        job = ("run", "-n", "2", "--no-up", "--scheduler", address, lda_gibbs.__file__, "--sweeps=40")
        done = subprocess.run([*MLFABRIC, *job], check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    texts, held_out = lda_gibbs.load()
    assert f"[0] counted {texts.sum()} words, 0 of them wrongly" in done.stdout
    blind = lda_gibbs.score(texts.sum(axis=0, keepdims=True).T.astype(np.float32), held_out)
    assert float(done.stdout.split()[-1]) > blind + 0.2


@pytest.mark.processes
def test_the_benchmark_compares_pairs(tmp_path: Path) -> None:
    figures = tmp_path / "lda.json"
    chosen = {"seeds": 1, "sweeps": 10, "workers": 2, "topics": 5}
    options = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    command = [*MLFABRIC, "bench", "lda", "--json", str(figures), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    (pair,) = found["pairs"].values()
    assert found["lda_rel_gap"] == pytest.approx(abs(pair["fabric"] / pair["one_process"] - 1))
    assert found["lda_rel_gap"] < 0.05
