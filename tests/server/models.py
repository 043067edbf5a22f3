"""A small model for tests of the server's store: its layout, images of it, and stores that hold it."""

from __future__ import annotations

import numpy as np
import torch

from mlfabric.model.specs import Layout, ModelSpec, RuleSpec, TensorKind, TensorSpec
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.store import ModelStore


def layout_of(dtype: str = "float32") -> Layout:
    return Layout(
        (
            TensorSpec(name="weight", shape=(3, 5), dtype=dtype),
            TensorSpec(name="scalar", shape=(), dtype=dtype),
            TensorSpec(name="nothing", shape=(0, 4), dtype=dtype),
            TensorSpec(name="running_mean", shape=(7,), dtype=dtype, kind=TensorKind.BUFFER),
        )
    )


def spec_of(layout: Layout | None = None, **rule_fields: float) -> ModelSpec:
    return ModelSpec(name="net", layout=layout or layout_of(), rule=RuleSpec(**rule_fields))  # type: ignore[arg-type]


def image_of(layout: Layout, tensors: dict[str, torch.Tensor]) -> memoryview:
    """Pack tensors into a byte image; the padding is filled with bytes that must never matter."""
    image = np.full(layout.size_bytes, 0xFF, dtype=np.uint8)
    for tensor, at in zip(layout.tensors, layout.offsets, strict=True):
        flat = tensors[tensor.name].detach().contiguous().view(-1)
        image[at : at + tensor.size_bytes] = flat.view(torch.uint8).numpy() if tensor.numel else []
    return image.data


def draw(layout: Layout, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        t.name: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(getattr(torch, t.dtype))
        for t in layout.tensors
    }


def store_of(spec: ModelSpec, seed: int = 0) -> ModelStore:
    store = ModelStore(spec)
    store.initialise(image_of(spec.layout, draw(spec.layout, seed)))
    return store


def weights_of(store: ModelStore) -> dict[str, torch.Tensor]:
    with store.standing() as snapshot:
        return {name: tensor.clone() for name, tensor in snapshot.model.items()}


def bytes_of(store: ModelStore) -> list[bytes]:
    """Return all bits of weights and of what the rule keeps."""
    with store.standing() as snapshot:
        return [
            t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for t in (*snapshot.model.values(), *snapshot.history.values(), *snapshot.squares.values())
            if t.numel()
        ]


def assert_same(one: ModelStore, other: ModelStore) -> None:
    with one.standing() as mine, other.standing() as theirs:
        assert (mine.version, mine.steps) == (theirs.version, theirs.steps)
        for kind in ("model", "history", "squares"):
            kept, wanted = getattr(mine, kind), getattr(theirs, kind)
            assert {name: t.dtype for name, t in kept.items()} == {name: t.dtype for name, t in wanted.items()}
    assert bytes_of(one) == bytes_of(other)


def step(store: ModelStore, seed: int, lr: float = 0.1) -> StepResult | NotFinite:
    return store.apply(image_of(store.spec.layout, draw(store.spec.layout, seed)), lr)
