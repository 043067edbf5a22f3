"""Buffers that are read while they are being filled: sums and relays, chunk by chunk (design, section 5).

Shell code that the aggregator and the worker daemon share; it knows channels and layouts, and no service.
"""

from mlfabric.transfer.add_kernels import load as load_kernels
from mlfabric.transfer.relay import Relay
from mlfabric.transfer.running_sum import Accumulator, Input, InputKind, NotFiniteError

__all__ = [
    "Accumulator",
    "Input",
    "InputKind",
    "NotFiniteError",
    "Relay",
    "load_kernels",
]
