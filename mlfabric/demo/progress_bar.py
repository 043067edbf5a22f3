"""What is shown while workers train: a bar for each training on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from mlfabric.demo.demo_events import Accuracy, Applied, Event, EventTail, NotApplied, log_path
from mlfabric.demo.scenario import Scenario

__all__ = ["Bars", "Watcher", "describe"]

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


class Bars:
    """One bar for each training; a context manager around all of them.

    Args:
        console: where they are shown.
        trainings: their names, in order; each has its bar from the beginning.
    """

    def __init__(self, console: Console, trainings: Sequence[str]) -> None:
        self._console = console
        self._next_line_s = 0.0
        self._progress = Progress(
            TextColumn("{task.description:<7}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {name: self._progress.add_task(name, total=1.0, text="") for name in trainings}

    def tell(self, phase: str) -> None:
        """Show that a phase begins."""
        self._console.print(phase, highlight=False, markup=False)
        self._next_line_s = 0.0

    def show(self, training: str, share: float, text: str) -> None:
        """Show how far a training is.

        Args:
            training: its name.
            share: 0 to 1.
            text: said beside the bar.
        """
        if self._console.is_terminal:
            self._progress.update(self._tasks[training], completed=share, text=text)
            self._progress.refresh()
        elif time.monotonic() >= self._next_line_s:
            self.tell(text)
            self._next_line_s = time.monotonic() + PLAIN_EVERY_S

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class Watcher:
    """Reads the workers' logs of the training through a server, and shows how it goes.

    Args:
        bars: where it is shown.
        training: name of its bar.
        scenario: what is run.
        folder: where the logs are.
    """

    def __init__(self, bars: Bars, training: str, scenario: Scenario, folder: Path) -> None:
        self.events: list[Event] = []
        self._bars = bars
        self._training = training
        self._scenario = scenario
        self._tails = [EventTail(log_path(folder, rank)) for rank in range(scenario.workers)]

    def look(self) -> None:
        """Take in what happened since the last look, and show it."""
        for tail in self._tails:
            self.events += tail.read()
        version = max((e.version for e in self.events if isinstance(e, Applied)), default=0)
        if version:
            done, wanted = min(version, self._scenario.updates), self._scenario.updates
            text = describe(self.events, self._scenario.tau_max, time.monotonic_ns())
            self._bars.show(self._training, done / wanted, f"{done:4d}/{wanted} updates  {text}")
