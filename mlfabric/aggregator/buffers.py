"""The tensors of an aggregator: sums that are being made, models that are being handed on. Shell."""

from __future__ import annotations

import numpy as np

from mlfabric.errors import TransferError
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, Sum, SumId, SumInput
from mlfabric.transfer.relay import Relay
from mlfabric.transfer.running_sum import Accumulator, Input, InputKind

__all__ = ["Buffers"]


class Buffers:
    """What is allocated at present, by sum and by get."""

    def __init__(self) -> None:
        self._sums: dict[SumId, Accumulator] = {}
        self._models: dict[GetId, Relay] = {}

    def reserve_sum(self, plan: Sum, spec: ModelSpec) -> None:
        """Allocate a sum's accumulator."""
        inputs = [_input(one, plan.images) for one in plan.inputs]
        self._sums[plan.sum] = Accumulator(spec.layout, inputs, images=plan.images)

    def reserve_model(self, get: GetId, spec: ModelSpec) -> Relay:
        """Allocate a buffer for a model."""
        relay = self._models[get] = Relay(memoryview(np.empty(spec.layout.size_bytes, dtype=np.uint8).data))
        return relay

    def sum(self, which: SumId) -> Accumulator:
        """Return a sum's accumulator.

        Raises:
            TransferError: the sum was given up.
        """
        if which not in self._sums:
            raise TransferError(f"{which} was given up")
        return self._sums[which]

    def model(self, get: GetId) -> Relay:
        """Return the buffer of a model that was fetched as ``get``.

        Raises:
            TransferError: it was given up.
        """
        if get not in self._models:
            raise TransferError(f"the model of {get} was given up")
        return self._models[get]

    def free(self, which: SumId | GetId, reason: str) -> None:
        """Free a buffer; whoever still fills it or waits for it gets an error. Nothing happens if there is none."""
        held = self._sums.pop(which, None) if isinstance(which, SumId) else self._models.pop(which, None)
        if held is not None:
            held.fail(TransferError(reason))

    def memory_bytes(self) -> dict[str, int]:
        """Return what is allocated at present, in bytes by kind."""
        return {
            "sums": sum(accumulator.memory_bytes() for accumulator in self._sums.values()),
            "models": sum(len(relay.payload) for relay in self._models.values()),
        }


def _input(planned: SumInput, images: int) -> Input:
    if isinstance(planned.transfer, SumId):
        return Input(kind=InputKind.SUM)
    return Input(first=planned.first, second=planned.second if images > 1 else 0.0)
