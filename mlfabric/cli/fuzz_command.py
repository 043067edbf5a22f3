"""``mlfabric fuzz``: whole fabrics in virtual time under every fault, seed after seed; each can be played again."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.errors import FabricError

if TYPE_CHECKING:
    from mlfabric.simulator.playing import Played

__all__ = ["add_to"]

EVENTS = 4800
"""About 200 more happen until everything is quiet."""
STORY_LINES = 60
_LINE_EVERY = 200


def fuzz(
    seeds: Annotated[int, typer.Option(help="How many to play.", min=1)] = 100,
    first: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    events: Annotated[int, typer.Option(help="Of each, until its storm is over.", min=1)] = EVENTS,
    jobs: Annotated[int, typer.Option(help="Processes that play; 0 for one on each processor.", min=0)] = 0,
    story: Annotated[int, typer.Option(help="How many of a failure's last events to tell.", min=1)] = STORY_LINES,
) -> None:
    """Play whole fabrics under every fault, in virtual time.

    The state machines are the real ones. Members die, hang, are cut off and come back, messages are late, repeated or
    lost, disks fill up, clocks differ. After every event is checked that nothing was lost or applied twice, and that
    every bound holds. A seed that fails says how to play it again; then the exit code is 1.
    """
    from mlfabric.simulator.playing import play

    numbers = range(first, first + seeds)
    jobs = min(jobs or len(os.sched_getaffinity(0)), seeds)
    failed, played, faults = 0, 0, Counter[str]()
    work = partial(play, events=events, story_lines=story)
    with _played(work, numbers, jobs) as outcomes, _bar(seeds) as advance:
        for found in outcomes:
            advance()
            if found.summary is None:
                failed += 1
                _tell(found, events, story)
            else:
                played += found.summary.events
                faults += found.summary.faults
    print(f"{seeds} seeds, {played:,} events, {faults.total():,} faults: {failed or 'none'} failed")
    if failed:
        raise typer.Exit(1)


def _tell(found: Played, events: int, story: int) -> None:
    again = f"mlfabric fuzz --seeds 1 --first {found.seed} --events {events} --story {story}"
    print(f"{found.story}\nseed {found.seed} failed: {found.failure}\nplay it again: {again}\n", flush=True)


@contextmanager
def _played(work: Callable[[int], Played], numbers: range, jobs: int) -> Iterator[Iterator[Played]]:
    """Give what comes of each seed, in order: played here if one process is enough, else in others that end with it."""
    from mlfabric.simulator.playing import prepared

    with prepared():
        if jobs == 1:
            yield map(work, numbers)
            return
        quiet = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(jobs, get_context("fork"), quiet) as pool:
            try:
                yield pool.map(work, numbers)
            except BrokenProcessPool as error:
                raise FabricError("a process that played died; is there enough memory for --jobs?") from error
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _bar(seeds: int) -> Iterator[Callable[[], None]]:
    """Show how many seeds are played: with a bar if somebody looks on, else a line now and then."""
    if not sys.stderr.isatty():
        done = count(1)

        def advance() -> None:
            if (number := next(done)) % _LINE_EVERY == 0:
                print(f"{number} of {seeds} seeds", file=sys.stderr, flush=True)

        yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=seeds)
        yield lambda: bar.advance(task)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric fuzz",
            "mlfabric fuzz --seeds 2000",
            "mlfabric fuzz --seeds 1 --first 1234 --story 500",
        )
    )(fuzz)
