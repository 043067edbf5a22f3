"""How long two trainings took to the same accuracy that differ in nothing but how gradients are averaged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlfabric.demo.demo_events import Accuracy
from mlfabric.demo.scenario import Scenario

__all__ = ["Comparison", "Training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How accurate the model was, and when.

    Args:
        accuracies: one or more, of each version that worker 0 had, from version 0 on, in order.
        wanted: training ends with the first accuracy of so much.
    """

    accuracies: Sequence[Accuracy]
    wanted: float

    @property
    def reached(self) -> bool:
        """Whether the model became as accurate as wanted."""
        return self.accuracies[-1].accuracy >= self.wanted

    @property
    def seconds(self) -> float:
        """How long that took from the first step on; if it is not reached, for how long the model was evaluated."""
        return (self.accuracies[-1].at_ns - self.accuracies[0].at_ns) / 1e9

    @property
    def rounds(self) -> int:
        """How many steps the model made in that time."""
        return self.accuracies[-1].version

    @property
    def best(self) -> float:
        """The greatest accuracy of all."""
        return max(found.accuracy for found in self.accuracies)

    def as_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds of it."""
        return {
            "reached": self.reached,
            "seconds": round(self.seconds, 3),
            "rounds": self.rounds,
            "best_accuracy": self.best,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Elastic rounds against a plain ring."""

    scenario: Scenario
    ring: Training
    elastic: Training

    def verdict(self) -> str:
        """Say how many times as fast elastic rounds were."""
        wanted = f"{self.scenario.compared_accuracy:.0%} accuracy".replace("%", " %")
        ring, elastic = self.ring, self.elastic
        if not elastic.reached:
            how_ring = f"the plain ring took {ring.seconds:.1f} s" if ring.reached else "the plain ring did not, either"
            return f"elastic rounds did not reach {wanted} within {elastic.seconds:.1f} s; {how_ring}"
        times = f"{ring.seconds / elastic.seconds:.1f} times as fast as a plain ring to {wanted}"
        if ring.reached:
            return f"{times}: {elastic.seconds:.1f} s against {ring.seconds:.1f} s"
        return f"at least {times}: {elastic.seconds:.1f} s; the ring had {ring.best:.3f} after {ring.seconds:.1f} s"

    def setting(self) -> str:
        """Say in which setting."""
        s = self.scenario
        least_s, longest_s = s.pause_s
        steps = ", ".join(f"{1000 * s.compared_pace_s * slowness:.0f}" for slowness in s.slowness)
        links = f"links of {', '.join(s.rates)} bit/s" if s.rates else "links that nothing slows down"
        return (
            f"{s.workers} workers, steps of {steps} ms, in {100 * s.pause_share:.0f} % of them a pause of "
            f"{least_s:g} to {longest_s:g} s, {links}; both with SGD, learning rate {s.compared_lr:g}, momentum "
            f"{s.momentum:g}; the ring is gloo's algorithm, over the same emulated links"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds of it."""
        return {"elastic": self.elastic.as_json(), "ring": self.ring.as_json()}
