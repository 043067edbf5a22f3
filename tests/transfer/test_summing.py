"""Sums made while their inputs arrive: exact, forwarded at once, and torn as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlfabric.channels import Connection, Frame, FrameKind
from mlfabric.errors import LayoutError, TransferError, UsageError
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.specs import Layout, TensorKind, TensorSpec
from mlfabric.transfer import running_sum
from mlfabric.transfer.running_sum import Accumulator, Input, InputKind, NotFiniteError
from tests.channels.filling import Buffer
from tests.transfer.conftest import Connect

TICKET = bytes(16)
SUM = Input(kind=InputKind.SUM)
BUFFER, COUNTER = TensorKind.BUFFER, TensorKind.COUNTER


def payload(n: int) -> Frame:
    return Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=n)


def vector(n: int, dtype: str = "float64", kind: TensorKind = TensorKind.PARAMETER, name: str = "w") -> TensorSpec:
    return TensorSpec(name=name, shape=(n,), dtype=dtype, kind=kind)


FLAT = Layout((vector(150_000),))
"""Chunks of float64, the last one shorter."""

CHUNK_BYTES = chunk_bytes(FLAT.size_bytes)

MIXED = Layout(
    (
        vector(1001, name="a"),
        vector(7, name="mean", kind=BUFFER),
        vector(70_001, "float32", name="b"),
        vector(0, name="none"),
        vector(3, "float32", BUFFER, name="var"),
        vector(3, "int64", COUNTER, name="seen"),
        vector(40_000, name="c"),
        vector(5, "int32", COUNTER, name="few"),
    )
)


def image(layout: Layout, seed: int) -> memoryview:
    """A random image; its padding is full of ones, which is NaN in every dtype."""
    rng = np.random.default_rng(seed)
    data = np.full(layout.size_bytes, 0xFF, dtype=np.uint8)
    for tensor, at in zip(layout.tensors, layout.offsets, strict=True):
        if tensor.kind is COUNTER:
            largest = np.iinfo(tensor.dtype).max  # not all of these are whole numbers of a float64
            values = rng.integers(-largest, largest, tensor.numel).astype(tensor.dtype)
        else:
            values = rng.standard_normal(tensor.numel).astype(tensor.dtype)
        data[at : at + tensor.size_bytes] = values.view(np.uint8)
    return memoryview(data.data)


def tensors(layout: Layout, data: memoryview) -> dict[str, np.ndarray]:
    return {
        t.name: np.frombuffer(data, dtype=t.dtype, count=t.numel, offset=at)
        for t, at in zip(layout.tensors, layout.offsets, strict=True)
    }


async def push(near: Connection, pieces: Sequence[memoryview]) -> None:
    await near.send(payload(sum(p.nbytes for p in pieces)), pieces)


async def take(accumulator: Accumulator, index: int, far: Connection) -> None:
    await accumulator.receive(far, index, (await far.receive()).length)


def expected(
    layout: Layout, images: int, parts: Sequence[tuple[Input, Sequence[memoryview]]]
) -> list[dict[str, np.ndarray]]:
    """The plain sum of products, input by input, in each tensor's own dtype; of counters the greatest."""
    kinds = {t.name: t.kind for t in layout.tensors}
    out: list[dict[str, np.ndarray]] = []
    for which in range(images):
        total: dict[str, np.ndarray] = {}
        for source, pieces in parts:
            piece = pieces[which] if source.kind is InputKind.SUM else pieces[0]
            for name, values in tensors(layout, piece).items():
                if kinds[name] is COUNTER:
                    total[name] = np.maximum(total.get(name, values), values)
                    continue
                scale = 1.0
                if source.kind is InputKind.LEAF:
                    scale = [1.0, 0.0][which] if kinds[name] is BUFFER else [source.first, source.second][which]
                term = values * values.dtype.type(scale)
                total[name] = total[name] + term if name in total else term
        out.append(total)
    return out


