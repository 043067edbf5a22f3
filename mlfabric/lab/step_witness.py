"""The witness of models that workers keep by applying settled rounds by themselves.

What must hold: a result is a sum, in all rows, of gradients that were given, each in one sum only and once; what a
worker is told is in a round is in its sum, within the delay bound, and what was dropped is in none; whoever has
applied a result has the same model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from mlfabric.lab.marked_gradients import Gradient, gradients_in, weight_of
from mlfabric.worker_daemon.round_inbox import RoundResult

__all__ = ["StepWitness"]


class StepWitness:
    """Sees what every worker gives, gets and applies.

    Args:
        most_delay: how many rounds may be settled between the model that a gradient is computed from and its round.
        models: returns the digest of each worker's model that is alive, by the number of its life. What nobody has any
            more may be made again in another way: all who had it may have died.

    Attributes:
        finished: how many gradients of each life are in rounds.
        fetched: how many states workers had from others.
        failed: how many gradients were dropped.
    """

    def __init__(self, most_delay: int, models: Callable[[], dict[int, bytes]]) -> None:
        self.finished: Counter[int] = Counter()
        self.failed = self.fetched = 0
        self._most_delay, self._living = most_delay, models
        self._results: dict[Gradient, bytes] = {}
        self._models: dict[bytes, bytes] = {}
        self._made: dict[bytes, tuple[bytes, bytes]] = {}
        """From which model, and with which result, each was made."""
        self._had_outcome: set[Gradient] = set()
        self._dropped: set[Gradient] = set()

    def applied(self, life: int, result: RoundResult, total: np.ndarray, before: bytes, digest: bytes) -> None:
        """Take what a worker has applied, and its model before and afterwards."""
        inside, bits = gradients_in(total), total.tobytes()
        lives = {each for each, _ in inside}
        assert (sum(map(weight_of, inside)), len(lives)) == (result.weight, result.workers), (
            f"{sorted(inside)} are in round {result.version}; {result} was told"
        )
        assert abs(result.rates[0] - sum(lives) / len(lives)) < 1e-3, f"{result.rates} are the rates of {lives}"
        for gradient in sorted(inside):
            if self._results.setdefault(gradient, bits) != bits:
                found = sorted(number for number, model in self._living().items() if self._has(model, gradient))
                assert not found, f"{gradient} is in round {result.version}, and in another one that {found} have"
                self._results[gradient] = bits
            assert gradient not in self._dropped, f"{gradient} is in a result; its worker was told that it was dropped"
        self._made[digest] = before, bits
        agreed = self._models.setdefault(bits, digest)
        assert agreed == digest, f"life {life} has another model after round {result.version} than others have"

    def _has(self, model: bytes, gradient: Gradient) -> bool:
        """Tell whether a result that a gradient is in was applied to a model."""
        while model in self._made:
            model, bits = self._made[model]
            if gradient in gradients_in(np.frombuffer(bits, np.float32)):
                return True
        return False

    def included(self, gradients: frozenset[Gradient], result: RoundResult, total: np.ndarray, delay: int) -> None:
        """Take the news that these gradients of a worker are in a round."""
        inside = gradients_in(total)
        assert gradients <= inside, f"{sorted(gradients - inside)} are not in round {result.version}"
        assert 0 <= delay <= self._most_delay, f"{sorted(gradients)} have delay {delay}"
        self._have_outcome(gradients)
        for life, _ in gradients:
            self.finished[life] += 1

    def dropped(self, gradients: frozenset[Gradient]) -> None:
        """Take the news that these gradients are in no round and never will be."""
        self._have_outcome(gradients)
        self.failed += len(gradients)
        self._dropped |= gradients
        found = sorted(gradients & self._results.keys())
        assert not found, f"{found} are in a result; their worker is told that they were dropped"

    def _have_outcome(self, gradients: frozenset[Gradient]) -> None:
        again = sorted(gradients & self._had_outcome)
        assert not again, f"{again} had an outcome before"
        self._had_outcome |= gradients
