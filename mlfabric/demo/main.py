"""The demonstration from beginning to end: run, compare, show, write the report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from mlfabric.demo.compare import run_comparison
from mlfabric.demo.comparison import Comparison
from mlfabric.demo.demo_events import Accuracy
from mlfabric.demo.demo_run import HISTORY, Counted, launched, prepare, run_scenario
from mlfabric.demo.demo_summary import Results
from mlfabric.demo.pictures import draw_delays, draw_timeline
from mlfabric.demo.progress_bar import Bars, Watcher
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import Verdict
from mlfabric.errors import UsageError
from mlfabric.launch.processes import Nursery
from mlfabric.status_page.report import report_of

__all__ = ["RUN_FOLDER", "run"]

RUN_FOLDER = "run"
REPORT_FILES = ("report.html", "summary.json", "delay.png", "timeline.png")
EXIT_BROKEN_PROMISE = 1
THROUGH_SERVER = "server"


def run(report: Path, seed: int = 0, scenario: Scenario | None = None, *, shows: bool = False) -> int:
    """Train a model through a fabric of real processes on this machine, and compare with plain training.

    Then compare elastic rounds with a plain ring: the time to the same accuracy over the same links, both measured.

    Args:
        report: folder for the results, made if need be: ``report.html``, which shows the whole run, ``summary.json``,
            ``delay.png``, ``timeline.png``; what the processes wrote is in ``run/``.
        seed: of everything that is drawn.
        scenario: what is run; the default one unless given. Its own seed is not used.
        shows: open the fabric's status page in a browser.

    Returns:
        0; 1 if a promise was broken; 128 + the signal's number if a signal ended it.

    Raises:
        UsageError: the report cannot be written, or a package is missing.
        FabricError: a process failed.
    """
    if find_spec("sklearn") is None:
        raise UsageError("the demonstration needs scikit-learn; pip install 'mlfabric[demo]'")
    began_s = time.monotonic()
    scenario = replace(scenario or Scenario(), seed=seed)
    folder = report / RUN_FOLDER
    prepare(folder, scenario)
    for name in REPORT_FILES:
        (report / name).unlink(missing_ok=True)
    console = Console()
    found: list[tuple[Counted, Verdict, Comparison]] = []
    with Bars(console, (THROUGH_SERVER, "ring", "elastic")) as bars:
        watcher = Watcher(bars, THROUGH_SERVER, scenario, folder)

        def follow(method: str, accuracies: Sequence[Accuracy]) -> None:
            if accuracies:
                wanted, last = scenario.compared_accuracy, accuracies[-1]
                text = f"accuracy {last.accuracy:.3f} of {wanted:g} after {last.version} rounds"
                bars.show(method, min(1.0, last.accuracy / wanted), text)

        async def work(nursery: Nursery) -> int:
            counted, verdict = await run_scenario(nursery, folder, watcher.look, bars.tell, shows=shows)
            found.append((counted, verdict, await run_comparison(nursery, folder, follow, bars.tell)))
            return 0

        code = launched(work, folder)
    if code:
        return code
    counted, verdict, comparison = found[0]
    results = Results(
        scenario=scenario,
        counted=counted,
        verdict=verdict,
        comparison=comparison,
        events=watcher.events,
        wall_s=time.monotonic() - began_s,
    )
    return _finish(results, report, console)


def _page(results: Results, history: Path) -> str:
    """Return the report of the run, with the accuracies that workers found."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    found = sorted((event.at_ns, event.accuracy) for event in results.events if isinstance(event, Accuracy))
    lines = (json.dumps({"kind": "accuracy", "at": (at_ns + offset_ns) / 1e6, "value": one}) for at_ns, one in found)
    (history / "accuracy.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return report_of(history)[0]


def _finish(results: Results, report: Path, console: Console) -> int:
    """Write the report and print what is in it; return the exit code."""
    (report / "report.html").write_text(_page(results, report / RUN_FOLDER / HISTORY), encoding="utf-8")
    draw_delays(results, report / "delay.png")
    draw_timeline(results, report / "timeline.png")
    (report / "summary.json").write_text(json.dumps(results.as_json(), indent=2) + "\n", encoding="utf-8")
    for table in results.tables():
        console.print(table)
    console.print(f"written: {', '.join(str(report / name) for name in REPORT_FILES)}", highlight=False)
    broken = results.broken_promises()
    for promise in broken:
        console.print(f"not as promised: {promise}", highlight=False, markup=False)
    console.print(f"setting of the comparison: {results.comparison.setting()}", highlight=False, markup=False)
    console.print(results.comparison.verdict(), highlight=False, markup=False, style="bold")
    return EXIT_BROKEN_PROMISE if broken else 0