def check_equal(accumulator: Accumulator, wanted: list[dict[str, np.ndarray]]) -> None:
    size = accumulator.layout.size_bytes
    for which, sums in enumerate(wanted):
        got = tensors(accumulator.layout, accumulator.payload[which * size : (which + 1) * size])
        for name, values in sums.items():
            assert np.array_equal(got[name], values), f"image {which}, {name}"
    layout = accumulator.layout
    padding = np.ones(size, dtype=bool)
    for tensor, at in zip(layout.tensors, layout.offsets, strict=True):
        padding[at : at + tensor.size_bytes] = False
    whole = np.frombuffer(accumulator.payload, dtype=np.uint8).reshape(len(wanted), size)
    assert not whole[:, padding].any(), "what lies between tensors is not zero"


@pytest.mark.parametrize("images", [1, 2])
async def test_a_sum_of_updates_and_sums_is_bit_for_bit_that_of_numpy(connect: Connect, images: int):
    inputs = [Input(first=-0.1, second=0.37), SUM, Input(first=1.5, second=-1.0), SUM]
    parts = [
        (k, [image(MIXED, 10 * i + j) for j in range(1 if k is not SUM else images)]) for i, k in enumerate(inputs)
    ]
    accumulator = Accumulator(MIXED, inputs, images=images, ordered=True)
    async with asyncio.TaskGroup() as group:
        for index, (_, pieces) in enumerate(parts):
            near, far = await connect()
            group.create_task(push(near, pieces))
            group.create_task(take(accumulator, index, far))
    assert accumulator.progress.is_complete
    check_equal(accumulator, expected(MIXED, images, parts))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(range(4)),
    sizes=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 5, 1000, 33_000, 70_000]),
            st.sampled_from(["float64", "float32"]),
            st.sampled_from([TensorKind.PARAMETER, BUFFER]),
        ),
        min_size=1,
        max_size=5,
    ),
    images=st.integers(1, 2),
    seed=st.integers(0, 99),
)
async def test_an_ordered_sum_does_not_depend_on_who_comes_first(
    order: list[int], sizes: list[tuple[int, str, TensorKind]], images: int, seed: int
):
    specs = [TensorSpec(name=f"t{i}", shape=(n,), dtype=d, kind=k) for i, (n, d, k) in enumerate(sizes)]
    layout = Layout((*specs, vector(3, name="last")))
    inputs = [Input(first=0.3, second=0.7), SUM, Input(first=-2.0), Input(second=1.0)]
    parts = [
        (k, [image(layout, seed + 7 * i + j) for j in range(1 if k is not SUM else images)])
        for i, k in enumerate(inputs)
    ]
    accumulator = Accumulator(layout, inputs, images=images, ordered=True)
    await asyncio.gather(*(accumulator.add(index, parts[index][1]) for index in order))
    check_equal(accumulator, expected(layout, images, parts))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
