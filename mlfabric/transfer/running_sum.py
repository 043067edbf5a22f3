"""Sums that are made while their inputs arrive, and can be sent on while they are made (design, section 5).

Every input is received chunk by chunk into one small buffer, looked through for NaN and Inf, and added to the sum. What
all inputs have been added to is ready, and ``send_stream(frame, accumulator)`` forwards it at once. A sum with an input
that breaks, is given up, or is not finite is torn as a whole: nothing of it may be used.

A sum has one image, or two where a group of updates has to act as that many steps of a rule with momentum; the payload
is the first image, whole, and then the second. Memory: the payload, one chunk for each input that is arriving, and in
half precision one chunk of scratch space for whoever adds. The chunks' buffers are kept for the next sums of this
process.

A chunk is added in the very callback of the event loop in which its last byte comes in, while the core's cache has it.
Threads beside the loop would cost more than they bring: a chunk then moves from core to core, and so does the word that
it is added, and the kernel's part of receiving wants the other cores, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from mlfabric import clock
from mlfabric.channels import Connection, TransferRecord
from mlfabric.channels.progress import Progress
from mlfabric.channels.views import contiguous, total_bytes
from mlfabric.errors import FabricError, LayoutError, TransferError, UsageError
from mlfabric.model.specs import Layout, TensorKind
from mlfabric.transfer.chunk_arithmetic import Part, Vector, add_part, chunks_of, is_finite, not_finite_in
from mlfabric.transfer.spares import Spares

__all__ = ["Accumulator", "Input", "InputKind", "NotFiniteError"]

STARVED_SHARE = 0.05
KEPT_BYTES = 64 * 1024 * 1024
TURN_BYTES = 64 * 1024
_spares = Spares(KEPT_BYTES)


class NotFiniteError(FabricError):
    """An input of a sum has NaN or Inf; the sum is torn.

    Args:
        input_index: which input.
        tensor: the first tensor of its chunk that has one.
    """

    def __init__(self, input_index: int, tensor: str) -> None:
        super().__init__(f"input {input_index} of a sum: {tensor} has NaN or Inf; send finite values")
        self.input_index = input_index
        self.tensor = tensor


class InputKind(Enum):
    """What an input of a sum is."""

    LEAF = "leaf"
    SUM = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a sum.

    Args:
        kind: a LEAF is one update, a single image; a SUM has as many images as the sum that it goes into.
        first, second: what a LEAF's PARAMETER tensors are multiplied with for the first image, and for the second if
            there is one. The values of its other tensors go into the first as they are; what the second has there
            nobody looks at. A SUM is added as it is, image by image, and needs neither.
    """

    kind: InputKind = InputKind.LEAF
    first: float = 1.0
    second: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            raise UsageError(f"input of a sum: first={self.first}, second={self.second}; allowed: finite numbers")
        if self.kind is InputKind.SUM and (self.first, self.second) != (1.0, 0.0):
            raise UsageError(f"input of a sum: a SUM with first={self.first}, second={self.second} is added as it is")

    def coefficient(self, kind: TensorKind, image: int) -> float:
        """Return what a tensor of ``kind`` is multiplied with for ``image`` (0 or 1)."""
        if self.kind is InputKind.SUM:
            return 1.0
        of_parameter = (self.first, self.second)
        return of_parameter[image] if kind is TensorKind.PARAMETER else (1.0, 0.0)[image]


