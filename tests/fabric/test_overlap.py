"""Updates that leave while backward still makes them: the same steps as without, and nothing half made is applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, DropReason, Method, MomentumAt, RuleKind, RuleSpec, UsageError
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.planning import warm_up
from tests.fabric.harness import Fabric, dropped, fabric, gradients, small_model, wait_until
from tests.fabric.replicas import apart_from, remember, replica, wait_for_gate, wait_for_replica
from tests.fabric.several import together

STEPS = 6
RULES = {
    "momentum at the worker": RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01, momentum_at=MomentumAt.WORKERS),
    "momentum at the server": RuleSpec(lr=0.1, momentum=0.9, momentum_at=MomentumAt.SERVER),
    "adam": RuleSpec(kind=RuleKind.ADAM, lr=0.01),
}


def at_once(worker: mlfabric.Worker) -> mlfabric.Worker:
    """Have the worker announce every update with its first gradient, whatever it has learnt."""
    worker._timing.is_due = lambda tensor, now_ns: True  # type: ignore[method-assign]
    return worker


def flat_parts(elements: int = 6000) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(elements, requires_grad=True) for name in ("first", "middle", "last")}


def give(worker: mlfabric.Worker, tensor: torch.Tensor, value: float) -> None:
    tensor.grad = torch.full_like(tensor, value)
    worker.ready(tensor)


def give_all(worker: mlfabric.Worker, parts: dict[str, torch.Tensor]) -> None:
    """Give every part a gradient of 1, in the order in which backward makes them."""
    for tensor in reversed(parts.values()):
        give(worker, tensor, 1.0)


def begun(running: Fabric, model: Any, lr: float = 1.0) -> mlfabric.Worker:
    """Return a worker that announces every update with its first gradient, and has the model."""
    worker = at_once(running.worker(model, rule=RuleSpec(lr=lr), overlap=True))
    worker.get()
    return worker


def under_way(running: Fabric, name: str = "model") -> Any:
    """Return what the scheduler has planned of the model's updates; to be read only."""
    model = running.scheduler.state.models.get(name)
    return model is not None and dict(model.pushes.planned)


def trained(running: Fabric, model: torch.nn.Module, rule: RuleSpec, method: Method, **options: Any) -> torch.nn.Module:
    worker = running.worker(model, rule=rule, method=method, **options)
    if options:
        at_once(worker)
    worker.get()
    for seed in range(STEPS):
        gradients(model, seed)
        assert worker.push().result() == Committed(version=running.version(1, seed + 1), tau=0)
        worker.get()
    return model


