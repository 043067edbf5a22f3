"""What is shown while the workers train: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mlfabric.demo.demo_events import Accuracy, Applied, Event, EventTail, NotApplied, log_path
from mlfabric.demo.scenario import Scenario

__all__ = ["Watcher", "describe"]

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 5.0


def describe(events: Sequence[Event], tau_max: int, now_ns: int) -> str:
    """Say how far training is: accuracy, rate, delays, drops.

    Args:
        events: all that happened until now.
        tau_max: delay bound.
        now_ns: the machine's monotonic clock.
    """
    accuracies = sorted((e.at_ns, e.accuracy) for e in events if isinstance(e, Accuracy))
    applied = [e for e in events if isinstance(e, Applied)]
    dropped = sum(isinstance(e, NotApplied) for e in events)
    delays = [e.tau for e in applied] or [0]
    lately = sum(now_ns - e.at_ns < RATE_OVER_S * 1e9 for e in applied)
    accuracy = f"{accuracies[-1][1]:.3f}" if accuracies else "  -  "
    return (
        f"accuracy {accuracy}  {lately / RATE_OVER_S:4.1f}/s  "
        f"delay {sum(delays) / len(delays):.1f}, max {max(delays)} of {tau_max}  dropped {dropped}"
    )


class Watcher:
    """Reads the workers' logs and shows how it goes; a context manager around the run.

    Args:
        console: where it is shown.
        scenario: what is run.
        folder: where the logs are.
    """

    def __init__(self, console: Console, scenario: Scenario, folder: Path) -> None:
        self.events: list[Event] = []
        self._console = console
        self._scenario = scenario
        self._tails = [EventTail(log_path(folder, rank)) for rank in range(scenario.workers)]
        self._next_line_s = 0.0
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=scenario.updates, text="", visible=False)

    def tell(self, phase: str) -> None:
        """Show that a phase begins."""
        self._console.print(phase, highlight=False, markup=False)

    def look(self) -> None:
        """Take in what happened since the last look, and show it."""
        for tail in self._tails:
            self.events += tail.read()
        version = max((e.version for e in self.events if isinstance(e, Applied)), default=0)
        if version == 0:
            return
        text = describe(self.events, self._scenario.tau_max, time.monotonic_ns())
        done = min(version, self._scenario.updates)
        if self._console.is_terminal:
            self._progress.update(self._task, completed=done, text=text, visible=True)
            self._progress.refresh()
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + PLAIN_EVERY_S
            self.tell(f"{done:4d}/{self._scenario.updates} updates  {text}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
