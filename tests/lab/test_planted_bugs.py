"""Bugs that are planted in the product, one at a time: the storms must find each."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from mlfabric.lab.playing import Run, drawn, play

from .planted import BUGS, GOSSIP_BUGS, STEP_BUGS

MOST_SEEDS = 300
EVENTS = 20_000


def fits(run: Run, plant: Callable[[pytest.MonkeyPatch], None]) -> bool:
    """Tell whether a bug is in what a run plays."""
    if run.rounds is None:
        return plant in BUGS
    return plant in (GOSSIP_BUGS if run.method.is_gossip else STEP_BUGS)


@pytest.mark.parametrize("plant", [*BUGS, *STEP_BUGS, *GOSSIP_BUGS], ids=lambda plant: plant.__name__)
def test_a_storm_finds_the_bug(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch, compiled_planner) -> None:
    plant(monkeypatch)
    seeds = dict.fromkeys((*(BUGS | STEP_BUGS | GOSSIP_BUGS)[plant], *range(MOST_SEEDS)))
    for run in (drawn(seed, EVENTS) for seed in seeds):
        if not fits(run, plant):
            continue
        try:
            play(run, 1)
        except Exception:
            return
        finally:
            gc.collect()
    pytest.fail(f"none of {MOST_SEEDS} storms noticed")
