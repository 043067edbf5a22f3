"""AllReduce jobs, and the witness of their results.

Each tensor says whose it is and of which call: element ``life`` of each row is 1 unit and the call's number, all others
are 0, and the last one is the number of the row. So a sum says for each row which tensors are in it, and how often.

What must hold: a result is a sum, in all rows, of tensors that were given, each once, with the receiver's own among
them; it has as many as the receiver is told; all who get a result with a common tensor in it get the same bits. Nobody
goes on past a round that others have and it has not, unless it was told to load their weights: whoever has the same
results since it joined, or was told so, has the same weights.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mlfabric.errors import FabricError
from mlfabric.lab.fabric import Life
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.worker_daemon.attempts import ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.contributions import Contribution

__all__ = ["AllReduceJob", "Witness"]

ROW = 64
UNIT = float(1 << 14)
Call = tuple[int, int]
"""The number of a life, and of its call."""


def tensor_of(life: int, call: int, rows: int) -> np.ndarray:
    """Return what a worker gives in a call: float32."""
    tensor = np.zeros((rows, ROW), np.float32)
    tensor[:, life] = UNIT + call
    tensor[:, -1] = np.arange(rows)
    return tensor.reshape(-1)


def calls_in(result: np.ndarray) -> frozenset[Call]:
    """Return whose tensors are in a result, and of which call; each must be there once, in all rows."""
    table = result.reshape(-1, ROW)
    first = table[0, :-1]
    assert (table[:, :-1] == first).all(), "the rows of a result are sums of different tensors"
    lives = np.flatnonzero(first)
    times = first[lives] // UNIT
    assert (times == 1).all(), f"tensors of lives {lives.tolist()} are {times.tolist()} times in one result"
    assert (table[:, -1] == len(lives) * np.arange(len(table))).all(), "rows of a result were exchanged"
    return frozenset((int(life), int(first[life] - UNIT)) for life in lives)


@dataclass(slots=True)
class _Weights:
    """What a model's weights are after a round, and what they were before it as far as somebody knew."""

    number: int
    before: int | None


class Witness:
    """Sees what every worker gives and gets.

    Attributes:
        finished: how many calls of each life had a result.
        failed: how many calls of all lives had none.
    """

    def __init__(self) -> None:
        self.finished: Counter[int] = Counter()
        self.failed = 0
        self._refused: set[Call] = set()
        self._results: dict[Call, bytes] = {}
        self._weights: dict[int, int] = {}
        self._after: dict[bytes, _Weights] = {}

    def got(self, life: int, call: int, given: np.ndarray, result: np.ndarray, workers: int) -> frozenset[Call]:
        """Take a result; return whose tensors are in it."""
        self._check_given(life, call, given)
        inside = calls_in(result)
        assert (life, call) in inside, f"life {life}, call {call}: its own tensor is not in {sorted(inside)}"
        assert len(inside) == workers, f"life {life} was told of {workers} workers; {len(inside)} are in the sum"
        bits = result.tobytes()
        for each in sorted(inside):
            assert self._results.setdefault(each, bits) == bits, f"{each} is in two different results"
            assert each not in self._refused, f"{each} is in a result, and its worker was told that it failed"
        self._apply(life, bits)
        self.finished[life] += 1
        return inside

    def missed(self, life: int, call: int, given: np.ndarray, error: FabricError) -> None:
        """Take the news that a call has failed."""
        self._check_given(life, call, given)
        self.failed += 1
        self._refused.add((life, call))
        assert (life, call) not in self._results, f"{life, call} is in a result, and its worker is told that it failed"
        if "load their weights" in str(error):
            self._weights.pop(life, None)

    def _check_given(self, life: int, call: int, given: np.ndarray) -> None:
        whole = (given == tensor_of(life, call, len(given) // ROW)).all()
        assert whole, f"life {life}, call {call}: its tensor was written to"

    def _apply(self, life: int, bits: bytes) -> None:
        """Follow the weights of a worker; who has not loaded any has those of the others in its first round."""
        known = self._weights.get(life)
        after = self._after.setdefault(bits, _Weights(len(self._after), known))
        if after.before is None:
            after.before = known
        missed = known is not None and known != after.before
        assert not missed, f"life {life} goes on past a round that others have and it has not"
        self._weights[life] = after.number


@dataclass(kw_only=True)
class AllReduceJob:
    """Workers that compute for a while and reduce, again and again.

    Args:
        rows: of each tensor.
        compute_s: the least and the most that a step takes.
        workers: how many begin together.
        leave_after: how many calls a worker of this number makes; others go on for ever.
    """

    rows: int
    compute_s: tuple[float, float]
    workers: int
    leave_after: dict[int, int] = field(default_factory=dict)
    witness: Witness = field(default_factory=Witness)

    @property
    def spec(self) -> ModelSpec:
        """What its workers register."""
        layout = Layout((TensorSpec(name="w", shape=(self.rows * ROW,), dtype="float32"),))
        return ModelSpec(name="net", layout=layout, method=Method.ALL_REDUCE)

    def inbox(self, life: Life) -> None:
        """Have each result go to whoever asked for it."""

    async def train(self, life: Life) -> None:
        """Make calls."""
        assert life.daemon is not None, "it has joined"
        assert life.number < ROW - 1, "there are more lives than a row has room for"
        for call in range(self.leave_after.get(life.number, 1 << 14)):
            await asyncio.sleep(life.draw.uniform(*self.compute_s))
            if life.leaves:
                return
            given = tensor_of(life.number, call, self.rows)
            result = np.full(padded_bytes(given.nbytes), 255, np.uint8)
            buffers = ReduceBuffers(given=given.data.cast("B").toreadonly(), result=result.data, dtype="float32")
            try:
                workers = await life.daemon.offer(Contribution(buffers=buffers, together=self.workers))
                found = self.witness.got(life.number, call, given, result[: given.nbytes].view(np.float32), workers)
                life.fabric.note(f"{life.name} has call {call}: {sorted(found)}")
            except FabricError as error:
                self.witness.missed(life.number, call, given, error)
                life.fabric.note(f"{life.name} is told that call {call} failed: {error}")

    def progress(self, life: Life) -> int:
        """Return how many calls of a worker had a result."""
        return self.witness.finished[life.number]
