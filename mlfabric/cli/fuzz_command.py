"""``mlfabric fuzz``: whole fabrics in virtual time under every fault, seed after seed; each can be played again."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.errors import FabricError

__all__ = ["add_to"]

EVENTS = 4800
"""About 200 more happen until everything is quiet."""
COLLECTIVE_EVENTS = 20_000
"""Callbacks of the event loop; as long as the storm lasts in virtual time, if that ends before."""
STORY_LINES = 60
_LINE_EVERY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one seed.

    Args:
        seed: of the fabric.
        events: how many happened; 0 if it failed.
        faults: how many of them were faults.
        failure: what does not hold, "" if everything does.
        story: what was played and the last events, if it failed.
    """

    seed: int
    events: int = 0
    faults: int = 0
    failure: str = ""
    story: str = ""


def fuzz(
    seeds: Annotated[int, typer.Option(help="How many to play.", min=1)] = 100,
    first: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    collective: Annotated[
        bool, typer.Option("--collective", help="Play jobs without a server, with the real shells.")
    ] = False,
    events: Annotated[
        int,
        typer.Option(
            help=f"Of each, until its storm is over; 0 for {EVENTS}, or {COLLECTIVE_EVENTS} of --collective.", min=0
        ),
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Processes that play; 0 for one on each processor.", min=0)] = 0,
    story: Annotated[int, typer.Option(help="How many of a failure's last events to tell.", min=1)] = STORY_LINES,
) -> None:
    """Play whole fabrics under every fault, in virtual time.

    The state machines are the real ones. Members die, hang, are cut off and come back, messages are late, repeated or
    lost, disks fill up, clocks differ. After every event is checked that nothing was lost or applied twice, and that
    every bound holds. A seed that fails says how to play it again; then the exit code is 1.

    With --collective, AllReduce jobs and jobs of elastic and partial rounds are played. The event loop and the network
    are emulated, and all else is the real thing: the scheduler's and the workers' shells, messages, data connections.
    It is checked that every result is a sum of tensors that were given, each once; that all who get it get the same;
    that nobody misses a round without being told; and that everybody goes on after the storm.
    """
    numbers = range(first, first + seeds)
    jobs = min(jobs or len(os.sched_getaffinity(0)), seeds)
    events = events or (COLLECTIVE_EVENTS if collective else EVENTS)
    failed, happened, faults = 0, 0, 0
    work = partial(_play, play=_play_collective if collective else _play_fabric, events=events, story_lines=story)
    with _played(work, numbers, jobs) as outcomes, _bar(seeds) as advance:
        for found in outcomes:
            advance()
            happened += found.events
            faults += found.faults
            if found.failure:
                failed += 1
                again = f"--seeds 1 --first {found.seed} --events {events} --story {story}"
                again = f"mlfabric fuzz {'--collective ' if collective else ''}{again}"
                print(f"{found.story}\nseed {found.seed} failed: {found.failure}\nplay it again: {again}\n", flush=True)
    print(f"{seeds} seeds, {happened:,} events, {faults:,} faults: {failed or 'none'} failed")
    if failed:
        raise typer.Exit(1)


def _play_fabric(seed: int, events: int, story_lines: int) -> tuple[int, int]:
    """Play a fabric of any kind; return how many events and faults there were."""
    from mlfabric.simulator import Simulation, SimulationConfig

    summary = Simulation(SimulationConfig.drawn_of_any_kind(seed), story_lines).run(events)
    return summary.events, Counter(summary.faults).total()


def _play_collective(seed: int, events: int, story_lines: int) -> tuple[int, int]:
    """Play an AllReduce job; return how many callbacks and faults there were."""
    from mlfabric.lab.playing import drawn, play

    fabric, _, storm = play(drawn(seed, events), story_lines)
    return fabric.loop.turns, storm.faults.total()


def _play(seed: int, play: Callable[[int, int, int], tuple[int, int]], events: int, story_lines: int) -> Played:
    try:
        happened, faults = play(seed, events, story_lines)
        return Played(seed=seed, events=happened, faults=faults)
    except Exception as error:
        # Whatever it is, it is a failure of this seed, and the other seeds are played all the same.
        story = "\n".join(getattr(error, "__notes__", ()))
        return Played(seed=seed, failure=f"{type(error).__name__}: {error}", story=story)
    finally:
        gc.collect()


@contextmanager
def _prepared() -> Iterator[None]:
    """Load the planner, without which nothing is summed; let garbage be collected after each run only; log nothing."""
    from mlfabric.planning import warm_up
    from mlfabric.transfer.add_kernels import load

    warm_up(lambda line: None)
    load()
    gc.collect()
    gc.freeze()
    gc.disable()
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        gc.unfreeze()


@contextmanager
def _played(work: Callable[[int], Played], numbers: range, jobs: int) -> Iterator[Iterator[Played]]:
    """Give what comes of each seed, in order: played here if one process is enough, else in others that end with it."""
    with _prepared():
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
            "mlfabric fuzz --collective --seeds 200",
        )
    )(fuzz)
