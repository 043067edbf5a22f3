"""What a fabric does with input that cannot be right: it is refused with the first difference, and nothing changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch

import mlfabric
from mlfabric import ConfigError, LayoutError, RefusedError, RuleSpec, UsageError
from mlfabric.channels import TcpOptions
from tests.fabric.harness import dropped, fabric, gradients, small_model


@pytest.fixture(scope="module")
def shared():
    """A fabric whose model was brought by a worker that stays."""
    with fabric() as running:
        running.worker(small_model(), "steady", tau_max=4).get()
        yield running


def linear(inputs: int, outputs: int, dtype: torch.dtype = torch.float32, name: str = "0") -> torch.nn.Module:
    layers: list[tuple[str, torch.nn.Module]] = [(name, torch.nn.Linear(inputs, outputs, dtype=dtype))]
    return torch.nn.Sequential(OrderedDict([*layers, ("2", torch.nn.Linear(8, 2))]))


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (linear(5, 8), r"0.weight: float32\[8, 5\] \(parameter\) against float32\[8, 4\] \(parameter\)"),
        (linear(4, 8, dtype=torch.float64), r"0.bias: float64\[8\] \(parameter\) against float32\[8\]"),
        (linear(4, 8, name="first"), r"0.bias: missing against float32\[8\]"),
        (
            torch.nn.Sequential(*small_model(), torch.nn.Linear(2, 1)),
            r"3.bias: float32\[1\] \(parameter\) against missing",
        ),
    ],
)
def test_another_model_is_refused_with_the_first_difference(shared, model: torch.nn.Module, difference: str) -> None:
    with pytest.raises(RefusedError, match=difference):
        shared.worker(model, "other")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": RuleSpec(lr=0.5)}, "model 'model': rule.lr: 0.5 here, 0.1 at the job's first worker; give the same"),
        ({"tau_max": 3}, "tau_max: 3 here, 4 at the job's first worker"),
    ],
)
def test_other_options_are_refused_with_both_values(shared, options: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        shared.worker(small_model(), "other", **options)


def test_a_negative_delay_bound_is_refused_before_anything_is_sent(shared) -> None:
    with pytest.raises(ConfigError, match="tau_max=-1; allowed: 0 or more"):
        shared.worker(small_model(), "other", tau_max=-1)


def test_a_name_that_is_taken_is_refused(shared) -> None:
    with pytest.raises(RefusedError, match="'steady' is taken by a live worker on host host-steady; choose another"):
        shared.worker(small_model(), "steady")


def test_a_refused_worker_leaves_no_trace_and_training_goes_on(shared) -> None:
    before, threads = {m.name for m in shared.status().members}, set(threading.enumerate())
    with pytest.raises(RefusedError):
        shared.worker(linear(5, 8), "refused")
    assert {m.name for m in shared.status().members} == before
    assert set(threading.enumerate()) <= threads
    worker = shared.worker(small_model(), "welcome")
    worker.get()
    gradients(worker._model)
    assert isinstance(worker.push().result(10), mlfabric.Committed)
    worker.leave()


def test_frozen_parameters_must_agree(shared) -> None:
    def half_frozen(seed: int) -> torch.nn.Module:
        model = small_model(seed)
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        return model

    first = shared.worker(half_frozen(1), "frozen-0", model_name="frozen")
    shared.worker(half_frozen(1), "frozen-1", model_name="frozen")
    with pytest.raises(RefusedError, match=r"frozen parameters have other values here .*; load the same weights"):
        shared.worker(half_frozen(2), "frozen-2", model_name="frozen")
    first.get()
    gradients(first._model)
    before = first._model[0].weight.clone()
    assert isinstance(first.push().result(10), mlfabric.Committed)
    first.get()
    assert torch.equal(first._model[0].weight, before)


def test_pushing_before_the_first_get_says_what_to_do(shared) -> None:
    worker = shared.worker(small_model(), "hasty")
    gradients(worker._model)
    with pytest.raises(UsageError, match=r"call get\(model\) first"):
        worker.push()
    assert all(p.grad is not None for p in worker._model.parameters())
    worker.leave()


def test_a_model_of_another_layout_cannot_be_got_or_pushed(shared) -> None:
    worker = shared.worker(small_model(), "confused")
    worker.get()
    other = linear(5, 8)
    before = {n: t.clone() for n, t in other.state_dict().items()}
    for call in (worker.get, worker.push):
        with pytest.raises(LayoutError, match=r"not the registered model: 0\.weight"):
            call(other)
    assert all(torch.equal(t, before[n]) for n, t in other.state_dict().items())
    worker.leave()


def test_another_copy_of_the_model_can_be_got_and_pushed(shared) -> None:
    worker = shared.worker(small_model(), "copier")
    copy = small_model(9)
    version = worker.get(copy)
    gradients(copy)
    outcome = worker.push(copy).result(10)
    assert isinstance(outcome, mlfabric.Committed)
    assert outcome.version.number == version.number + 1
    worker.leave()


def test_a_gradient_that_is_written_to_on_its_way_is_dropped_as_changed() -> None:
    with fabric() as running:
        tensors = {"w": torch.zeros(100_000, requires_grad=True)}
        settings = replace(running.settings(), tcp=TcpOptions(up_bps=4_000_000))
        worker = running.enter(mlfabric.register_as_worker(tensors, settings=settings))
        worker.get()
        tensors["w"].grad = kept = torch.ones(100_000)
        handle = worker.push()
        kept.add_(1.0)
        dropped(handle, mlfabric.DropReason.CHANGED)
        assert worker.get().number == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_dropped_at_the_worker(shared, value: float) -> None:
    worker = shared.worker(small_model(), "unlucky")
    version = worker.get()
    gradients(worker._model)
    worker._model[2].bias.grad[0] = value
    dropped(worker.push(), mlfabric.DropReason.NOT_FINITE)
    assert worker.get() == version
    worker.leave()


def test_a_worker_that_is_dropped_again_and_again_is_warned_about() -> None:
    with fabric() as running:
        running.worker(small_model(), "steady").get()
        raw = running.raw_worker(small_model())
        for _ in range(10):
            raw.tell(raw.request(norm=float("nan")))
            assert raw.told("drop") is not None
        (warned,) = (w for w in running.status().workers if w.warning)
        assert (warned.name, warned.dropped, warned.dropped_share) == ("raw", 10, 1.0)
        assert "shut out" in warned.warning
        assert dict(warned.dropped_by_cause) == {mlfabric.DropReason.NOT_FINITE.value: 10}
