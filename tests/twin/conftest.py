"""Whole runs plan with compiled kernels."""

from tests.validated import compiled_planner

__all__ = ["compiled_planner"]
