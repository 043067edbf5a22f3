"""A stand-in for a server's parameter store and receive buffers: exact numbers, and a strict eye on who may touch them.

An update is a number that no other update has; so the weights at the end tell which updates are in them, each how
often, in which order, with which learning rate. The rules are the real store's: buffers are few, a pinned one is never
written, a step goes into the current buffer if nobody reads it, else into a free one. That of a part is made beside
the weights, for it may be thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from mlfabric.model.specs import RuleSpec
from mlfabric.protocol import ServerHolds, TransferId
from mlfabric.server.actions import ApplyStep, PrepareStep, StepKind, StepRefused
from mlfabric.simulator.exact import PRIME, Image, Weights, joined, mean_of, single_step, sum_step
from mlfabric.values import dataclass

__all__ = ["Checkpoint", "Held", "ReceiveBuffers", "StoreDouble", "refusal_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a server writes of a model, or of a part of one, after a step."""

    holds: ServerHolds
    weights: Weights

    def resumed(self) -> ServerHolds:
        """Return what a server holds that goes on from here, as ``server/resume.py`` does."""
        return replace(self.holds, received=(), replica="")


class Held(NamedTuple):
    """A pinned version, and what it is."""

    version: int
    value: int


class _Step(NamedTuple):
    """A step that was begun, and the weights that it leads to."""

    order: ApplyStep | PrepareStep
    weights: Weights
    is_in_place: bool


class StoreDouble:
    """The weights of one model, or of a part of one; at most ``limit`` copies of them.

    Args:
        limit: copies that may be held.
        rule: by which steps are made.
    """

    def __init__(self, limit: int, rule: RuleSpec) -> None:
        self.version = 0
        self._limit = limit
        self._rule = rule
        self._weights: Weights | None = None
        self._pins = Counter[int]()
        self._step: _Step | None = None

    @property
    def weights(self) -> Weights:
        """The weights and the rule's history."""
        assert self._weights is not None, "the model has no weights"
        is_torn = self._step is not None and self._step.is_in_place
        assert not is_torn, "the weights were looked at while a step was made in place"
        return self._weights

    @property
    def value(self) -> int:
        """The weights."""
        return self.weights[0]

    @property
    def pins(self) -> int:
        """How many gets hold a version."""
        return self._pins.total()

    def initialise(self, value: int) -> None:
        """Take the first weights."""
        self.resume(0, (value, 0))

    def resume(self, version: int, weights: Weights) -> None:
        """Go on from what another store had."""
        assert self._weights is None, "the model was given weights twice"
        self.version, self._weights = version, weights

    def begin(self, order: ApplyStep | PrepareStep, images: Sequence[Image]) -> None:
        """Begin to apply transfers together; ``images`` are what they brought."""
        assert self._step is None, f"{order} begun while {self._step} is applied"
        weights, is_pinned = self.weights, self.version in self._pins
        is_in_place = isinstance(order, ApplyStep) and not is_pinned
        lacks_copy = isinstance(order, ApplyStep) and is_pinned and len(self._pins) == self._limit
        assert not lacks_copy, f"all {self._limit} copies are pinned and a step was begun"
        self._step = _Step(order, self._result(order, weights, images), is_in_place)

    def _result(self, order: ApplyStep | PrepareStep, weights: Weights, images: Sequence[Image]) -> Weights:
        match order.kind:
            case StepKind.ONE:
                return single_step(self._rule, weights, images[0][0], order.lrs[0])
            case StepKind.SUM:
                return sum_step(self._rule, weights, images[0], order.lrs)
            case StepKind.MEAN:
                total = sum(image[0] for image in images) % PRIME
                return single_step(self._rule, weights, mean_of(total, len(order.lrs)), order.lrs[0])

    def finish(self, version: int) -> ApplyStep | PrepareStep:
        """End the step that was begun, which leads to ``version``; return its order."""
        step = self.discard()
        assert version > self.version, f"{step.order} made version {version} after {self.version}"
        self.version, self._weights = version, step.weights
        return step.order

    def discard(self) -> _Step:
        """Throw the step away that was begun."""
        step, self._step = self._step, None
        assert step is not None, "no step was begun"
        return step

    def acquire(self) -> Held:
        """Pin the current version."""
        held = Held(self.version, self.value)
        self._pins[held.version] += 1
        return held

    def release(self, held: Held) -> None:
        """Unpin a version."""
        assert self._pins[held.version] > 0, f"version {held.version} was released twice"
        self._pins[held.version] -= 1
        self._pins = +self._pins


def refusal_of(action: ApplyStep, culprits: Collection[TransferId]) -> StepRefused:
    """Say who is to blame for a step, as ``server/stores.py`` does: the first one holds the sum by now.

    Args:
        action: the step.
        culprits: those of its transfers that are not finite, or would make the weights infinite.
    """
    first, *rest = action.transfers
    blamed = tuple(transfer for transfer in rest if transfer in culprits)
    return StepRefused(
        model=action.model,
        transfers=action.transfers,
        detail="the step is not finite",
        culprits=blamed or (first,),
        spoilt=(first,) if blamed else (),
    )


@dataclass(slots=True)
class _Receiving:
    """A transfer's buffer: the connection that fills it, what came, and the whole once it is complete."""

    connection: int
    chunks: dict[int, Image | None]
    image: Image | None = None
    is_complete: bool = False


class ReceiveBuffers:
    """The buffers of transfers on their way; each is filled by one connection and belongs to one transfer."""

    def __init__(self) -> None:
        self._by_transfer: dict[TransferId, _Receiving] = {}

    def __len__(self) -> int:
        return len(self._by_transfer)

    def names(self) -> set[TransferId]:
        """Return the transfers that have one."""
        return set(self._by_transfer)

    def reserve(self, transfer: TransferId, connection: int) -> None:
        """Reserve a buffer for what this connection will bring."""
        assert transfer not in self._by_transfer, f"{transfer} was granted a second buffer, the first is lost"
        self._by_transfer[transfer] = _Receiving(connection, {})

    def put(self, transfer: TransferId, connection: int, place: int, chunk: Image | None) -> None:
        """Write a chunk; None stands for one that is not finite."""
        self._of(transfer, connection).chunks[place] = chunk

    def seal(self, transfer: TransferId, connection: int) -> None:
        """Note that a transfer is complete; its chunks must fit together."""
        buffer = self._of(transfer, connection)
        buffer.image, buffer.is_complete = joined(buffer.chunks), True

    def _of(self, transfer: TransferId, connection: int) -> _Receiving:
        buffer = self._by_transfer.get(transfer)
        by = buffer.connection if buffer is not None else None
        assert buffer is not None, f"connection {connection} wrote {transfer} into a buffer that belongs to {by}"
        assert by == connection, f"connection {connection} wrote {transfer} into a buffer that belongs to {by}"
        return buffer

    def image(self, transfer: TransferId) -> Image | None:
        """Return what a complete transfer brought; None stands for what is not finite."""
        buffer = self._by_transfer.get(transfer)
        assert buffer is not None, f"{transfer} has no buffer"
        assert buffer.is_complete, f"{transfer} is applied before it is complete"
        return buffer.image

    def forget(self, transfer: TransferId) -> int | None:
        """Free a buffer; return the connection that was still filling it, None if it was complete."""
        assert transfer in self._by_transfer, f"{transfer} has no buffer to forget"
        buffer = self._by_transfer.pop(transfer)
        return None if buffer.is_complete else buffer.connection
