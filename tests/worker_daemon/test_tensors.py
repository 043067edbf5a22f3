"""Modules as layouts, updates and models: nothing is copied that need not be, everything comes back as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import LayoutError
from mlfabric.model.specs import TensorKind
from mlfabric.worker_daemon.data_attempts import Parcel
from mlfabric.worker_daemon.tensors import ModelTensors

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=4)


def image_of(parcel: Parcel) -> bytearray:
    return bytearray(b"".join(piece.cast("B") if piece.nbytes else b"" for piece in parcel.pieces))


WITHOUT_PARAMETERS = [
    {"empty": torch.zeros(0, requires_grad=True)},
    {"frozen": torch.zeros(2)},
    {"counts": torch.nn.Buffer(torch.zeros(2))},
    torch.nn.BatchNorm1d(2, affine=False),
]


@given(shapes, st.sampled_from(DTYPES), st.integers(0, 2**16))
def test_an_image_holds_the_values_and_brings_them_back(
    given_shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in [*given_shapes, (1,)]]
    source = ModelTensors({str(i): v.requires_grad_() for i, v in enumerate(values)})
    target = {str(i): torch.zeros_like(v, requires_grad=True) for i, v in enumerate(values)}
    parcel = source.values()
    assert parcel.size_bytes == source.layout.size_bytes
    ModelTensors(target).install(memoryview(image_of(parcel)))
    assert all(torch.equal(target[str(i)], v) for i, v in enumerate(values))


def test_values_of_cpu_tensors_are_not_copied() -> None:
    weights = torch.zeros(8, requires_grad=True)
    parcel = ModelTensors({"w": weights}).values()
    with torch.no_grad():
        weights.fill_(1.0)
    assert np.frombuffer(parcel.pieces[0], dtype=np.float32).tolist() == [1.0] * 8


def test_tensors_that_are_not_contiguous_travel_in_their_order() -> None:
    weights = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    parcel = ModelTensors({"w": weights}).values()
    assert np.frombuffer(parcel.pieces[0], dtype=np.float32).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_the_norm_of_half_precision_does_not_overflow() -> None:
    model = {"w": torch.zeros(1000, dtype=torch.float16, requires_grad=True)}
    model["w"].grad = torch.full((1000,), 1000.0, dtype=torch.float16)
    assert ModelTensors(model).take_update()[1] == pytest.approx(1000.0 * math.sqrt(1000), rel=1e-3)


def test_parameters_without_gradient_travel_as_zeros() -> None:
    model = {"used": torch.zeros(4, requires_grad=True), "unused": torch.zeros(4, requires_grad=True)}
    model["used"].grad = torch.ones(4)
    parcel, norm = ModelTensors(model).take_update()
    assert np.frombuffer(image_of(parcel), dtype=np.float32).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert norm == pytest.approx(2.0)


def test_a_gradient_that_is_written_to_after_it_was_handed_over_is_noticed() -> None:
    model = {"w": torch.zeros(4, requires_grad=True)}
    model["w"].grad = gradient = torch.ones(4)
    parcel, _ = ModelTensors(model).take_update()
    assert parcel.is_unchanged()
    gradient.mul_(2)
    assert not parcel.is_unchanged()


def test_buffers_travel_as_values_and_no_norm_counts_them() -> None:
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("flags", torch.tensor([True]))
    tensors = ModelTensors(model)
    kinds = {t.name: t.kind for t in tensors.layout.tensors}
    assert (kinds["running_mean"], kinds["num_batches_tracked"]) == (TensorKind.BUFFER, TensorKind.COUNTER)
    assert "flags" not in kinds
    assert model.running_mean is not None
    assert model.num_batches_tracked is not None
    model.running_mean.fill_(3.0)
    model.num_batches_tracked.fill_(2**53 + 1)
    parcel, norm = tensors.take_update()
    model.running_mean.fill_(4.0)
    taken = torch.nn.BatchNorm1d(2)
    ModelTensors(taken).install(memoryview(image_of(parcel)))
    assert taken.running_mean is not None
    assert taken.running_mean.tolist() == [3.0, 3.0]
    assert taken.num_batches_tracked == 2**53 + 1
    assert norm == 0
    model.running_mean[0] = torch.nan
    assert not math.isfinite(tensors.take_update()[1])


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


def test_frozen_parameters_do_not_travel_but_their_values_count() -> None:
    def model(frozen: float) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(2, requires_grad=True), "frozen": torch.full((2,), frozen)}

    one, same, other = ModelTensors(model(1.0)), ModelTensors(model(1.0)), ModelTensors(model(2.0))
    assert [t.name for t in one.layout.tensors] == ["w"]
    assert one.frozen_digest == same.frozen_digest != other.frozen_digest
    assert ModelTensors({"w": torch.zeros(2, requires_grad=True)}).frozen_digest == ""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        *((model, "no trainable parameter; set requires_grad") for model in WITHOUT_PARAMETERS),
        (
            {"w": torch.zeros(1, requires_grad=True), "flags": torch.nn.Buffer(torch.zeros(2, dtype=torch.bool))},
            "flags: a buffer of dtype 'bool' cannot travel; allowed: float16",
        ),
        (
            {"w": torch.zeros(2, dtype=torch.complex64, requires_grad=True)},
            "w: a parameter of dtype 'complex64' cannot travel; allowed",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: torch.nn.Module | dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        ModelTensors(model)


def test_a_sparse_gradient_is_refused_with_what_to_do() -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(LayoutError, match="weight: a sparse gradient cannot travel; use sparse=False"):
        ModelTensors(model).take_update()


def test_a_mask_stays_here_and_can_be_registered() -> None:
    class Attention(torch.nn.Module):
        mask: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Linear(1, 1)
            self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
            self.register_buffer("mean", torch.zeros(2))

    tensors = ModelTensors(Attention())
    assert [spec.name for spec in tensors.layout.tensors] == ["scale.weight", "scale.bias", "mean"]
    tensors.check_finite()
