"""Adding and looking in one pass: bit for bit what numpy does, and no NaN or Inf is overlooked wherever it is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.transfer import add_kernels

DTYPES = [np.float32, np.float64]
BAD = [np.nan, -np.nan, np.inf, -np.inf]


def numbers(n: int, dtype: type, seed: int) -> np.ndarray:
    """Finite ones, with the largest, the smallest and both zeros among them."""
    rng, limits = np.random.default_rng(seed), np.finfo(dtype)
    found: np.ndarray = rng.standard_normal(n).astype(dtype)
    extremes = [limits.max, limits.min, limits.smallest_subnormal, -limits.smallest_subnormal, 0.0, -0.0]
    found[rng.integers(0, n, len(extremes))] = extremes
    return found


@given(
    n=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    coefficient=st.sampled_from([1.0, -1.0, 0.37, 0.0, 1e-3]),
    fresh=st.booleans(),
    offset=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_a_sum_is_bit_for_bit_that_of_numpy_wherever_it_lies_in_memory(
    n: int, dtype: type, coefficient: float, fresh: bool, offset: int, seed: int
) -> None:
    source, before = numbers(n, dtype, seed), numbers(n, dtype, seed + 1)
    room = bytearray(offset + before.nbytes)
    target: np.ndarray = np.frombuffer(room, dtype=dtype, count=n, offset=offset)
    target[:] = before
    with np.errstate(over="ignore"):
        wanted = source * dtype(coefficient) if fresh else before + source * dtype(coefficient)
    assert add_kernels.add(target, source, coefficient, fresh=fresh)
    assert target.tobytes() == wanted.tobytes()


@given(
    n=st.integers(1, 300), dtype=st.sampled_from(DTYPES), bad=st.sampled_from(BAD), fresh=st.booleans(), data=st.data()
)
def test_one_number_that_is_not_finite_is_found_wherever_it_is(
    n: int, dtype: type, bad: float, fresh: bool, data: st.DataObject
) -> None:
    source = numbers(n, dtype, 0)
    assert add_kernels.is_finite(source)
    source[data.draw(st.integers(0, n - 1))] = bad
    assert not add_kernels.is_finite(source)
    assert not add_kernels.add(np.zeros(n, dtype), source, 1.0, fresh=fresh)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_overflows_is_inf_and_no_fault_of_the_source(dtype: type) -> None:
    target = np.full(5, np.finfo(dtype).max)
    assert add_kernels.add(target, target.copy(), 1.0, fresh=False)
    assert np.isinf(target).all()


def test_a_worker_that_sums_nothing_loads_no_compiler() -> None:
    program = "import sys, mlfabric; mlfabric.register_as_worker; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
