"""Named tensors may be buffers: what is written to them travels as a change, and nothing else of a model is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlfabric.errors import LayoutError
from mlfabric.protocol import Committed
from mlfabric.specs import TensorKind
from mlfabric.worker_daemon.tensors import ModelTensors
from tests.fabric.harness import fabric


def test_a_buffer_among_named_tensors_is_told_from_parameters_and_frozen_ones() -> None:
    model = {
        "frozen": torch.ones(2),
        "counts": torch.nn.Buffer(torch.zeros(3)),
        "weight": torch.zeros(2, requires_grad=True),
    }
    tensors = ModelTensors(model)
    assert [(t.name, t.kind) for t in tensors.layout.tensors] == [
        ("weight", TensorKind.PARAMETER),
        ("counts", TensorKind.BUFFER),
    ]
    without = {name: tensor for name, tensor in model.items() if name != "counts"}
    assert tensors.frozen_digest == ModelTensors(without).frozen_digest != ""


def test_buffers_alone_need_no_parameter_and_push_what_was_written_to_them() -> None:
    counts = torch.nn.Buffer(torch.ones(4))
    tensors = ModelTensors({"counts": counts})
    assert tensors.frozen_digest == ""
    counts.add_(torch.tensor([1.0, 0.0, -1.0, 0.0]))
    parcel, norm = tensors.take_update()
    assert np.frombuffer(b"".join(parcel.pieces), dtype=np.float32).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert norm == pytest.approx(2**0.5)


def test_a_named_buffer_of_whole_numbers_is_refused_since_it_was_meant_to_travel() -> None:
    with pytest.raises(LayoutError, match="counts: dtype int64 cannot travel; allowed: float16"):
        ModelTensors({"counts": torch.nn.Buffer(torch.zeros(2, dtype=torch.int64))})


@pytest.mark.parametrize(
    "model", [torch.nn.BatchNorm1d(2, affine=False), {"frozen": torch.ones(2)}, {"empty": torch.nn.Buffer()}]
)
def test_a_model_that_nobody_changes_is_still_refused(model: torch.nn.Module | dict[str, torch.Tensor]) -> None:
    with pytest.raises(LayoutError, match=r"no trainable parameter.*torch\.nn\.Buffer"):
        ModelTensors(model)


def test_two_workers_add_to_one_count() -> None:
    with fabric() as running:
        models = [{"counts": torch.nn.Buffer(torch.zeros(2))} for _ in range(2)]
        workers = [running.worker(model, f"w{i}", tau_max=8) for i, model in enumerate(models)]
        for worker, model, change in zip(workers, models, ([1.0, 2.0], [10.0, -1.0]), strict=True):
            worker.get()
            model["counts"].add_(torch.tensor(change))
            assert isinstance(worker.push().result(), Committed)
        for worker, model in zip(workers, models, strict=True):
            worker.get(min_version=2)
            assert model["counts"].tolist() == [11.0, 1.0]
