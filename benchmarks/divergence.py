"""How loose the divergence bound is: the estimate over the true distance, for leads of 1 to 600 commits.

Primary and replica are simulated: the replica holds the first commits, the primary is ahead by the lead. Gradients are
random, of random norms, and more or less of one mind: ``alignment`` is the cosine between two of them on average, 0 for
noise and 1 for gradients that all point the same way, where the bound of plain momentum is the truth. The bound is the
one that a plan uses: it knows norms alone, of the model where the lead begins and of the lead's updates.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.errors import UsageError
from mlfabric.model.divergence import Lead, RuleState, as_norm, step_bound
from mlfabric.model.update_rules import RuleKind, RuleSpec

__all__ = ["looseness", "run"]

Vectors = NDArray[np.float64]

LEADS = (1, 3, 10, 30, 100, 300, 600)
RULES = {
    "gamma_0": RuleSpec(),
    "gamma_0.9": RuleSpec(momentum=0.9),
    "gamma_0.99": RuleSpec(momentum=0.99),
    "decay_0.001": RuleSpec(momentum=0.9, weight_decay=0.001),
    "adadelay": RuleSpec(kind=RuleKind.ADADELAY, smoothness=10.0, delay_scale=1.0),
    "adam": RuleSpec(kind=RuleKind.ADAM, lr=0.001),
}
ALIGNMENTS = (0.0, 0.01, 0.1, 0.5, 1.0)
BEFORE = 200
MOST_DELAY = 16


def run(elements: int = 1000, rounds: int = 20, seed: int = 0) -> dict[str, Any]:
    """Simulate, and compare estimate and truth at every lead.

    Args:
        elements: of the model.
        rounds: simulations; the median and the least ratio of them count.
        seed: of everything.

    Returns:
        By rule, alignment and lead the median ``ratio`` of estimate to truth; ``least_ratio`` of all, which must not
        be below 1 by more than the roundings of the simulation.

    Raises:
        UsageError: no elements, or no rounds.
    """
    if elements < 2 or rounds < 1:
        raise UsageError(f"elements={elements}, rounds={rounds}; allowed: at least 2 and 1")
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {"least_ratio": math.inf}
    for name, rule in RULES.items():
        for alignment in ALIGNMENTS:
            ratios = np.array([looseness(rng, elements, rule, alignment) for _ in range(rounds)])
            medians = np.median(ratios, axis=0).tolist()
            found[f"{name}.alignment_{alignment:g}"] = {
                f"lead_{lead}": ratio for lead, ratio in zip(LEADS, medians, strict=True)
            }
            found["least_ratio"] = min(found["least_ratio"], float(ratios.min()))
    return found


def looseness(rng: np.random.Generator, elements: int, rule: RuleSpec, alignment: float) -> list[float]:
    """Return the estimate over the truth at each of ``LEADS``, all beginning at one commit."""
    gradients = _gradients(rng, BEFORE + max(LEADS), elements, alignment)
    lrs = [rule.lr_at(version, int(tau)) for version, tau in enumerate(rng.integers(MOST_DELAY, size=len(gradients)))]
    model = _Model(rule, rng.standard_normal(elements))
    for gradient, lr in zip(gradients[:BEFORE], lrs, strict=False):
        model.step(gradient, lr)
    norms = np.linalg.norm(gradients[BEFORE:], axis=1).tolist()
    lead = Lead(step_bound(rule, norms, lrs[BEFORE:], model.state()))
    ratios, replica = [], model.weights
    for committed, (gradient, lr) in enumerate(zip(gradients[BEFORE:], lrs[BEFORE:], strict=True), 1):
        model.step(gradient, lr)
        if committed in LEADS:
            ratios.append(as_norm(lead.bound(0, committed)) / float(np.linalg.norm(model.weights - replica)))
    return ratios


@dataclass
class _Model:
    """Weights and optimizer state, stepped by the formulas of mlfabric.model.update_rules."""

    rule: RuleSpec
    weights: Vectors
    steps: int = 0
    history: Vectors = field(init=False)
    squares: Vectors = field(init=False)

    def __post_init__(self) -> None:
        self.history, self.squares = np.zeros_like(self.weights), np.zeros_like(self.weights)

    def step(self, gradient: Vectors, lr: float) -> None:
        rule = self.rule
        self.steps += 1
        gradient = gradient + rule.server_weight_decay * self.weights
        if rule.kind is not RuleKind.ADAM:
            self.history = rule.server_momentum * self.history - lr * gradient
            self.weights = self.weights + self.history
            return
        self.history = rule.beta1 * self.history + (1 - rule.beta1) * gradient
        self.squares = rule.beta2 * self.squares + (1 - rule.beta2) * gradient**2
        root = np.sqrt(self.squares / (1 - rule.beta2**self.steps)) + rule.epsilon
        self.weights = self.weights - lr * self.history / (1 - rule.beta1**self.steps) / root

    def state(self) -> RuleState:
        return RuleState(
            history_norm=float(np.linalg.norm(self.history)) if self.rule.server_momentum > 0 else 0.0,
            weights_norm=float(np.linalg.norm(self.weights)),
            steps=self.steps,
            elements=len(self.weights),
        )


def _gradients(rng: np.random.Generator, count: int, elements: int, alignment: float) -> Vectors:
    common = rng.standard_normal(elements)
    noise = rng.standard_normal((count, elements))
    directions = math.sqrt(alignment) * common + math.sqrt(1 - alignment) * noise
    lengths = rng.uniform(0.5, 1.5, (count, 1))
    gradients: Vectors = lengths * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return gradients


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table; an argument is the number of rounds."""
    found = run(rounds=int(arguments[0])) if arguments else run()
    print(f"{'estimate / truth':<28}" + "".join(f"{lead:>9}" for lead in LEADS))
    for name, ratios in found.items():
        if isinstance(ratios, dict):
            print(f"{name:<28}" + "".join(f"{ratio:>9.3f}" for ratio in ratios.values()))
    print(f"least: {found['least_ratio']:.15f}")


if __name__ == "__main__":
    main(sys.argv[1:])
