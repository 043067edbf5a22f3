# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The first number that ``random.Random(text).random()`` draws, for many texts at once, compiled.

The testbed and the twin draw each straggler from a generator of its own (``settings``), seeded with what it is for. To
seed Python's Mersenne Twister takes longer than all else that the twin does in a synchronous step of a worker. Here its
state is made for several texts side by side, as ``init_by_array`` of CPython's ``_randommodule.c`` makes it, and of the
624 words that would come out of it only the first two are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha512

import numpy as np
from numpy.typing import NDArray

from mlfabric.scheduler.planning.fluid.jit import compiled

__all__ = ["first_randoms"]

_WORDS, _MIDDLE = 624, 397


def first_randoms(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return what a generator that is seeded with a text draws first, for each text; from 0 to below 1."""
    found = np.empty(len(texts))
    by_length: dict[int, list[tuple[int, bytes]]] = {}
    for place, text in enumerate(texts):
        seed = text.encode()
        seed = (seed + sha512(seed).digest()).lstrip(b"\0")  # it counts as a number
        by_length.setdefault(-(-len(seed) // 4), []).append((place, seed))
    for length, seeds in by_length.items():
        padded = b"".join(seed.rjust(4 * length, b"\0") for _, seed in seeds)
        words = np.frombuffer(padded, ">u4").reshape(-1, length)
        keys = np.ascontiguousarray(words[:, ::-1].T, np.uint32)
        found[[place for place, _ in seeds]] = _first(keys, _INITIAL)
    return found


def _initial() -> NDArray[np.uint32]:
    """Return the state that every generator starts from before its key is stirred in."""
    state = [19650218]
    for n in range(1, _WORDS):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + n) & 0xFFFFFFFF)
    return np.array(state, np.uint32)


_INITIAL = _initial()


@compiled
def _stir(state, n, factor):
    """Mix each generator's word before the n-th into that one."""
    for lane in range(state.shape[1]):
        before = state[n - 1, lane]
        state[n, lane] ^= np.uint32((before ^ (before >> np.uint32(30))) * np.uint32(factor))


@compiled
def _tempered(state, n):
    """The n-th number that a generator with this state puts out, for one whose first words are still in place."""
    joined = (state[n] & np.uint32(0x80000000)) | (state[n + 1] & np.uint32(0x7FFFFFFF))
    word = state[n + _MIDDLE] ^ (joined >> np.uint32(1))
    if joined & np.uint32(1):
        word ^= np.uint32(0x9908B0DF)
    word ^= word >> np.uint32(11)
    word ^= np.uint32((word << np.uint32(7)) & np.uint32(0x9D2C5680))
    word ^= np.uint32((word << np.uint32(15)) & np.uint32(0xEFC60000))
    return word ^ (word >> np.uint32(18))


@compiled
def _first(keys, initial):
    """The first random number for each column of ``keys``."""
    length, lanes = keys.shape
    state = np.empty((len(initial), lanes), np.uint32)
    for n in range(len(initial)):
        state[n] = initial[n]
    n = 1
    for k in range(max(length, len(initial))):
        _stir(state, n, 1664525)
        j = k % length
        for lane in range(lanes):
            state[n, lane] += keys[j, lane] + np.uint32(j)
        n += 1
        if n == len(initial):
            state[0] = state[n - 1]
            n = 1
    for _ in range(len(initial) - 1):
        _stir(state, n, 1566083941)
        for lane in range(lanes):
            state[n, lane] -= np.uint32(n)
        n += 1
        if n == len(initial):
            state[0] = state[n - 1]
            n = 1
    state[0] = np.uint32(0x80000000)
    found = np.empty(lanes)
    for lane in range(lanes):
        a, b = _tempered(state[:, lane], 0) >> np.uint32(5), _tempered(state[:, lane], 1) >> np.uint32(6)
        found[lane] = (a * 67108864.0 + b) / 9007199254740992.0
    return found