@pytest.mark.parametrize("method", [Method.ASYNCHRONOUS, Method.SYNCHRONOUS], ids=lambda method: method.value)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_training_with_overlap_makes_the_same_steps_as_without(rule: RuleSpec, method: Method) -> None:
    results = []
    for options in ({}, {"overlap": True}):
        with fabric() as made:
            results.append(trained(made, small_model(), rule, method, **options))
    for ours, theirs in zip(*(model.parameters() for model in results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_wrapped_optimizer_takes_the_same_steps_with_overlap() -> None:
    results = []
    for overlap in (False, True):
        with fabric() as made:
            model = small_model()
            sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = mlfabric.wrap(sgd, model, overlap=overlap, settings=made.settings())
            with optimizer.worker:
                for seed in range(STEPS):
                    gradients(model, seed)
                    optimizer.step()
                    assert optimizer.last_push is not None
                    optimizer.last_push.result()
                optimizer.finish()
                assert optimizer.worker.tally.committed == STEPS
            results.append(model)
    for ours, theirs in zip(*(model.parameters() for model in results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_buffers_and_parameters_without_a_gradient_travel_too(running: Fabric) -> None:
    layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)]
    model = torch.nn.Sequential(*layers)
    unused = torch.nn.Linear(3, 3)
    model.add_module("unused", unused)
    alone = copy.deepcopy(model)
    worker = begun(running, model, lr=0.1)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for seed in range(3):
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        for net in (model, alone):
            torch.nn.functional.mse_loss(torch.nn.Sequential(*list(net)[:3])(inputs), torch.ones(16, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert isinstance(worker.push().result(), Committed)
        worker.get()
    for name, wanted in alone.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], wanted, rtol=1e-5, atol=1e-6)


def test_an_update_is_on_its_way_before_all_of_it_is_made(running: Fabric) -> None:
    parts = flat_parts()
    worker = begun(running, parts)
    give(worker, parts["last"], 1.0)
    wait_until(lambda: under_way(running), "the update is planned")
    give(worker, parts["middle"], 2.0)
    give(worker, parts["first"], 3.0)
    pushed = worker.push()
    worker.get()
    assert pushed.result() == Committed(version=running.version(1, 1), tau=0)
    assert {name: set(tensor.tolist()) for name, tensor in parts.items()} == {
        "first": {-3.0},
        "middle": {-2.0},
        "last": {-1.0},
    }
    assert all(tensor.grad is None for tensor in parts.values())


def test_updates_are_announced_early_once_it_is_known_how_long_they_take(running: Fabric) -> None:
    """A commit always takes longer than the rest of a backward that takes no time."""
    model = small_model()
    worker = running.worker(model, rule=RuleSpec(lr=0.1), overlap=True)
    worker.get()
    early = []
    for seed in range(STEPS):
        gradients(model, seed)
        early.append(worker._growing.announced is not None)
        worker.push()
        worker.get()
    assert not early[0]
    assert early[-1]


def test_workers_that_begin_at_different_times_are_summed_exactly() -> None:
    warm_up(lambda line: None)
    workers = 4
    with fabric() as made:
        names = [f"w{i}" for i in range(workers)]
        for name in names:
            made.aggregator(name=f"aggregator-{name}", host=f"host-{name}")
        parts = {name: flat_parts(40_000) for name in names}
        found = [
            at_once(made.worker(parts[name], name, rule=RuleSpec(lr=1.0), overlap=True, tau_max=1000)) for name in names
        ]

        def train(name: str, worker: mlfabric.Worker) -> None:
            worker.get()
            for _ in range(STEPS):
                give_all(worker, parts[name])
                worker.push()
                worker.get()

        together(*(lambda name=n, worker=w: train(name, worker) for n, w in zip(names, found, strict=True)))
        assert all(worker.drain().committed == STEPS for worker in found)
        found[0].get(min_version=STEPS * workers)
        assert all(set(tensor.tolist()) == {-float(STEPS * workers)} for tensor in parts["w0"].values())


@pytest.mark.parametrize("bound", [{"div_max": 0.05}, {"div_max_updates": 3}, {"div_max_updates": 0}], ids=str)
def test_a_replica_follows_updates_that_were_announced_early(running: Fabric, bound: dict[str, float]) -> None:
    model = small_model()
    worker = begun(running, model, lr=0.1)
    with replica(running.scheduler.address, **bound) as follower:
        wait_for_gate(running.servers[0])
        versions = remember(running.servers[0])
        for seed in range(STEPS):
            gradients(model, seed)
            assert isinstance(worker.push().result(), Committed)
            worker.get()
        wait_for_replica(follower, STEPS - int(bound.get("div_max_updates", 0)))
        assert apart_from(versions, follower) < 1e-6


def test_a_second_backward_before_push_is_refused_unless_gradients_are_to_accumulate(running: Fabric) -> None:
    model = small_model()
    worker = begun(running, model, lr=0.1)
    loss = torch.nn.functional.mse_loss
    with worker.accumulating():
        loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    once = small_model()
    loss(once(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    torch.optim.SGD(once.parameters(), lr=0.1 * 2).step()
    with pytest.raises(UsageError, match=r"got a gradient again before push.*accumulating"):
        loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    with pytest.raises(UsageError, match="push first"):
        worker.get()
    with pytest.raises(UsageError, match="was changed after backward"):
        worker.push()
    assert worker.drain().dropped == 1
    model.zero_grad()
    worker.get()
    with worker.accumulating():
        loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    loss(model(torch.ones(2, 4)), torch.ones(2, 2)).backward()
    assert isinstance(worker.push().result(), Committed)
    worker.get()
    for ours, theirs in zip(model.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_gradient_that_is_changed_on_its_way_is_never_applied(running: Fabric) -> None:
    parts = flat_parts()
    worker = begun(running, parts)
    give_all(worker, parts)
    with torch.no_grad():
        torch._foreach_mul_([tensor.grad for tensor in parts.values() if tensor.grad is not None], 2)
    with pytest.raises(UsageError, match="the gradient of last was changed after backward"):
        worker.push()
    assert worker.drain().dropped == 1
    worker.get()
    give_all(worker, parts)
    assert isinstance(worker.push().result(), Committed)
    worker.get()
    assert all(set(tensor.tolist()) == {-1.0} for tensor in parts.values())


@pytest.mark.parametrize("early", [True, False], ids=["announced early", "announced at the end"])
def test_what_turns_out_not_to_be_finite_is_dropped_wherever_it_is(running: Fabric, early: bool) -> None:
    parts = flat_parts()
    worker = running.worker(parts, rule=RuleSpec(lr=1.0), overlap=True)
    if early:
        at_once(worker)
    for version, bad in enumerate(("last", "middle", "first")):
        worker.get()
        for name, tensor in reversed(parts.items()):
            give(worker, tensor, float("nan") if name == bad else 1.0)
        dropped(worker.push(), DropReason.NOT_FINITE)
        assert worker.get().number == version
        give_all(worker, parts)
        assert isinstance(worker.push().result(), Committed)


def test_a_worker_that_leaves_in_the_middle_of_backward_leaves_nothing_behind(running: Fabric) -> None:
    parts = flat_parts()
    worker = begun(running, parts)
    give(worker, parts["last"], 1.0)
    wait_until(lambda: under_way(running), "the update is planned")
    worker.leave()
    assert worker.tally.dropped == 1
    wait_until(lambda: not under_way(running), "nobody counts on it any more")
    other = running.worker(flat_parts(), "w1", rule=RuleSpec(lr=1.0), overlap=True)
    assert other.get().number == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": RuleSpec(clip_norm=1.0)}, "clip_norm=1; allowed: 0"),
        ({"method": Method.ALL_REDUCE}, "method all-reduce; allowed: another one"),
        ({"servers": 2}, "servers=2; allowed: 1"),
    ],
)
def test_what_overlap_cannot_go_with_is_refused_before_joining(options: dict[str, Any], words: str) -> None:
    settings = WorkerSettings(scheduler="127.0.0.1:9", tcp=TcpOptions())
    with pytest.raises(UsageError, match=words):
        mlfabric.register_as_worker(small_model(), overlap=True, settings=settings, **options)


def test_calls_that_do_not_fit_are_refused_and_change_nothing(running: Fabric) -> None:
    parts = flat_parts()
    worker = running.worker(parts, rule=RuleSpec(lr=1.0), overlap=True)
    worker.get()
    with pytest.raises(mlfabric.UsageError, match="push without a gradient"):
        worker.push()
    assert worker.get().number == 0
    with pytest.raises(mlfabric.RefusedError, match="overlap: on at one, off at the other"):
        running.worker(flat_parts(), "without", rule=RuleSpec(lr=1.0))
    with pytest.raises(UsageError, match="register with overlap=True"):
        running.worker(parts, "w1", model_name="plain").ready(parts["first"])
    with pytest.raises(mlfabric.LayoutError, match="is no parameter"):
        worker.ready(torch.zeros(3))
