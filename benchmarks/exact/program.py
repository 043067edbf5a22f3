"""A mixed-integer program, gathered term by term and solved by HiGHS (the extra ``exact``)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from mlfabric.errors import UsageError

__all__ = ["Program", "Solved"]

Terms = Iterable[tuple[int, float]]


class Solved(NamedTuple):
    """By variable its value, or None if no solution is known; no solution costs less than ``bound``."""

    values: list[float] | None
    bound: float


class Program:
    """Variables are numbers; every row says that a sum of terms is within limits; the cost is made least."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._most: list[float] = []
        self._is_whole: list[bool] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._starts: list[int] = [0]
        self._columns: list[int] = []
        self._factors: list[float] = []

    def variable(self, cost: float = 0.0, *, most: float = 1.0, whole: bool = False) -> int:
        """Add a variable from 0 to ``most``."""
        self._cost.append(cost)
        self._most.append(most)
        self._is_whole.append(whole)
        return len(self._cost) - 1

    def row(self, terms: Terms, *, least: float = -math.inf, most: float = math.inf) -> None:
        """Demand that the sum of factor times variable is within limits; a variable may come several times."""
        merged: dict[int, float] = defaultdict(float)
        for column, factor in terms:
            merged[column] += factor
        for column, factor in merged.items():
            self._columns.append(column)
            self._factors.append(factor)
        self._starts.append(len(self._columns))
        self._lower.append(least)
        self._upper.append(most)

    def solve(self, start: Mapping[int, float], *, limit_s: float, gap: float) -> Solved:
        """Solve; the result depends on the machine only if the limit is reached.

        Args:
            start: values of whole variables to begin with.
            limit_s: give up then, with the best so far.
            gap: a solution that costs at most so much more than the bound is good enough.

        Raises:
            UsageError: HiGHS is not installed.
        """
        try:
            import highspy
        except ImportError as error:
            raise UsageError("exact plans need HiGHS, which is not installed; pip install 'mlfabric[exact]'") from error
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._cost), len(self._lower)
        model.col_cost_ = np.array(self._cost)
        model.col_lower_, model.col_upper_ = np.zeros(len(self._cost)), np.array(self._most)
        model.row_lower_, model.row_upper_ = np.array(self._lower), np.array(self._upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._starts, np.int32)
        model.a_matrix_.index_ = np.array(self._columns, np.int32)
        model.a_matrix_.value_ = np.array(self._factors)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[whole] for whole in self._is_whole]
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        options = {"output_flag": False, "threads": 1, "time_limit": limit_s, "mip_rel_gap": 0.0, "mip_abs_gap": gap}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        if solver.passModel(model) != highspy.HighsStatus.kOk:
            raise RuntimeError("HiGHS refused a program; it logs why if output_flag is set")
        if start:
            solver.setSolution(len(start), np.array(list(start), np.int32), np.array(list(start.values())))
        solver.run()
        info = solver.getInfo()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return Solved(None, math.inf)
        found = info.primal_solution_status == 2
        return Solved(list(solver.getSolution().col_value) if found else None, info.mip_dual_bound)
