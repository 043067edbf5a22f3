"""Training through a whole fabric: a lone worker gets what plain SGD gives; workers and models go side by side."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, RuleSpec
from tests.fabric import several
from tests.fabric.harness import Fabric, gradients, small_model, wait_until


def same(model: torch.nn.Module, other: torch.nn.Module) -> None:
    theirs = other.state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6, msg=f"{name} differs")


@pytest.mark.parametrize(
    "rule", [RuleSpec(lr=0.2), RuleSpec(lr=0.1, momentum=0.9), RuleSpec(lr=0.1, momentum=0.5, weight_decay=0.01)]
)
def test_a_lone_worker_trains_exactly_as_plain_sgd_does(running: Fabric, rule: RuleSpec) -> None:
    model, plain = small_model(), small_model()
    worker = running.worker(model, rule=rule)
    optimizer = torch.optim.SGD(plain.parameters(), lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
    for step in range(8):
        assert worker.get().number == step
        gradients(model, step)
        gradients(plain, step)
        handle = worker.push()
        assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        assert handle.result(10) == Committed(version=running.version(1, step + 1), tau=0)
    worker.get()
    same(model, plain)


def test_a_wrapped_optimizer_is_sgd_on_gradients_one_step_old(running: Fabric) -> None:
    model, plain = small_model(), small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = mlfabric.wrap(inner, model, settings=running.settings())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    seen = small_model()
    for step in range(6):
        gradients(model, step)
        optimizer.step()
        # The reference takes the gradient at the model that the fabric's worker had: one update behind after step 0.
        gradients(seen, step)
        before = {n: t.clone() for n, t in plain.state_dict().items()}
        for ours, theirs in zip(plain.parameters(), seen.parameters(), strict=True):
            ours.grad = theirs.grad
        reference.step()
        seen.load_state_dict(before)
        assert optimizer.last_push is not None
        outcome = optimizer.last_push.result(10)
        assert isinstance(outcome, Committed)
        assert outcome.tau == (0 if step == 0 else 1)
        same(model, seen)
    optimizer.finish()
    same(model, plain)
    optimizer.worker.leave()


def test_several_workers_lose_no_update_and_apply_none_twice(running: Fabric) -> None:
    steps, names = 10, ["w0", "w1", "w2", "w3"]
    workers = [running.worker(small_model(), name) for name in names]

    def train(worker: Any, seed: int) -> None:
        for step in range(steps):
            worker.get()
            gradients(worker._model, seed + step)
            worker.push()
        worker.drain(20)

    several.together(*(partial(train, worker, 100 * i) for i, worker in enumerate(workers)))
    committed = sum(w.tally.committed for w in workers)
    settled = sum(w.tally.committed + w.tally.dropped + w.tally.lost for w in workers)
    assert settled == steps * len(names)
    assert workers[0].get(min_version=committed).number == committed
    assert max(w.tally.delay_max for w in workers) <= workers[-1].tau_max
    wait_until(lambda: running.status().models[0].committed >= committed, "the server has told of all commits")
    (model,) = running.status().models
    assert (model.version.number, model.committed) == (committed, committed)


def test_several_models_live_side_by_side_on_one_server(running: Fabric) -> None:
    models = {"a": small_model(1), "b": small_model(2)}
    workers = {n: running.worker(m, f"worker-{n}", model_name=n) for n, m in models.items()}
    for steps, worker in enumerate(workers.values(), start=1):
        for seed in range(steps):
            several.step(worker, seed)

    def versions() -> dict[str, int]:
        return {m.name: m.version.number for m in running.status().models}

    wait_until(lambda: versions() == {"a": 1, "b": 2}, "the scheduler has heard of what the server has committed")
    assert workers["a"].get(min_version=1).number == 1


def test_models_of_different_servers_do_not_meet() -> None:
    with Fabric() as running:
        running.server(name="s0")
        running.server(name="s1")
        wait_until(lambda: len(running.status().members) == 2, "both servers are there")
        for name in ("a", "b"):
            worker = running.worker(small_model(), f"worker-{name}", model_name=name)
            assert isinstance(several.step(worker), Committed)
        assert {m.server for m in running.status().models} == {"s0", "s1"}


def test_get_waits_for_the_version_that_is_asked_for(running: Fabric) -> None:
    first, second = running.worker(small_model(), "w0"), running.worker(small_model(), "w1")
    second.get()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(second.get(min_version=2).number))
    waiting.start()
    for seed in range(2):
        assert not got
        several.step(first, seed)
    waiting.join(10)
    assert got == [2]


def test_a_dropped_update_does_not_keep_its_get_waiting(running: Fabric) -> None:
    worker = running.worker(small_model())
    worker.get()
    gradients(worker._model)
    next(worker._model.parameters()).grad[0] = float("nan")
    handle = worker.push()
    assert handle.result(5) == mlfabric.Dropped(
        cause=mlfabric.DropReason.NOT_FINITE, detail="the gradient's norm is nan"
    )
    assert worker.get().number == 0


def test_leaving_waits_for_what_is_open(running: Fabric) -> None:
    worker = running.worker(small_model())
    for step in range(3):
        worker.get()
        gradients(worker._model, step)
        worker.push()
    worker.leave("done here")
    assert worker.tally.committed == 3
    status = running.status()
    assert [m.state for m in status.members if m.name == "w0"] == ["left"]
    with pytest.raises(mlfabric.FabricClosedError, match="register again"):
        worker.get()


def test_the_status_says_who_is_here_and_what_was_done(running: Fabric) -> None:
    worker = running.worker(small_model(), tau_max=5)
    for seed in range(3):
        several.step(worker, seed)
    status = wait_until(lambda: s if (s := running.status()).models[0].committed == 3 else None, "3 commits are known")
    assert {(m.name, m.role, m.state) for m in status.members} == {
        ("server-0", "server", "here"),
        ("w0", "worker", "here"),
    }
    (model,) = status.models
    assert (model.name, model.server, model.initialised, model.method) == ("model", "server-0", True, "asynchronous")
    assert (model.version.number, model.tau_max, model.delay_max, model.dropped) == (3, 5, 0, 0)
    (share,) = status.workers
    assert (share.name, share.committed, share.dropped, share.warning) == ("w0", 3, 0, "")
    assert {link.host for link in status.links} >= {"host-w0", "localhost"}
    assert status.planner.plans >= 3
    assert status.software_version == mlfabric.__version__
    assert all(m.activity for m in status.members)


def test_batch_norm_statistics_of_several_workers_are_the_value_that_came_last(running: Fabric) -> None:
    def model() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))

    first, second = (running.worker(m, n, model_name="bn") for m, n in ((model(), "w0"), (model(), "w1")))
    first.get()
    second.get()
    same(second._model, first._model)
    for worker, seed in ((first, 0), (second, 1)):
        gradients(worker._model, seed)
        assert isinstance(worker.push().result(10), Committed)
    wanted = second._model[1].running_mean.clone()
    for worker in (first, second):
        worker.get(min_version=2)
        assert torch.equal(worker._model[1].running_mean, wanted)
        assert worker._model[1].num_batches_tracked == 1


def test_parameters_without_gradient_keep_their_momentum_and_their_weight_decay(running: Fabric) -> None:
    rule = RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01)
    model, plain = small_model(), small_model()
    worker = running.worker(model, rule=rule)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(4):
        worker.get()
        for of in (model, plain):
            gradients(of, step)
            if step % 2:
                of[2].bias.grad = None
        # What is not used travels as zeros, so momentum and weight decay act on it as on the others.
        if step % 2:
            plain[2].bias.grad = torch.zeros(2)
        worker.push()
        optimizer.step()
    worker.get()
    same(model, plain)


def test_a_worker_counts_the_bytes_that_it_sends_and_receives(running: Fabric) -> None:
    tensors = {"w": torch.zeros(10_000, requires_grad=True)}
    worker = running.worker(tensors)
    worker.get()
    tensors["w"].grad = torch.ones(10_000)
    assert isinstance(worker.push().result(10), Committed)
    worker.get()
    registry = worker._daemon._daemon._metrics.registry
    sent = registry.get_sample_value("mlfabric_sent_bytes_total", {"peer": "server-0"})
    received = registry.get_sample_value("mlfabric_received_bytes_total", {"peer": "localhost"})
    assert (sent, received) == (2 * 40_000, 2 * 40_000)  # initial weights and one update; two models
