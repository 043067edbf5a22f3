"""``mlfabric bench faults``: real processes are killed, stopped and cut off, many times over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.faults.scenarios import SCENARIOS
from benchmarks.faults.trials import Trial, summary, trials
from benchmarks.testbed.processes import Launcher
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.planning import warm_up

__all__ = ["COLUMNS", "PRELOADED", "chosen", "is_broken", "row", "run"]

MOST_TRIALS = 1000
PRELOADED = ("benchmarks.faults.cluster", "mlfabric.cli.scheduler_command", "mlfabric.scheduler.runner")
COLUMNS = ("scenario", "survived>", "recovery p50>", "max>", "late>", "lost>", "twice>", "bounds broken>")
Told = Callable[[str], None]


def chosen(names: str, count: int) -> list[str]:
    """Return the scenarios that are wanted, all unless some are named, joined by commas.

    Raises:
        UsageError: there is none of a name, or the number of trials cannot be.
    """
    if not 1 <= count <= MOST_TRIALS:
        raise UsageError(f"--trials {count}; allowed: 1 to {MOST_TRIALS}")
    wanted = names.split(",") if names else list(SCENARIOS)
    for name in wanted:
        if name not in SCENARIOS:
            raise UsageError(f"--scenarios {name!r}; allowed: {', '.join(SCENARIOS)}")
    return wanted


def run(names: Sequence[str], count: int, told: Told, folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Run trials of scenarios.

    Args:
        names: of scenarios.
        count: trials of each.
        told: is given a line of text for every trial.
        folder: for the logs of all processes; without one they go at the end.

    Returns:
        The figures of each scenario; one that this computer cannot have is left out, which is told.
    """
    warm_up(told)
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlfabric-faults-")))
        launcher = stack.enter_context(Launcher(place / "output", preloaded=PRELOADED))
        for name in names:
            done: list[Trial] = []
            try:
                for trial in trials(SCENARIOS[name], count, launcher, place, name):
                    done.append(trial)
                    told(f"{name} {len(done)}/{count}: {_in_short(trial)}")
            except UnavailableError as error:
                told(f"{name} is left out: {error}")
                continue
            found[name] = summary(SCENARIOS[name], done)
    return found


def _in_short(trial: Trial) -> str:
    if trial.verdict is None:
        return f"not survived: {trial.failure.splitlines()[0]}"
    verdict, recovery_s = trial.verdict, trial.recovery_s or 0.0
    wrong = f"; {verdict.broken[0]}" if verdict.broken else ""
    return f"recovered in {recovery_s:.3f} s, {verdict.lost} lost, {verdict.twice} twice{wrong}"


def is_broken(figures: dict[str, Any]) -> bool:
    """Tell whether a scenario's figures are anything but what is promised; times are judged by who reads them."""
    return bool(figures["survived"] < figures["trials"] or figures["updates_twice"] or figures["bound_violations"])


def row(name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    """Return a scenario's row of the table whose columns are ``COLUMNS``."""
    p50_s, most_s = figures["recovery_p50_s"], figures["recovery_max_s"]
    return (
        f"{SCENARIOS[name].what} ({name})",
        f"{figures['survived']}/{figures['trials']}",
        "-" if p50_s is None else f"{p50_s:.3f} s",
        "-" if most_s is None else f"{most_s:.3f} s",
        str(figures["recovered_late"]),
        str(figures["updates_lost"]),
        str(figures["updates_twice"]),
        str(figures["bound_violations"]),
    )
