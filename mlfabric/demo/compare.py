"""Runs the comparison: the same training in a plain ring and in elastic rounds, one after the other."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mlfabric.demo.comparison import Comparison, Training
from mlfabric.demo.demo_events import Accuracy, EventTail, log_path
from mlfabric.demo.demo_run import LOOK_EVERY_S, Told, last_lines, prepare, ready, run_workers
from mlfabric.demo.scenario import Scenario
from mlfabric.errors import FabricError, UnavailableError
from mlfabric.launch.fabric import Fabric
from mlfabric.launch.fabric_services import FabricOptions
from mlfabric.launch.first_of import first_of
from mlfabric.launch.processes import Nursery, Program

__all__ = ["Followed", "run_comparison"]

BEGIN_WITHIN_S = 120.0
SAID = {
    "ring": "the same model without a server, over the same links: a plain ring",
    "elastic": "the same model without a server, over the same links: elastic rounds",
}

Followed = Callable[[str, Sequence[Accuracy]], None]
"""Called now and then while workers train: with the method, and all accuracies until now."""


async def run_comparison(nursery: Nursery, folder: Path, follow: Followed, told: Told) -> Comparison:
    """Train the scenario in ``folder`` in a ring and in elastic rounds, until each is accurate enough or gives up.

    Raises:
        FabricError: a process failed; says which, and shows its last lines.
    """
    scenario = Scenario.load(folder)
    told("starting a scheduler for the comparison")

    async def work(fabric: Fabric) -> Comparison:
        await ready(fabric, folder)
        trainings = {}
        for method, said in SAID.items():
            told(said)
            trainings[method] = await _train(nursery, fabric.scheduler, scenario, folder, method, follow)
        return Comparison(scenario=scenario, **trainings)

    return await Fabric(nursery, FabricOptions(port=0, log_level="warning")).run(work)


async def _train(
    nursery: Nursery, scheduler: str, scenario: Scenario, folder: Path, method: str, follow: Followed
) -> Training:
    own = folder / method
    shutil.rmtree(own, ignore_errors=True)
    prepare(own, scenario)
    tail, found = EventTail(log_path(own, 0)), list[Accuracy]()

    def look() -> None:
        found.extend(event for event in tail.read() if isinstance(event, Accuracy))
        follow(method, found)

    async def working() -> None:
        command = ("-P", "-m", "mlfabric.demo.compared_trainer", method, str(own))
        await run_workers(nursery, scheduler, scenario, folder, command)

    await first_of(_evaluating(nursery, own, folder), working(), _given_up(look, found, scenario, folder))
    look()
    for path in own.glob("*.snapshot"):
        path.unlink()
    return Training(accuracies=found, wanted=scenario.compared_accuracy)


async def _evaluating(nursery: Nursery, own: Path, folder: Path) -> None:
    argv = (sys.executable, "-P", "-m", "mlfabric.demo.snapshots", str(own))
    process = await nursery.start(Program(name="evaluation", argv=argv, environment=os.environ))
    try:
        if code := await process.wait():
            raise FabricError(f"the evaluation failed with code {code}{last_lines(folder)}")
    finally:
        await nursery.end([process])


async def _given_up(look: Callable[[], None], found: Sequence[Accuracy], scenario: Scenario, folder: Path) -> None:
    """Look now and then; return when training has taken too long.

    Raises:
        UnavailableError: training did not begin.
    """
    began_s = time.monotonic()
    while not found or time.monotonic() - found[0].at_ns / 1e9 < scenario.compared_longest_s:
        if not found and time.monotonic() - began_s > BEGIN_WITHIN_S:
            raise UnavailableError(f"the workers did not begin within {BEGIN_WITHIN_S:g} s{last_lines(folder)}")
        await asyncio.sleep(LOOK_EVERY_S)
        look()
