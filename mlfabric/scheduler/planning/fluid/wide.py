# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Sums that may not fit into 64 bits, compiled. Sums of sizes stop at ENOUGH_BITS: as lower bounds they stay true.

Sums of spans are pairs (high, low) for ``high * 2**31 + low``, ordered as pairs.

A span in ns is below 2**62, and thousands of them are added up; times of zero rates and huge sizes come close to that.
"""

from __future__ import annotations

from mlfabric.scheduler.planning.fluid.jit import lean

__all__ = ["ENDLESS", "ENOUGH_BITS", "ZERO", "plus"]

ENOUGH_BITS = 1 << 61
LOW_BITS = 31
LOW_MASK = (1 << LOW_BITS) - 1

ZERO = (0, 0)
ENDLESS = (1 << 62, 0)  # above every sum of 2**28 spans


@lean
def plus(total, times, span):
    """Add ``times * span`` to a sum; ``times`` is below 2**28, ``span`` from 0 to 2**63 - 1."""
    low = total[1] + times * (span & LOW_MASK)
    return total[0] + times * (span >> LOW_BITS) + (low >> LOW_BITS), low & LOW_MASK
