"""Playing one fabric after another, each drawn for its seed: what ``mlfabric fuzz`` does in each of its processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mlfabric.planning import warm_up
from mlfabric.simulator.config import SimulationConfig, Summary
from mlfabric.simulator.simulation import Simulation

__all__ = ["Played", "play", "prepared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one seed.

    Args:
        seed: of the fabric.
        summary: of the run; None if it failed.
        failure: what does not hold, "" if everything does.
        story: the configuration and the last events of a run that failed.
    """

    seed: int
    summary: Summary | None = None
    failure: str = ""
    story: str = ""


@contextmanager
def prepared() -> Iterator[None]:
    """Load the planner, without which nothing is summed; let garbage be collected after each run only."""
    warm_up(lambda line: None)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def play(seed: int, events: int, story_lines: int) -> Played:
    """Play the fabric that is drawn for a seed, of any kind, with all that can go wrong.

    Args:
        events: until the storm is over; those until everything is quiet come on top.
        story_lines: how many of the last events are told if it fails.
    """
    simulation = Simulation(SimulationConfig.drawn_of_any_kind(seed), story_lines)
    try:
        return Played(seed=seed, summary=simulation.run(events))
    except Exception as error:
        # Whatever it is, it is a failure of this seed, and the other seeds are played all the same.
        story = "\n".join(getattr(error, "__notes__", ()))
        return Played(seed=seed, failure=f"{type(error).__name__}: {error}", story=story)
    finally:
        del simulation
        gc.collect()
