"""One model on several servers: every part makes the same steps in the same order, and no get is torn."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, ConfigError, DropReason, Method, RefusedError, RuleSpec
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.planning import Shape, warm_up
from tests.fabric.harness import Fabric, dropped, fabric, small_model, wait_until
from tests.fabric.several import (
    SIZE,
    is_whole,
    logs,
    ones,
    order_of,
    push_one,
    same,
    shards_of,
    spread,
    start,
    step,
    together,
)

STEPS = 20
ROWS = 4


def test_one_worker_trains_on_two_servers_as_on_one() -> None:
    results = []
    for servers in (1, 2):
        with spread(servers) as running:
            model = small_model()
            worker = running.worker(model, rule=RuleSpec(lr=0.1, momentum=0.9), servers=servers)
            for seed in range(10):
                assert step(worker, seed) == Committed(version=running.version(1, seed + 1), tau=0)
            assert worker.get().number == 10
            results.append(model)
    same(*results)


def test_parts_of_a_model_lie_on_servers_of_their_own() -> None:
    with spread(3) as running:
        worker = running.worker(small_model(), servers=3)
        step(worker)
        assert [len(server._service._state.models) for server in running.servers] == [1, 1, 1]
        assert [m.spec.name for m in shards_of(running)] == ["model.shard0", "model.shard1", "model.shard2"]
        sizes = [m.spec.layout.size_bytes for m in shards_of(running)]
        assert max(sizes) - min(sizes) <= 16


def batch(at: int, part: int, columns: int) -> torch.Tensor:
    own = torch.Generator().manual_seed(1000 * at + part)
    return torch.randn(ROWS, columns, dtype=torch.float64, generator=own)


def loss(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = (model(data) ** 2).mean()
    return found


@pytest.mark.parametrize(("servers", "workers", "aggregators"), [(1, 4, 2), (3, 3, 0), (3, 4, 0), (3, 3, 2), (3, 4, 2)])
def test_synchronous_workers_end_where_one_process_does_in_parts_and_sums(
    servers: int, workers: int, aggregators: int
) -> None:
    rule, columns = RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01), 80
    warm_up(print)
    with spread(servers, down_bps=20_000_000 if aggregators else 0) as running:
        for i in range(aggregators):
            running.aggregator(name=f"g{i}", host=f"host-g{i}")
        models = [torch.nn.Linear(columns, 60).double() for _ in range(workers)]
        options: Any = {"rule": rule, "method": Method.SYNCHRONOUS, "servers": servers}
        joined = [running.worker(m, f"w{i}", **options) for i, m in enumerate(models)]
        wait_until(lambda: len(running.status().members) == workers + aggregators + servers, "all are there")
        joined[0].get()
        expected = copy.deepcopy(models[0])

        def train(part: int) -> None:
            joined[part].get()
            for at in range(STEPS):
                loss(models[part], batch(at, part, columns)).backward()
                joined[part].push()
                assert joined[part].get().number == at + 1

        together(*(lambda part=part: train(part) for part in range(workers)))
        groups = running.scheduler.state.count.groups
        assert servers > 1 or any(shape is not Shape.DIRECT for shape, _ in groups), groups
        optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for at in range(STEPS):
            optimizer.zero_grad()
            loss(expected, torch.cat([batch(at, part, columns) for part in range(workers)])).backward()
            optimizer.step()
        for model in models:
            same(model, expected)


def test_stale_synchronous_workers_stay_near_one_another_on_two_servers() -> None:
    with spread(2) as running:
        options: Any = {"rule": RuleSpec(lr=1.0), "method": Method.STALE_SYNCHRONOUS, "slack": 1, "servers": 2}
        joined = [running.worker(ones(), f"w{i}", keep=True, **options) for i in range(2)]

        def train(worker: Any) -> None:
            worker.get()
            for _ in range(STEPS):
                push_one(worker)
                worker.get()
                assert is_whole(worker)
            worker.leave()

        together(*(lambda worker=worker: train(worker) for worker in joined))
        reader = running.worker(ones(), "reader", resume=True, **options)
        assert reader.get().number == 2 * STEPS
        assert is_whole(reader)


def test_no_get_is_torn_and_all_servers_commit_the_same_pushes_in_the_same_order(tmp_path: Path) -> None:
    with spread(3, tmp_path) as running:
        cards = [TcpOptions(), TcpOptions(), TcpOptions(up_bps=8_000_000), TcpOptions(down_bps=8_000_000)]
        joined = []
        for i, tcp in enumerate(cards):
            settings = WorkerSettings(scheduler=running.scheduler.address, name=f"w{i}", host=f"host-w{i}", tcp=tcp)
            worker = mlfabric.register_as_worker(ones(), rule=RuleSpec(lr=1.0), tau_max=6, servers=3, settings=settings)
            running._stack.callback(worker.leave)
            joined.append(worker)
        torn = []

        def train(worker: Any) -> None:
            worker.get()
            for _ in range(2 * STEPS):
                push_one(worker)
                worker.get()
                if not is_whole(worker):
                    torn.append(worker.version)

        together(*(lambda worker=worker: train(worker) for worker in joined))
        assert not torn
        committed = sum(worker.drain().committed for worker in joined)
        assert committed >= 2 * STEPS
        assert max(worker.tally.delay_max for worker in joined) <= 6
        final = joined[0].get(min_version=committed)
        assert final.number == committed
        assert is_whole(joined[0])
    first, *others = logs(tmp_path)
    assert len(order_of(first)) == committed
    assert others == [first, first]


def test_a_step_that_one_server_refuses_is_made_by_none() -> None:
    with spread(2) as running:
        weights = ones()
        worker = running.worker(weights, rule=RuleSpec(lr=1e10), servers=2)
        worker.get()
        weights["a"].grad, weights["b"].grad = torch.zeros(SIZE), torch.full((7,), 1e30)
        dropped(worker.push(), DropReason.NOT_FINITE)
        assert worker.get().number == 0
        assert all(bool((tensor == 0).all()) for tensor in weights.values())
        weights["a"].grad, weights["b"].grad = torch.full((SIZE,), -1e-10), torch.full((7,), -1e-10)
        assert isinstance(worker.push().result(15), Committed)
        assert worker.get().number == 1
        assert [m.version.number for m in shards_of(running)] == [1, 1]


def test_a_worker_waits_until_enough_servers_have_joined(caplog: pytest.LogCaptureFixture) -> None:
    joined: queue.Queue[Any] = queue.Queue()
    with Fabric() as running:
        start(running, 0, None)

        def join() -> None:
            joined.put(running.worker(small_model(), servers=2))

        with caplog.at_level(logging.WARNING, "mlfabric"):
            thread = threading.Thread(target=join, daemon=True)
            thread.start()
            wait_until(lambda: "waits for 2 servers; 1 have joined" in caplog.text, "it says what it waits for")
            start(running, 1, None)
            worker = joined.get(timeout=15)
            thread.join()
        assert isinstance(step(worker), Committed)


def test_workers_that_disagree_on_the_servers_are_refused() -> None:
    with spread(2) as running:
        running.worker(small_model(), "w0", servers=2)
        with pytest.raises(RefusedError, match="servers: 1 here, 2 at"):
            running.worker(small_model(), "w1")


def test_a_model_that_is_too_small_for_its_servers_is_refused_at_once() -> None:
    with fabric() as running, pytest.raises(ConfigError, match="a model of 16 bytes cut into 2 parts; allowed: 1 to 1"):
        running.worker({"w": torch.zeros(3, requires_grad=True)}, servers=2)


def test_buffers_and_frozen_parameters_travel_in_parts_as_they_do_in_one() -> None:
    results = []
    for servers in (1, 2):
        with spread(servers) as running:
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
            model[0].weight.requires_grad_(False)
            worker = running.worker(model, rule=RuleSpec(lr=0.1, momentum=0.9), servers=servers)
            for seed in range(5):
                assert isinstance(step(worker, seed), Committed)
            worker.get()
            results.append(model)
    ours, theirs = (model.state_dict() for model in results)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])
