"""A stand-in for a server's parameter store and receive buffers: exact numbers, and a strict eye on who may touch them.

An update is a number that no other update has; so the weights at the end tell which updates are in them, each how
often, in which order, with which learning rate. The rules are the real store's: buffers are few, a pinned one is never
written, a step goes into the current buffer if nobody reads it, else into a free one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlfabric.protocol import TransferId
from mlfabric.server.actions import ApplyStep, StepKind, StepRefused
from mlfabric.simulator.exact import PRIME, Image, Weights, joined, mean_of, single_step, sum_step
from mlfabric.specs import RuleSpec
from mlfabric.values import dataclass

__all__ = ["Held", "ReceiveBuffers", "StoreDouble", "refusal_of"]


@dataclass(slots=True, eq=False)
class _Buffer:
    value: int | None
    pins: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A pinned version, and what it was when it was pinned."""

    version: int
    value: int
    buffer: _Buffer


class StoreDouble:
    """The weights of one model; at most ``limit`` copies of them.

    Args:
        limit: copies that may be held.
        rule: by which steps are made.
    """

    def __init__(self, limit: int, rule: RuleSpec) -> None:
        self.version = 0
        self._limit = limit
        self._rule = rule
        self._history = 0
        self._current: _Buffer | None = None
        self._buffers: list[_Buffer] = []
        self._step: tuple[tuple[TransferId, ...], _Buffer, Weights] | None = None

    @property
    def value(self) -> int:
        """The weights."""
        assert self._current is not None, "the model has no weights"
        assert self._current.value is not None, "the weights were looked at while a step was made in place"
        return self._current.value

    @property
    def pins(self) -> int:
        """How many gets hold a version."""
        return sum(buffer.pins for buffer in self._buffers)

    @property
    def weights(self) -> Weights:
        """The weights and the rule's history."""
        return self.value, self._history

    def initialise(self, value: int) -> None:
        """Take the first weights."""
        assert self._current is None, "the model was given weights twice"
        self._current = _Buffer(value)
        self._buffers.append(self._current)

    def resume(self, version: int, weights: Weights) -> None:
        """Go on from what another store had."""
        self.initialise(weights[0])
        self.version, self._history = version, weights[1]

    def begin(self, action: ApplyStep, images: Sequence[Image]) -> None:
        """Begin to apply transfers together; ``images`` are what they brought."""
        what = action.transfers
        assert self._step is None, f"{what} begun while {self._step} is applied"
        weights, source = (self.value, self._history), self._current
        assert source is not None, "the model has no weights"
        target = source if not source.pins else self._free(source)
        assert not target.pins, f"{what} would be written over a version that is being read"
        target.value = None
        self._step = (what, target, self._result(action, weights, images))

    def _result(self, action: ApplyStep, weights: Weights, images: Sequence[Image]) -> Weights:
        match action.kind:
            case StepKind.ONE:
                return single_step(self._rule, weights, images[0][0], action.lrs[0])
            case StepKind.SUM:
                return sum_step(self._rule, weights, images[0], action.lrs)
            case StepKind.MEAN:
                total = sum(image[0] for image in images) % PRIME
                return single_step(self._rule, weights, mean_of(total, len(action.lrs)), action.lrs[0])

    def _free(self, source: _Buffer) -> _Buffer:
        for buffer in self._buffers:
            if buffer is not source and not buffer.pins:
                return buffer
        assert len(self._buffers) < self._limit, f"all {self._limit} copies are pinned and a step was begun"
        self._buffers.append(_Buffer(None))
        return self._buffers[-1]

    def finish(self, version: int) -> None:
        """End the step that was begun, which leads to ``version``."""
        assert self._step is not None, "no step was begun"
        what, target, (value, history) = self._step
        assert not target.pins, f"{what} was written over a version that was pinned meanwhile"
        target.value, self._current, self._history, self._step = value, target, history, None
        assert version > self.version, f"{what} made version {version} after {self.version}"
        self.version = version

    def acquire(self) -> Held:
        """Pin the current version."""
        value = self.value
        buffer = self._current
        assert buffer is not None, "the model has no weights"
        buffer.pins += 1
        return Held(version=self.version, value=value, buffer=buffer)

    def release(self, held: Held) -> None:
        """Unpin a version, which must be what it was."""
        assert held.buffer.value == held.value, f"version {held.version} was changed while it was read"
        held.buffer.pins -= 1
        assert held.buffer.pins >= 0, f"version {held.version} was released twice"


def refusal_of(action: ApplyStep, images: Sequence[Image | None], huge: Collection[TransferId]) -> StepRefused:
    """Say who is to blame for a step, as ``server/stores.py`` does: the first one holds the sum by now.

    Args:
        action: the step.
        images: what its transfers brought; None stands for what is not finite.
        huge: those that would make the weights infinite.
    """
    first, *rest = action.transfers
    looks = zip(rest, images[1:], strict=True)
    blamed = tuple(transfer for transfer, image in looks if image is None or transfer in huge)
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
