"""Named tensors may be buffers: they are told from parameters, and are what the fabric's workers say that they are."""

from __future__ import annotations

import pytest
import torch

from mlfabric.errors import LayoutError
from mlfabric.protocol import Committed
from mlfabric.rules import RuleSpec
from mlfabric.specs import TensorKind
from mlfabric.worker_daemon.tensors import ModelTensors
from tests.fabric.harness import fabric


def test_a_buffer_among_named_tensors_is_told_from_parameters_and_frozen_ones() -> None:
    model = {
        "frozen": torch.ones(2),
        "average": torch.nn.Buffer(torch.zeros(3)),
        "seen": torch.nn.Buffer(torch.zeros(3, dtype=torch.int32)),
        "weight": torch.zeros(2, requires_grad=True),
    }
    tensors = ModelTensors(model)
    assert [(t.name, t.kind) for t in tensors.layout.tensors] == [
        ("weight", TensorKind.PARAMETER),
        ("average", TensorKind.BUFFER),
        ("seen", TensorKind.COUNTER),
    ]
    without = {name: tensor for name, tensor in model.items() if name not in ("average", "seen")}
    assert tensors.frozen_digest == ModelTensors(without).frozen_digest != ""


def test_a_named_buffer_that_cannot_travel_is_refused_since_it_was_meant_to() -> None:
    model = {"w": torch.zeros(1, requires_grad=True), "flags": torch.nn.Buffer(torch.zeros(2, dtype=torch.bool))}
    with pytest.raises(LayoutError, match="flags: a buffer of dtype 'bool' cannot travel; allowed: float16"):
        ModelTensors(model)


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.BatchNorm1d(2, affine=False),
        {"frozen": torch.ones(2)},
        {"counts": torch.nn.Buffer(torch.zeros(2))},
        {"empty": torch.zeros(0, requires_grad=True)},
    ],
)
def test_a_model_without_parameters_is_refused(model: torch.nn.Module | dict[str, torch.Tensor]) -> None:
    with pytest.raises(LayoutError, match=r"no trainable parameter; set requires_grad"):
        ModelTensors(model)


def test_counts_that_workers_add_to_are_parameters_whose_gradient_is_minus_the_change() -> None:
    with fabric() as running:
        models = [{"counts": torch.zeros(2, requires_grad=True)} for _ in range(2)]
        workers = [running.worker(model, f"w{i}", tau_max=8, rule=RuleSpec(lr=1.0)) for i, model in enumerate(models)]
        for worker, model, change in zip(workers, models, ([1.0, 2.0], [10.0, -1.0]), strict=True):
            worker.get()
            model["counts"].grad = -torch.tensor(change)
            assert isinstance(worker.push().result(), Committed)
        for worker, model in zip(workers, models, strict=True):
            worker.get(min_version=2)
            assert model["counts"].tolist() == [11.0, 1.0]
