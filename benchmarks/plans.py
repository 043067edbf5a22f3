"""What plans cost, and whether they keep their promises: random problems as the live scheduler has them, by seed.

A net for changes of the planner: keep the figures of each problem, change the planner, and compare. Asynchronous plans
make the mean small, those with a barrier and rounds of AllReduce the end.

``mlfabric bench plans --set keep=before.jsonl``, two minutes; then ``mlfabric bench plans --set against=before.jsonl``.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.planning_problems import KINDS, problem
from mlfabric.cli.json_files import check_writable
from mlfabric.errors import UsageError
from mlfabric.planning import Plan, plan, warm_up

__all__ = ["Figures", "compared", "figures", "run"]

COSTS = ("last_ms", "mean_ms")
PROGRESS_EVERY = 200
HELD = "holds"


class Figures(NamedTuple):
    """What came of one problem.

    Args:
        shape: the problem in a few words.
        last_ms, mean_ms: from now until the last commit, or the last get's answer, and the mean.
        planned: how many commits and answers.
        dropped, deferred: how many updates and gets have none.
        check: ``HELD``, or which promise the plan breaks.
    """

    seed: int
    kind: str
    shape: str
    last_ms: float
    mean_ms: float
    planned: int
    dropped: int
    deferred: int
    check: str


def run(problems: int = 2000, first: int = 0, keep: str = "", against: str = "") -> dict[str, Any]:
    """Plan random problems, check each plan, and sum up what they cost.

    Args:
        problems: how many, > 0.
        first: seed of the first one; the others follow.
        keep: a file to be written with the figures of each problem, a line of JSON each; "" for none.
        against: a file that an earlier run kept, with the same problems at least; "" for none.

    Returns:
        ``problems``, ``broken``: how many plans break a promise, and ``first_broken``: the first few; by kind the
        means of ``last_ms`` and ``mean_ms``, and the sums of ``planned``, ``dropped`` and ``deferred``; with
        ``against`` also what :func:`compared` returns.

    Raises:
        UsageError: a file cannot be read or written, or was kept of other problems.
    """
    before = _read(against) if against else {}
    check_writable(Path(keep) if keep else None)
    warm_up(_progress)
    found = []
    for seed in range(first, first + problems):
        if (seed - first) % PROGRESS_EVERY == 0:
            _progress(f"{seed - first} of {problems} problems")
        found.append(figures(seed))
    if keep:
        Path(keep).write_text("".join(json.dumps(one._asdict()) + "\n" for one in found), encoding="utf-8")
    summary = _summary(found)
    return summary | {"against": compared(before, found)} if against else summary


def figures(seed: int) -> Figures:
    """Plan one problem, and check the plan."""
    drawn = problem(seed)
    made = plan(drawn.batch, drawn.network, drawn.state, drawn.config)
    try:
        made.validate(drawn.network)
        check = HELD
    except AssertionError as error:
        check = str(error).splitlines()[0][:200]
    ends_ms = [(at_ns - drawn.state.now_ns) / 1e6 for at_ns in _ends_ns(made)]
    return Figures(
        seed=seed,
        kind=drawn.kind,
        shape=drawn.shape,
        last_ms=round(max(ends_ms, default=0.0), 3),
        mean_ms=round(_mean(ends_ms), 3),
        planned=len(ends_ms),
        dropped=len(made.drops),
        deferred=len(made.deferred),
        check=check,
    )


def _ends_ns(made: Plan) -> list[int]:
    return [commit.commit_ns for commit in made.commits] + [get.arrive_ns for get in made.gets]


def compared(before: Mapping[int, Figures], after: Iterable[Figures]) -> dict[str, Any]:
    """Compare the figures of the same problems before and after a change.

    Returns:
        For each cost how many plans are ``same``, ``better`` and ``worse``, with ``mean_ratio`` (geometric) and
        ``worst_ratio`` of after to before, and the ``worst_seed``; only problems in which as many are planned count.
        ``planned_fewer``, ``planned_more``: the others.

    Raises:
        UsageError: a problem is not among those before, or was another one.
    """
    pairs = []
    for figure in after:
        former = before.get(figure.seed)
        if former is None or (former.kind, former.shape) != (figure.kind, figure.shape):
            raise UsageError(f"the file has no problem {figure.seed}, {figure.shape}; keep those of the same problems")
        pairs.append((former, figure))
    alike = [(old, new) for old, new in pairs if old.planned == new.planned]
    found: dict[str, Any] = {cost: _change(alike, cost) for cost in COSTS}
    found["planned_fewer"] = sum(new.planned < old.planned for old, new in pairs)
    found["planned_more"] = sum(new.planned > old.planned for old, new in pairs)
    return found


def _change(pairs: Sequence[tuple[Figures, Figures]], cost: str) -> dict[str, Any]:
    costs = [(getattr(old, cost), getattr(new, cost), new) for old, new in pairs]
    ratios = [(_ratio(old, new), figure.kind, figure.seed) for old, new, figure in costs]
    worst, _, seed = max(ratios, default=(1.0, "", 0))
    found: dict[str, Any] = {
        "same": sum(ratio == 1 for ratio, _, _ in ratios),
        "better": sum(ratio < 1 for ratio, _, _ in ratios),
        "worse": sum(ratio > 1 for ratio, _, _ in ratios),
        "worst_ratio": worst,
        "worst_seed": seed,
        "mean_ratio": _geometric_mean([ratio for ratio, _, _ in ratios]),
    }
    for kind in KINDS:
        found[f"mean_ratio_{kind}"] = _geometric_mean([ratio for ratio, of, _ in ratios if of == kind])
    return found


def _ratio(old: float, new: float) -> float:
    """Return how many times as much the new cost is; a microsecond is the least that counts."""
    return max(new, 0.001) / max(old, 0.001)


def _summary(found: Sequence[Figures]) -> dict[str, Any]:
    broken = [f"{one.seed}: {one.check}" for one in found if one.check != HELD]
    summary: dict[str, Any] = {"problems": len(found), "broken": len(broken), "first_broken": broken[:5]}
    for kind in KINDS:
        of_kind = [one for one in found if one.kind == kind]
        means = {cost: _mean([getattr(one, cost) for one in of_kind]) for cost in COSTS}
        sums = {name: sum(getattr(one, name) for one in of_kind) for name in ("planned", "dropped", "deferred")}
        summary[kind] = {"problems": len(of_kind)} | means | sums
    return summary


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else 1.0


def _read(name: str) -> dict[int, Figures]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        kept = [Figures(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"against={name!r}: {error}; give a file that 'mlfabric bench plans' kept") from error
    return {one.seed: one for one in kept}


def _progress(line: str) -> None:
    sys.stderr.write(f"plans: {line}\n")
