"""Layouts and specs: what may be given, and how a model is cut for several servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.model.specs import (
    ALIGNMENT_BYTES,
    COUNTER_BYTES,
    DTYPE_BYTES,
    Layout,
    Method,
    ModelSpec,
    TensorKind,
    TensorSpec,
)

WHOLE = Layout(
    (
        TensorSpec(name="a", shape=(5,), dtype="float32"),
        TensorSpec(name="b", shape=(3, 7), dtype="float64"),
    )
)


@st.composite
def layouts(draw):
    """Layouts with at least one element, empty tensors among them."""
    tensors = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 6), max_size=3),
                st.sampled_from(
                    [
                        *((dtype, TensorKind.PARAMETER) for dtype in DTYPE_BYTES),
                        *((dtype, TensorKind.BUFFER) for dtype in DTYPE_BYTES),
                        *((dtype, TensorKind.COUNTER) for dtype in COUNTER_BYTES),
                    ]
                ),
            ),
            max_size=6,
        )
    )
    last = ((3,), ("float32", TensorKind.PARAMETER))
    groups = draw(st.integers(0, 3))
    rates = TensorSpec(name="(rates)", shape=(groups, 2), dtype="float64", kind=TensorKind.RATES)
    return Layout(
        (
            *(
                TensorSpec(name=f"t{i}", shape=tuple(shape), dtype=dtype, kind=kind, group=i % max(1, groups))
                for i, (shape, (dtype, kind)) in enumerate((*tensors, last))
            ),
            *([rates] if groups else []),
        )
    )


def bytes_of(layout, start=0):
    """Return what each byte of a layout's image belongs to, padding left out."""
    found = {}
    for tensor, at in zip(layout.tensors, layout.offsets, strict=True):
        name, _, piece = tensor.name.partition("[")
        first = int(piece.partition(":")[0]) if piece else 0
        item_bytes = tensor.item_bytes
        for i in range(tensor.size_bytes):
            found[start + at + i] = (name, first * item_bytes + i, tensor.dtype, tensor.kind, tensor.group)
    return found


@given(layouts(), st.data())
def test_the_pieces_of_a_layout_are_its_image_cut_and_nothing_else(layout, data):
    units = layout.rates_start // ALIGNMENT_BYTES
    parts = data.draw(st.integers(1, units))
    ranges, pieces = layout.ranges(parts), layout.cut(parts)

    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == layout.rates_start
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= ALIGNMENT_BYTES
    assert [piece.rates_start for piece in pieces] == sizes
    assert all(piece.rate_groups == layout.rate_groups for piece in pieces)
    together: dict[int, tuple[str, int, str, TensorKind, int]] = {}
    for (start, end), piece in zip(ranges, pieces, strict=True):
        together |= {at: what for at, what in bytes_of(piece, start).items() if at < end}
    assert together == {at: what for at, what in bytes_of(layout).items() if at < layout.rates_start}
    whole = {t.name for t in layout.tensors}
    assert whole == {t.name.partition("[")[0] for piece in pieces for t in piece.tensors}


def test_a_tensor_that_is_cut_becomes_flat_pieces_named_after_their_elements():
    first, second = WHOLE.cut(2)

    assert [(t.name, t.shape) for t in first.tensors] == [("a", (5,)), ("b[0:8]", (8,))]
    assert [(t.name, t.shape) for t in second.tensors] == [("b[8:21]", (13,))]


def test_a_shard_is_a_model_of_its_own_on_its_own_server():
    spec = ModelSpec(name="net", layout=WHOLE, tau_max=7, shards=2, server="left,right")

    part = spec.of_shard(1)

    assert (part.name, part.server, part.shard, part.shards, part.tau_max) == ("net.shard1", "right", 1, 2, 7)
    assert part.layout == WHOLE.cut(2)[1]


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"shards": 0}, "shards=0; allowed: 1 or more"),
        ({"shards": 2, "method": Method.ALL_REDUCE}, "shards=2 with method all-reduce, which has no server"),
        ({"shards": 14}, "a model of 208 bytes cut into 14 parts; allowed: 1 to 13, each of at least 16 bytes"),
        ({"shards": 2, "server": "one"}, "shards=2 on server 'one'; allowed: server '' for any, or 2 different names"),
        ({"shards": 2, "server": "one,one"}, "shards=2 on server 'one,one'"),
        ({"shards": 2, "shard": 2}, "shard=2 of 2; allowed: 0 to shards - 1"),
        ({"shard": 0}, "shard=0 of 1"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_words(options, story):
    with pytest.raises(ConfigError, match=story):
        ModelSpec(name="net", layout=WHOLE, **options)
