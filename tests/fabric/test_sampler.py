"""Workers that share a data set: every sample once, whoever comes, goes, dies or loses its updates."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mlfabric
from mlfabric import Committed, FabricSampler, Method
from mlfabric.protocol import DrawAnswer, SamplesWanted
from tests.fabric.harness import Fabric, fabric, gradients, small_model, wait_until
from tests.fabric.several import together
from tests.fabric.test_samples import comes_to

SIZE = 50
DATA = TensorDataset(torch.arange(SIZE))


def commit(worker: Any) -> None:
    """Push from the model that the worker has, and get the next one."""
    gradients(worker._model)
    assert isinstance(worker.push().result(15), Committed)
    worker.get()


class Trainer(threading.Thread):
    """A worker that trains in a thread of its own, and notes what on."""

    def __init__(
        self,
        worker: Any,
        *,
        epochs: int = 1,
        spoil: frozenset[int] = frozenset(),
        before_each: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.seen: list[int] = []
        self._spoil = set(spoil)
        self._epochs = epochs
        self._options = {"batch_size": 4, **options}
        self._before_each = before_each
        self.start()

    def run(self) -> None:
        self.worker.get()
        sampler = FabricSampler(self.worker, SIZE, epochs=self._epochs, **self._options)
        for step, (batch,) in enumerate(sampler.over(DataLoader(DATA, batch_sampler=sampler))):
            self._before_each(step)
            gradients(self.worker._model, step)
            if spoilt := self._spoil & set(batch.tolist()):
                self._spoil -= spoilt
                next(iter(self.worker._model.parameters())).grad[0] = float("nan")
            else:
                self.seen += batch.tolist()
            self.worker.exchange()

    def end(self) -> None:
        self.join(15)
        assert not self.is_alive(), "it does not come to an end"


def test_workers_share_the_data_and_each_sample_is_trained_on_once_in_each_epoch() -> None:
    with fabric() as running:
        trainers = [Trainer(running.worker(small_model(), f"w{i}"), epochs=2) for i in range(3)]
        for trainer in trainers:
            trainer.end()
        assert {i for trainer in trainers for i in trainer.seen} == set(range(SIZE))
        comes_to(running, trained=[(0, 2 * SIZE, 1)])


def test_samples_of_dropped_updates_are_trained_on_again() -> None:
    with fabric() as running:
        trainer = Trainer(running.worker(small_model()), spoil=frozenset({3, 17, 30}))
        trainer.end()
        assert set(trainer.seen) == set(range(SIZE))
        assert trainer.worker.tally.dropped > 0
        comes_to(running, trained=[(0, SIZE, 1)])


def test_samples_of_dropped_updates_can_be_left_out() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        trainer = Trainer(worker, spoil=frozenset({7}), again=False, shuffle=False)
        trainer.end()
        assert set(trainer.seen) == set(range(SIZE)) - set(range(4, 8))
        comes_to(running, trained=[(0, 4, 1), (8, SIZE, 1)], dropped=[(4, 8)])


def test_what_a_worker_that_dies_has_drawn_goes_to_others() -> None:
    with fabric() as running:
        steady = running.worker(small_model(), "steady")
        steady.get()
        raw = running.raw_worker(small_model())
        raw.tell(SamplesWanted(worker=raw.name, model="model", serial=1, count=8, limit=SIZE))
        granted = raw.told("samples_granted")
        assert list(granted.samples) == [0, 8]
        trainer = Trainer(steady)
        wait_until(lambda: len(trainer.seen) >= SIZE - 8, "all others are trained on")
        assert trainer.is_alive(), "it waits for what the other has"
        raw.__exit__()
        trainer.end()
        assert set(trainer.seen) == set(range(SIZE))
        comes_to(running, trained=[(0, SIZE, 1)])


def test_a_worker_that_leaves_early_leaves_its_samples_to_others() -> None:
    with fabric() as running:
        first = running.worker(small_model(), "first", keep=True)
        first.get()
        sampler = FabricSampler(first, SIZE, batch_size=4)
        batches = sampler.over(sampler)
        for _ in range(2):
            next(batches)
            commit(first)
        next(batches)
        first.leave()
        trainer = Trainer(running.worker(small_model(), "second", keep=True, resume=True))
        trainer.end()
        assert len(set(trainer.seen)) == SIZE - 8
        comes_to(running, trained=[(0, SIZE, 1)])


def test_a_worker_that_stops_early_and_stays_gives_back_what_it_has_drawn() -> None:
    with fabric() as running:
        first = running.worker(small_model(), "first")
        first.get()
        sampler = FabricSampler(first, SIZE, batch_size=4)
        for step, _ in enumerate(sampler.over(DataLoader(DATA, batch_sampler=sampler))):
            commit(first)
            if step == 2:
                break
        trainer = Trainer(running.worker(small_model(), "second"))
        trainer.end()
        comes_to(running, trained=[(0, SIZE, 1)])


def test_nothing_is_handed_out_twice_when_the_scheduler_is_restarted_meanwhile() -> None:
    with fabric() as running:
        trained = threading.Event()
        goes_on = threading.Event()

        def stop_at(step: int) -> None:
            if step == 5:
                trained.set()
                assert goes_on.wait(15)

        trainers = [
            Trainer(running.worker(small_model(), "w0"), epochs=3, before_each=stop_at),
            Trainer(running.worker(small_model(), "w1"), epochs=3),
        ]
        assert trained.wait(15)
        running.restart_scheduler()
        goes_on.set()
        for trainer in trainers:
            trainer.end()
        comes_to(running, trained=[(0, 3 * SIZE, 1)])


def test_what_a_server_has_lost_is_trained_on_again(tmp_path: Path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path / "first")
        worker = running.worker(small_model())
        worker.get()
        sampler = FabricSampler(worker, SIZE, batch_size=10, shuffle=False)
        batches = sampler.over(sampler)
        next(batches)
        commit(worker)
        first.stop()
        second = running.server(checkpoint_dir=tmp_path / "first", resume=True)
        resumed = running.version(2, 0).epoch
        wait_until(lambda: running.status().models[0].version.epoch == resumed, "the server has resumed")
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path / "first", kept, ignore=shutil.ignore_patterns("*.tmp", "*.jsonl"))
        for _ in range(2):
            next(batches)
            commit(worker)
        second.stop()
        shutil.copy(tmp_path / "first" / "model.commits.jsonl", kept)
        running.server(checkpoint_dir=kept, resume=True)
        comes_to(running, trained=[(0, 10, 1)], lost=[(10, 30)])
        worker.get()
        for _ in batches:
            commit(worker)
        comes_to(running, trained=[(0, SIZE, 1)])


def test_synchronous_workers_end_together_when_nothing_is_left() -> None:
    with fabric() as running:
        options = {"method": Method.SYNCHRONOUS, "workers": 2, "keep": True}
        workers = [running.worker(small_model(), f"w{i}", **options) for i in range(2)]

        def train(worker: Any) -> None:
            with worker:
                worker.get()
                sampler = FabricSampler(worker, SIZE, batch_size=5)
                for _ in sampler.over(sampler):
                    gradients(worker._model)
                    worker.push()
                    worker.get()

        together(*(partial(train, worker) for worker in workers))
        comes_to(running, trained=[(0, SIZE, 1)])


def test_a_loader_that_reads_ahead_tells_each_push_its_own_batch(tmp_path: Path) -> None:
    with fabric(checkpoint_dir=tmp_path) as running:
        worker = running.worker(small_model())
        worker.get()
        sampler = FabricSampler(worker, SIZE, batch_size=5, shuffle=False)
        ahead = list(zip(range(4), sampler, strict=False))
        assert [batch for _, batch in ahead] == [list(range(5 * i, 5 * i + 5)) for i in range(4)]
        for item, (_, batch) in zip(sampler.over(batch for _, batch in ahead), ahead, strict=False):
            assert item == batch
            commit(worker)
            if batch[-1] == 14:
                break
        comes_to(running, trained=[(0, 15, 1)])


def test_what_was_drawn_and_not_used_is_given_back_when_the_sampler_begins_anew() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        worker.get()
        sampler = FabricSampler(worker, SIZE, batch_size=5, shuffle=False)
        for _ in zip(range(3), sampler, strict=False):
            pass
        seen = []
        for batch in sampler.over(sampler):
            seen += batch
            commit(worker)
        assert set(seen) == set(range(SIZE))
        comes_to(running, trained=[(0, SIZE, 1)])


def test_two_draws_at_once_are_refused() -> None:
    with Fabric() as running:
        server = running.server()
        worker = running.worker(small_model())
        worker.get()
        server.stop()
        running.scheduler.stop()
        worker.draw(4, SIZE)
        with pytest.raises(mlfabric.UsageError, match="another draw"):
            worker.draw(4, SIZE)


def test_draws_out_of_range_are_refused_and_an_empty_stream_is_over() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        for count, limit in ((0, 4), (1, -1), (1, 2**62 + 1)):
            with pytest.raises(mlfabric.UsageError, match="allowed"):
                worker.draw(count, limit)
        worker.get()
        assert worker.draw(4, 0).result(15).answer is DrawAnswer.OVER
