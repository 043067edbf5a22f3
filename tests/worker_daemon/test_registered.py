"""A model that is not what was registered any more is found, by the tensor that tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mlfabric.errors import LayoutError
from mlfabric.worker_daemon.registered import Registered
from mlfabric.worker_daemon.tensors import ModelTensors


class Net(torch.nn.Module):
    """Two layers, the first of them frozen, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(2, 3).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 1)


def registered(model: torch.nn.Module | dict[str, torch.Tensor]) -> Registered:
    return Registered(model, ModelTensors(model))


def test_a_model_that_is_trained_saved_and_loaded_is_the_one_that_was_registered() -> None:
    model = Net()
    kept = registered(model)
    model.norm(torch.ones(2, 3))
    model.load_state_dict(Net().state_dict())
    model.eval()
    model.train()
    kept.check()


def assign(model: Net) -> None:
    model.load_state_dict(Net().state_dict(), assign=True)


def shorten_statistics(model: Net) -> None:
    model.norm.running_mean = torch.zeros(2)


def cut(model: Net) -> None:
    model.head.weight.data = model.head.weight.data[:, :2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (assign, "norm.weight was replaced by another tensor"),
        (shorten_statistics, r"norm.running_mean was of shape \[3\] and is of \[2\] after"),
        (lambda model: model.base.requires_grad_(True), "base.weight was not trainable when the model was registered"),
        (cut, r"head.weight was of shape \[1, 3\] and is of \[1, 2\] after"),
    ],
)
def test_the_tensor_that_was_changed_is_named(change: Callable[[Net], object], said: str) -> None:
    model = Net()
    kept = registered(model)
    change(model)
    with pytest.raises(LayoutError, match=said):
        kept.check()


def test_a_buffer_may_be_assigned_anew_and_travels_from_then_on() -> None:
    model = Net()
    tensors = ModelTensors(model)
    kept = Registered(model, tensors)
    model.norm.running_mean = torch.full((3,), 7.0)
    kept.check()
    place = [spec.name for spec in tensors.layout.tensors].index("norm.running_mean")
    assert torch.equal(tensors.copied_values()[place], torch.full((3,), 7.0))
    image = bytearray(tensors.layout.size_bytes)
    tensors.install(memoryview(image))
    assert torch.equal(model.norm.running_mean, torch.zeros(3))


def test_named_tensors_are_looked_at_by_their_names() -> None:
    model = {"w": torch.zeros(2, requires_grad=True), "count": torch.nn.Buffer(torch.zeros(2))}
    kept = registered(model)
    kept.check()
    model["w"] = torch.zeros(2, requires_grad=True)
    with pytest.raises(LayoutError, match="w was replaced by another tensor"):
        kept.check()
