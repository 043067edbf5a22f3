"""The figures at the end, and whether everything is as promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from mlfabric.demo.comparison import Comparison
from mlfabric.demo.demo_events import Applied, Event, NotApplied
from mlfabric.demo.demo_run import Counted
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import Verdict

__all__ = ["Results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that is known after a run.

    Args:
        scenario: what was run.
        counted: what the scheduler counted.
        verdict: how good the models are.
        comparison: elastic rounds against a plain ring.
        events: what the workers saw.
        wall_s: how long all of it took.
    """

    scenario: Scenario
    counted: Counted
    verdict: Verdict
    comparison: Comparison
    events: Sequence[Event]
    wall_s: float

    def delays(self, worker: str = "") -> Counter[int]:
        """Return how many updates were applied with which delay, of one worker or of all."""
        return Counter(e.tau for e in self.events if isinstance(e, Applied) and worker in ("", e.worker))

    def causes(self) -> Counter[str]:
        """Return how many updates were dropped for which cause."""
        return sum((Counter(share.dropped_by_cause) for share in self.counted.shares), Counter[str]())

    @property
    def updates_per_s(self) -> float:
        """Applied updates per second, from the first to the last."""
        at_ns = [e.at_ns for e in self.events if isinstance(e, Applied)]
        return (len(at_ns) - 1) * 1e9 / (max(at_ns) - min(at_ns)) if len(at_ns) > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds."""
        counted, verdict = self.counted, self.verdict
        return {
            "accuracy": verdict.accuracy,
            "single_process_accuracy": verdict.single_process_accuracy,
            "updates_applied": counted.applied,
            "updates_dropped": counted.dropped,
            "delay_bound": counted.tau_max,
            "delay_max": counted.delay_max,
            "delay_p50": counted.delay_p50,
            "wall_s": round(self.wall_s, 3),
            "plans": counted.plans,
            "mean_plan_ms": round(counted.mean_plan_ms, 4),
            "details": {
                "dropped_share": counted.dropped / max(1, counted.applied + counted.dropped),
                "updates_per_s": round(self.updates_per_s, 3),
                "delays": dict(sorted(self.delays().items())),
                "workers": {share.worker: asdict(share) for share in counted.shares},
                "comparison": self.comparison.as_json(),
                "scenario": asdict(self.scenario),
                "broken_promises": self.broken_promises(),
            },
        }

    def broken_promises(self) -> list[str]:
        """Say what is not as it should be; empty if all is well."""
        counted, verdict, scenario = self.counted, self.verdict, self.scenario
        seen = sum(self.delays().values())
        not_applied = [e for e in self.events if isinstance(e, NotApplied)]
        lost = sum(e.is_lost for e in not_applied)
        behind = verdict.single_process_accuracy - verdict.accuracy
        worst = max([counted.delay_max, *self.delays()])
        checks = [
            (worst <= counted.tau_max, f"a delay of {worst} is above the bound of {counted.tau_max}"),
            (
                counted.applied == verdict.version == seen,
                f"the scheduler counted {counted.applied} applied updates, the workers {seen}, and the model has "
                f"version {verdict.version}: these must be equal",
            ),
            (
                counted.dropped == len(not_applied) and not lost,
                f"the scheduler counted {counted.dropped} dropped updates, the workers {len(not_applied) - lost}, "
                f"and {lost} lost: the first two must be equal, and none lost",
            ),
            (
                verdict.accuracy >= scenario.least_accuracy,
                f"accuracy {verdict.accuracy:.4f} is below {scenario.least_accuracy}",
            ),
            (
                behind <= scenario.most_difference,
                f"accuracy is {behind:.4f} below that of one process; at most {scenario.most_difference} is allowed",
            ),
            (
                all(share.committed > share.dropped for share in counted.shares),
                "a worker had more updates dropped than applied",
            ),
        ]
        return [text for good, text in checks if not good]

    def tables(self) -> list[Table]:
        """Return the run's figures and each worker's share, to be printed."""
        counted, verdict = self.counted, self.verdict
        figures = Table(title="Result", title_justify="left", show_header=False)
        figures.add_column()
        figures.add_column(justify="right")
        rows = [
            ("accuracy through the fabric", f"{verdict.accuracy:.4f}"),
            ("accuracy in one process, as many updates", f"{verdict.single_process_accuracy:.4f}"),
            ("updates applied", f"{counted.applied}"),
            ("updates dropped", f"{counted.dropped}"),
            *((f"  {cause}", f"{count}") for cause, count in sorted(self.causes().items())),
            ("updates per second", f"{self.updates_per_s:.1f}"),
            ("delay: median, maximum, bound", f"{counted.delay_p50:g}, {counted.delay_max}, {counted.tau_max}"),
            ("plans, mean time", f"{counted.plans}, {counted.mean_plan_ms:.2f} ms"),
            ("wall time", f"{self.wall_s:.1f} s"),
        ]
        for row in rows:
            figures.add_row(*row)
        return [self._shares(), figures, self._compared()]

    def _compared(self) -> Table:
        wanted = f"seconds to an accuracy of {self.scenario.compared_accuracy:g}"
        table = Table(title="The same training without a server", title_justify="left")
        for name in ("gradients", wanted, "rounds", "seconds per round"):
            table.add_column(name, justify="left" if name == "gradients" else "right")
        for name, training in (("elastic rounds", self.comparison.elastic), ("plain ring", self.comparison.ring)):
            seconds = f"{training.seconds:.1f}" if training.reached else f"not within {training.seconds:.0f}"
            per_round = f"{training.seconds / max(1, training.rounds):.2f}"
            table.add_row(name, seconds, f"{training.rounds}", per_round)
        return table

    def _shares(self) -> Table:
        shares = Table(title="Workers", title_justify="left")
        for name in ("worker", "slowness", "link", "applied", "dropped", "mean delay", "max delay"):
            shares.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
        rates = self.scenario.rates or ("-",) * self.scenario.workers
        for share, slowness, rate in zip(self.counted.shares, self.scenario.slowness, rates, strict=True):
            delays = self.delays(share.worker)
            mean = sum(tau * n for tau, n in delays.items()) / max(1, delays.total())
            shares.add_row(
                *(share.worker, f"{slowness:g}", f"{rate}bit/s" if rate != "-" else rate),
                *(f"{share.committed}", f"{share.dropped}", f"{mean:.1f}", f"{max(delays, default=0)}"),
            )
        return shares
