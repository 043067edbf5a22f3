"""Tests that train on the real digits are skipped where these have not been fetched."""

from __future__ import annotations

import pytest

from benchmarks.testbed.digits import digits_file

__all__ = ["HAS_DIGITS", "NO_DIGITS", "needs_digits"]

HAS_DIGITS = digits_file().exists()
NO_DIGITS = "no digits here: scripts/fetch_digits (needs npm)"
needs_digits = pytest.mark.skipif(not HAS_DIGITS, reason=NO_DIGITS)