async def test_an_unordered_sum_adds_in_the_order_of_arrival(order: list[int]):
    inputs = [Input(first=0.1), Input(first=0.2), Input(first=0.3)]
    parts = [(source, [image(FLAT, i)]) for i, source in enumerate(inputs)]
    accumulator = Accumulator(FLAT, inputs)
    for index in order:
        await accumulator.add(index, parts[index][1])
    check_equal(accumulator, expected(FLAT, 1, [parts[index] for index in order]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
async def test_half_precision_is_summed_in_its_own_dtype(dtype: str):
    layout = Layout((vector(100_001, dtype),))
    kind: torch.dtype = getattr(torch, dtype)
    given_ = [torch.randn(100_008, generator=torch.Generator().manual_seed(k)).to(kind) for k in range(3)]
    accumulator = Accumulator(layout, [Input(), Input(first=-0.5), Input()], ordered=True)
    pieces = [memoryview(g.view(torch.uint8).numpy().data) for g in given_]
    await asyncio.gather(*(accumulator.add(k, [piece]) for k, piece in enumerate(pieces)))
    got = torch.frombuffer(accumulator.payload, dtype=kind, count=100_001)
    assert torch.equal(got, (given_[0] + given_[1] * -0.5 + given_[2])[:100_001])
    assert accumulator.memory_bytes() == layout.size_bytes + chunk_bytes(layout.size_bytes), "room for products"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
async def test_nothing_behind_a_part_that_is_not_finite_is_added_and_the_tensor_is_named(connect: Connect, bad: float):
    accumulator = Accumulator(MIXED, [Input()] * 2)
    first, second = image(MIXED, 0), image(MIXED, 1)
    tensors(MIXED, second)["b"].flags.writeable = True
    tensors(MIXED, second)["b"][-1] = bad
    await accumulator.add(0, [first])
    before = bytes(accumulator.payload)
    near, far = await connect()
    async with asyncio.TaskGroup() as group:
        group.create_task(push(near, [second]))
        with pytest.raises(NotFiniteError, match="input 1 of a sum: b has NaN or Inf") as error:
            await take(accumulator, 1, far)
        await far.discard(far.unread_bytes)
    assert (error.value.input_index, error.value.tensor) == (1, "b")
    behind = next(at for at, t in zip(MIXED.offsets, MIXED.tensors, strict=True) if t.name == "var")
    assert accumulator.payload[behind:] == before[behind:]
    with pytest.raises(NotFiniteError):
        await accumulator.progress.reached(1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_finite_elements_whose_sum_overflows_are_taken(dtype: str):
    layout, kind = Layout((vector(10, dtype),)), getattr(torch, dtype)
    huge = torch.full((layout.size_bytes // kind.itemsize,), 3e38, dtype=kind)
    accumulator = Accumulator(layout, [Input(first=0.5)])
    await accumulator.add(0, [memoryview(huge.view(torch.uint8).numpy().data)])
    assert torch.equal(torch.frombuffer(accumulator.payload, dtype=kind, count=10), huge[:10] * 0.5)


@pytest.mark.parametrize("inputs", [[Input(first=0.0), Input()], [Input(), Input(first=0.0)]])
async def test_an_input_that_counts_nothing_is_looked_through_too(inputs: list[Input]):
    index = next(at for at, one in enumerate(inputs) if not one.first)
    data = image(FLAT, 0)
    tensors(FLAT, data)["w"].flags.writeable = True
    tensors(FLAT, data)["w"][7] = np.nan
    accumulator = Accumulator(FLAT, inputs)
    for at in range(index):
        await accumulator.add(at, [image(FLAT, 1)])
    with pytest.raises(NotFiniteError, match=f"input {index} of a sum: w has NaN or Inf"):
        await accumulator.add(index, [data])


async def test_an_input_that_waits_for_its_turn_is_refused_at_once_if_it_is_not_finite():
    data = image(FLAT, 0)
    tensors(FLAT, data)["w"].flags.writeable = True
    tensors(FLAT, data)["w"][-1] = np.inf
    accumulator = Accumulator(Layout((vector(100),)), [Input(), Input()], ordered=True)
    with pytest.raises(NotFiniteError, match="input 1 of a sum: w has NaN or Inf"):
        await accumulator.add(1, [memoryview(bytes(data))[-accumulator.layout.size_bytes :]])


async def test_what_is_not_looked_for_is_added_like_any_other_number():
    data = np.full(150_000, np.inf)
    accumulator = Accumulator(FLAT, [Input(), Input(first=0.0), Input(first=-1.0)], check_finite=False)
    for index in range(3):
        await accumulator.add(index, [memoryview(data.data).cast("B")])
    assert np.isnan(tensors(FLAT, accumulator.payload)["w"]).all()


async def test_giving_an_input_up_tears_the_sum_and_frees_those_who_wait_for_their_turn(connect: Connect):
    accumulator = Accumulator(FLAT, [Input()] * 2, ordered=True)
    near, far = await connect()

    nothing_yet = Buffer(memoryview(bytearray(FLAT.size_bytes)))
    sending = asyncio.create_task(near.send_stream(payload(FLAT.size_bytes), nothing_yet))
    receiving = asyncio.create_task(take(accumulator, 0, far))
    behind = asyncio.create_task(accumulator.add(1, [image(FLAT, 1)]))
    while far.unread_bytes == 0:
        await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(TransferError, match="input 0 of a sum was given up"):
        await behind
    near.close()
    with pytest.raises(TransferError, match="closed at this end"):
        await sending


async def test_bad_input_is_refused_with_nothing_changed():
    accumulator = Accumulator(FLAT, [Input(), SUM], images=2)
    good = image(FLAT, 0)
    with pytest.raises(UsageError, match="input 2 of a sum; allowed: 0 to 1"):
        await accumulator.add(2, [good])
    with pytest.raises(LayoutError, match=f"input 1 of a sum: {FLAT.size_bytes} bytes; allowed: {2 * FLAT.size_bytes}"):
        await accumulator.add(1, [good])
    await accumulator.add(0, [good])
    with pytest.raises(UsageError, match="begun before"):
        await accumulator.add(0, [good])
    await accumulator.add(1, [good, good])
    check_equal(accumulator, expected(FLAT, 2, [(Input(), [good]), (SUM, [good, good])]))


def test_a_sum_that_cannot_be_is_refused():
    cases = [
        (lambda: Accumulator(FLAT, []), "allowed: 1 input or more"),
        (lambda: Accumulator(FLAT, [Input()], images=3), "1 or 2 images"),
        (lambda: Accumulator(Layout((vector(0),)), [Input()]), "of 0 bytes"),
        (lambda: Accumulator(FLAT, [Input()], buffer=memoryview(bytes(FLAT.size_bytes))), "read-only"),
        (lambda: Accumulator(FLAT, [Input()], buffer=memoryview(bytearray(8))), "of 8 bytes; wanted"),
        (lambda: Input(first=float("nan")), "allowed: finite"),
        (lambda: Input(kind=InputKind.SUM, first=2.0), "added as it is"),
    ]
    for make, says in cases:
        with pytest.raises(UsageError, match=says):
            make()


async def test_a_given_buffer_is_used_whatever_was_in_it_and_memory_is_one_chunk_for_each_input_that_arrives():
    buffer = memoryview(bytearray(b"\xff" * (FLAT.size_bytes + 5)))
    data = image(FLAT, 0)
    accumulator = Accumulator(FLAT, [Input(), Input(first=0.5)], buffer=buffer)
    seen: list[int] = []

    async def watch() -> None:
        for n in range(CHUNK_BYTES, FLAT.size_bytes, CHUNK_BYTES):
            await accumulator.progress.reached(n)
            seen.append(accumulator.memory_bytes())

    await asyncio.gather(accumulator.add(0, [data]), accumulator.add(1, [data]), watch())
    assert max(seen) == FLAT.size_bytes + 2 * CHUNK_BYTES
    assert accumulator.memory_bytes() == FLAT.size_bytes
    assert np.array_equal(np.frombuffer(buffer[: FLAT.size_bytes]), np.frombuffer(data) * 1.5)


async def test_a_transfer_that_had_to_wait_for_its_turn_says_nothing_about_its_link(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(running_sum, "STARVED_SHARE", 0.0)
    accumulator = Accumulator(FLAT, [Input()] * 2, ordered=True)
    ends = [await connect() for _ in range(2)]
    pushing = [asyncio.create_task(push(near, [image(FLAT, k)])) for k, (near, _) in enumerate(ends)]
    for _, far in ends:
        await far.receive()
    behind = asyncio.create_task(accumulator.receive(ends[1][1], 1, FLAT.size_bytes))
    while ends[1][1].unread_bytes == FLAT.size_bytes:
        await asyncio.sleep(0)
    first, second = await accumulator.receive(ends[0][1], 0, FLAT.size_bytes), await behind
    await asyncio.gather(*pushing)
    assert (first.paced, second.paced) == (False, True)
    assert (first.bytes, second.bytes) == (FLAT.size_bytes, FLAT.size_bytes)
