"""One run from beginning to end: a fabric, the workers, what the scheduler counted, the judge. All real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import webbrowser
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfabric.demo.demo_events import log_path
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import CHECKPOINTS, Verdict
from mlfabric.errors import FabricError, UnavailableError, UsageError
from mlfabric.launch.fabric import Fabric
from mlfabric.launch.fabric_services import FabricOptions
from mlfabric.launch.first_of import first_of
from mlfabric.launch.processes import Nursery, Output, Program, Work, launch
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.launch.workers import JobOptions, run_job

__all__ = [
    "HISTORY",
    "LOOK_EVERY_S",
    "OUTPUT_FILE",
    "Beside",
    "Counted",
    "Look",
    "Share",
    "Told",
    "last_lines",
    "launched",
    "prepare",
    "ready",
    "run_scenario",
    "run_workers",
]

OUTPUT_FILE = "output.log"
HISTORY = "history"
START_WITHIN_S = 60.0
END_WITHIN_S = 60.0
LOOK_EVERY_S = 0.25
SHOWN_LINES = 12

Look = Callable[[], None]
"""Called now and then while the workers train."""
Told = Callable[[str], None]
"""Told of each phase that begins."""
Beside = Callable[[str], Coroutine[Any, Any, None]]
"""Runs while the workers train, and never ends by itself; given the scheduler's address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What became of one worker's updates, as the scheduler counted them."""

    worker: str
    committed: int
    dropped: int
    dropped_by_cause: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the scheduler says at the end."""

    applied: int
    dropped: int
    lost: int
    tau_max: int
    delay_max: int
    delay_p50: float
    plans: int
    mean_plan_ms: float
    shares: tuple[Share, ...]


def prepare(folder: Path, scenario: Scenario) -> None:
    """Make ``folder``, remove what an earlier run left in it, and write the scenario there.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in (CHECKPOINTS, HISTORY):
            shutil.rmtree(folder / left, ignore_errors=True)
        for rank in range(scenario.workers):
            log_path(folder, rank).unlink(missing_ok=True)
        scenario.save(folder)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; give a folder that this process may write") from error


def launched(work: Work, folder: Path) -> int:
    """Do work that starts processes, as :func:`launch` does; what they print goes to ``output.log`` in ``folder``."""
    with (folder / OUTPUT_FILE).open("wb") as file:
        return asyncio.run(launch(work, Output(file, file)))


async def run_scenario(
    nursery: Nursery, folder: Path, look: Look, told: Told, beside: Beside | None = None, *, shows: bool = False
) -> tuple[Counted, Verdict]:
    """Run the scenario in ``folder``: train through a fabric, evaluate, train alone.

    Args:
        shows: open the status page in a browser.

    Raises:
        FabricError: a process failed; says which, and shows its last lines.
    """
    scenario = Scenario.load(folder)
    told("starting scheduler, server and monitor")
    options = FabricOptions(
        port=0,
        server_up=scenario.server_rate,
        server_down=scenario.server_rate,
        server_host="server-0",
        checkpoint_dir=folder / CHECKPOINTS,
        history=folder / HISTORY,
        replica_div_max_updates=scenario.replica_div_max_updates,
        log_level="warning",
    )

    async def work(fabric: Fabric) -> Counted:
        page = await ready(fabric, folder)
        is_shown = shows and webbrowser.open(page)
        told(f"what happens, in {'your' if is_shown else 'a'} browser: {page}")
        told(f"training with {scenario.workers} workers")
        others = () if beside is None else (beside(fabric.scheduler),)
        await first_of(_train(nursery, fabric.scheduler, scenario, folder), _looking(look), *others)
        look()
        return await _count(fabric.scheduler)

    counted = await Fabric(nursery, options).run(work)
    told("training the same model in one process")
    return counted, await _judge(nursery, folder)


async def ready(fabric: Fabric, folder: Path) -> str:
    """Wait until workers can train; return the address of the status page.

    Raises:
        UnavailableError: the fabric does not start; shows its last lines, which are in ``folder``.
    """
    try:
        async with asyncio.timeout(START_WITHIN_S):
            return (await fabric.ready()).page
    except TimeoutError as error:
        raise UnavailableError(f"the fabric did not start within {START_WITHIN_S:g} s{last_lines(folder)}") from error


async def _train(nursery: Nursery, scheduler: str, scenario: Scenario, folder: Path) -> None:
    limit_s = START_WITHIN_S + scenario.longest_s + END_WITHIN_S
    try:
        async with asyncio.timeout(limit_s):
            await run_workers(nursery, scheduler, scenario, folder, ("-P", "-m", "mlfabric.demo.trainer", str(folder)))
    except TimeoutError as error:
        raise UnavailableError(f"the workers did not end within {limit_s:g} s{last_lines(folder)}") from error


async def run_workers(
    nursery: Nursery, scheduler: str, scenario: Scenario, folder: Path, command: tuple[str, ...]
) -> None:
    """Run a process for each worker of the scenario, with its emulated network card, until all have ended.

    Args:
        scheduler: ``host:port`` of the fabric's.
        folder: where ``output.log`` is.
        command: what each of them runs, as in ``JobOptions``.

    Raises:
        FabricError: one failed.
    """
    job = JobOptions(
        command=command,
        workers=scenario.workers,
        scheduler=scheduler,
        host_per_worker=True,
        up=scenario.rates,
        down=scenario.rates,
    )
    if code := await run_job(nursery, job):
        raise FabricError(f"a worker failed with code {code}{last_lines(folder)}")


async def _looking(look: Look) -> None:
    while True:
        look()
        await asyncio.sleep(LOOK_EVERY_S)


async def _count(scheduler: str) -> Counted:
    async with StatusReader(scheduler) as reader:
        status = await reader.read()
    (model,) = status.models
    shares = tuple(
        Share(worker=w.name, committed=w.committed, dropped=w.dropped, dropped_by_cause=dict(w.dropped_by_cause))
        for w in status.workers
    )
    return Counted(
        applied=model.committed,
        dropped=model.dropped,
        lost=model.lost,
        tau_max=model.tau_max,
        delay_max=model.delay_max,
        delay_p50=model.delay_p50,
        plans=status.planner.plans,
        mean_plan_ms=status.planner.mean_plan_ms,
        shares=shares,
    )


async def _judge(nursery: Nursery, folder: Path) -> Verdict:
    argv = (sys.executable, "-P", "-m", "mlfabric.demo.judge", str(folder))
    process = await nursery.start(Program(name="judge", argv=argv, environment=os.environ))
    code = await process.wait()
    if code:
        raise FabricError(f"the evaluation failed with code {code}{last_lines(folder)}")
    return Verdict.load(folder)


def last_lines(folder: Path) -> str:
    """Return the last lines that the processes printed into ``output.log`` in ``folder``, to end an error message."""
    path = folder / OUTPUT_FILE
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return "\n".join([f"; the end of {path}:", *(f"  {line}" for line in lines[-SHOWN_LINES:])])