class Accumulator:
    """A sum of images, filled by any number of tasks of one event loop, one for each input.

    Args:
        layout: the model's.
        inputs: what goes into the sum; at least one.
        images: 1 or 2.
        ordered: add in the order of ``inputs`` everywhere, so that no bit of the sum depends on timing; an input that
            is ahead of the one before it waits. Otherwise in the order of arrival.
        check_finite: refuse inputs with NaN or Inf; else they are added like any other number.
        buffer: where the payload is to lie, whatever is in it; at least as long. None allocates one.

    Raises:
        UsageError: no input, another number of images, an image without bytes, or a buffer that does not fit.
    """

    def __init__(
        self,
        layout: Layout,
        inputs: Sequence[Input],
        *,
        images: int = 1,
        ordered: bool = False,
        check_finite: bool = True,
        buffer: memoryview | None = None,
    ) -> None:
        if not inputs or images not in (1, 2) or not layout.size_bytes:
            given = f"{len(inputs)} inputs of {layout.size_bytes} bytes in {images} images"
            raise UsageError(f"a sum of {given}; allowed: 1 input or more of 1 byte or more, 1 or 2 images")
        self.layout = layout
        self.inputs = tuple(inputs)
        self.images = images
        self._ordered = ordered
        self._check_finite = check_finite
        self._chunks = chunks_of(layout)
        size = layout.size_bytes
        self._payload = _room(buffer, images * size)
        self._images = [self._payload[i * size : (i + 1) * size] for i in range(images)]
        self._added = [tuple(Progress(size) for _ in range(images)) for _ in inputs]
        self._begun = [[False] * len(self._chunks) for _ in range(images)]
        self._targets: dict[tuple[int, int], list[Vector]] = {}
        self._started: set[int] = set()
        self._waited_ns = [0] * len(inputs)
        self._product = memoryview(b"")
        self._arriving_bytes = 0
        self._progress = Progress(len(self._payload))

    @property
    def payload(self) -> memoryview:
        """The sum: its first image, then its second if it has one."""
        return self._payload

    @property
    def progress(self) -> Progress:
        """How much of the payload is ready: every input has been added to it."""
        return self._progress

    def length_of(self, index: int) -> int:
        """Return how many bytes an input brings."""
        of_kind = {InputKind.LEAF: 1, InputKind.SUM: self.images}
        return of_kind[self.inputs[index].kind] * self.layout.size_bytes

    def memory_bytes(self) -> int:
        """Return what is allocated at present, in bytes."""
        return len(self._payload) + len(self._product) + self._arriving_bytes

    def fail(self, error: Exception) -> None:
        """Tear the sum: whoever fills it, waits for it or sends it gets ``error``."""
        self._progress.fail(error)
        for images in self._added:
            for progress in images:
                progress.fail(error)

    async def receive(self, connection: Connection, index: int, length: int) -> TransferRecord:
        """Receive an input's announced payload and add it.

        Args:
            connection: has just received the frame that announces the payload.
            index: which input.
            length: of the payload, in bytes.

        Returns:
            The record of the whole transfer; paced also if the input had to wait for its turn.

        Raises:
            UsageError: no such input, or it has been begun before; nothing was changed.
            LayoutError: the length is not the input's; nothing was received or changed.
            NotFiniteError: the sum is torn; nothing that follows the part with NaN or Inf was added.
            TransferError: the connection broke; the sum is torn.
            Exception: what the sum failed with meanwhile.
        """
        self._check_start(index, length)
        with self._taking(index) as buffer:
            places = list(self._places_of(index))
            pieces = [buffer[: self._chunks[number].size_bytes] for _, number in places]
            full = iter(zip(places, pieces, strict=True))

            def took() -> Awaitable[None] | None:
                (images, number), data = next(full)
                return self._take_chunk(index, images, number, data)

            record = await connection.receive_through(pieces, took)
        starved = self._waited_ns[index] > STARVED_SHARE * (record.ended_ns - record.started_ns)
        return replace(record, paced=True) if starved and not record.paced else record

    async def add(self, index: int, pieces: Sequence[memoryview], ready: Progress | None = None) -> None:
        """Add an input that is in this process.

        Args:
            index: which input.
            pieces: contiguous buffers that make up its payload; not to be changed before this returns.
            ready: how much of the payload is there, if it is still being made; None for all.

        Raises:
            UsageError, LayoutError, NotFiniteError, Exception: as for :meth:`receive`.
        """
        views = contiguous(pieces)
        self._check_start(index, total_bytes(views))
        reader, taken = _Reader(views), 0
        with self._taking(index) as buffer:
            since_turn_bytes = TURN_BYTES
            for images, number in self._places_of(index):
                data = buffer[: self._chunks[number].size_bytes]
                taken += len(data)
                if ready is not None:
                    await ready.reached(taken)
                reader.copy_into(data)
                if since_turn_bytes >= TURN_BYTES:
                    await asyncio.sleep(0)  # other tasks get their turns
                    since_turn_bytes = 0
                since_turn_bytes += len(data)
                if (later := self._take_chunk(index, images, number, data)) is not None:
                    await later

    def _check_start(self, index: int, length: int) -> None:
        self._progress.check()
        if not 0 <= index < len(self.inputs):
            raise UsageError(f"input {index} of a sum; allowed: 0 to {len(self.inputs) - 1}")
        if index in self._started:
            raise UsageError(f"input {index} of a sum was begun before; each input comes once")
        if length != self.length_of(index):
            raise LayoutError(f"input {index} of a sum: {length} bytes; allowed: {self.length_of(index)}")

    @contextmanager
    def _taking(self, index: int) -> Iterator[memoryview]:
        """Keep the buffer of an input that arrives; what goes wrong with one tears the sum."""
        self._started.add(index)
        buffer = _spares.take(self._chunks[0].size_bytes)
        self._arriving_bytes += len(buffer)
        try:
            yield buffer
        except Exception as error:
            self.fail(error)
            raise
        except asyncio.CancelledError:
            self.fail(TransferError(f"input {index} of a sum was given up"))
            raise
        finally:
            self._arriving_bytes -= len(buffer)
            _spares.give(buffer)

    def _places_of(self, index: int) -> Iterator[tuple[range, int]]:
        """Go through an input's chunks: the images that each is added to, and its number in the image."""
        together = range(self.images)
        passes = [together] if self.inputs[index].kind is InputKind.LEAF else [range(i, i + 1) for i in together]
        return ((images, number) for images in passes for number in range(len(self._chunks)))

    def _take_chunk(self, index: int, images: range, number: int, data: memoryview) -> Awaitable[None] | None:
        """Add a chunk that is here; return what to wait for before the next one, if it is not yet its turn."""
        self._progress.check()
        chunk = self._chunks[number]
        if chunk.gaps:
            chunk.clear_gaps(data)
        if not self._ordered or index == 0 or all(self._is_turn(index, image, number) for image in images):
            self._add_chunk(index, images, number, data, look=self._check_finite)
            return None
        if self._check_finite:
            for part in chunk.parts:
                if not is_finite(part.of(data, chunk.start)):
                    raise self._not_finite(index, number, part, data)
        return _Later(partial(self._add_in_turn, index, images, number, data))

    def _not_finite(self, index: int, number: int, part: Part, data: memoryview) -> NotFiniteError:
        return NotFiniteError(index, not_finite_in(self.layout, part, data, self._chunks[number].start))

    def _is_turn(self, index: int, image: int, number: int) -> bool:
        """Tell whether, if the order counts, the input before has been added to a chunk."""
        before = index - 1
        return not self._ordered or index == 0 or self._added[before][image].ready_bytes >= self._chunks[number].end

    async def _add_in_turn(self, index: int, images: range, number: int, data: memoryview) -> None:
        """Add a chunk to each image as soon as the input before has been added there."""
        for image in images:
            if not self._is_turn(index, image, number):
                started_ns = clock.monotonic_ns()
                await self._added[index - 1][image].reached(self._chunks[number].end)
                self._waited_ns[index] += clock.monotonic_ns() - started_ns
            self._add_chunk(index, range(image, image + 1), number, data, look=False)

    def _add_chunk(self, index: int, images: range, number: int, data: memoryview, *, look: bool) -> None:
        """Add a chunk to images, part by part, each looked through for the first image if that is wanted."""
        chunk, source = self._chunks[number], self.inputs[index]
        for image in images:
            fresh, looks = not self._begun[image][number], look and image == images.start
            for part, target in zip(chunk.parts, self._targets_of(image, number), strict=True):
                elements, coefficient = part.of(data, chunk.start), source.coefficient(part.kind, image)
                scratch = self._scratch(coefficient, elements)
                if not add_part(target, elements, coefficient, scratch, fresh=fresh, look=looks):
                    raise self._not_finite(index, number, part, data)
            self._note_added(index, image, number)

    def _targets_of(self, image: int, number: int) -> list[Vector]:
        """Return the parts of the sum that a chunk goes to; every input needs them again."""
        if (image, number) not in self._targets:
            self._targets[image, number] = [part.of(self._images[image]) for part in self._chunks[number].parts]
        return self._targets[image, number]

    def _note_added(self, index: int, image: int, number: int) -> None:
        chunk = self._chunks[number]
        self._begun[image][number] = True
        self._added[index][image].advance(chunk.end)
        if chunk.start + image * self.layout.size_bytes == self._progress.ready_bytes:
            self._progress.advance(self._ready_bytes())

    def _scratch(self, coefficient: float, elements: Vector) -> memoryview:
        """Return space for a product, which only half precision and numbers other than 0 and 1 need."""
        if coefficient not in (0, 1) and not self._product and not isinstance(elements, np.ndarray):
            self._product = memoryview(bytearray(self._chunks[0].size_bytes))
        return self._product

    def _ready_bytes(self) -> int:
        first = min(images[0].ready_bytes for images in self._added)
        if self.images == 1 or first < self.layout.size_bytes:
            return first
        return first + min(images[1].ready_bytes for images in self._added)


class _Later:
    """Something to be awaited that is begun only then: whoever is cancelled before leaves nothing behind."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, None]:
        return self._begin().__await__()


def _room(buffer: memoryview | None, n_bytes: int) -> memoryview:
    if buffer is None:
        return memoryview(np.empty(n_bytes, dtype=np.uint8).data)
    if buffer.readonly or buffer.nbytes < n_bytes:
        given = f"{'read-only' if buffer.readonly else 'writable'} buffer of {buffer.nbytes} bytes"
        raise UsageError(f"a sum was given a {given}; wanted a writable one of {n_bytes} bytes or more")
    return contiguous([buffer])[0][:n_bytes]


class _Reader:
    """Reads buffers one after the other, in any portions."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = iter(views)
        self._rest = memoryview(b"")

    def copy_into(self, view: memoryview) -> None:
        """Fill ``view`` with the next bytes."""
        at = 0
        while at < len(view):
            self._rest = self._rest or next(self._views)
            n = min(len(self._rest), len(view) - at)
            view[at : at + n], self._rest = self._rest[:n], self._rest[n:]
            at += n
