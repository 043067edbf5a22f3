"""How many workers' gradients are worth averaging: the noise of gradients, measured from rounds. Pure.

Of n independent gradients with true mean G and summed variance S (each over one worker's batch), the squared norm of
each is ``|G|^2 + S`` on average, and that of their mean ``|G|^2 + S / n``. So

    S = n / (n - 1) (mean |g_i|^2 - |mean g|^2),  |G|^2 = |mean g|^2 - S / n,  n_crit = S / |G|^2,

the simple noise scale of "An Empirical Model of Large-Batch Training" (McCandlish et al., 2018, appendix A), in units
of workers' batches. Of one round both are rough, |G|^2 even negative now and then; so each is averaged over rounds, and
their ratio is taken afterwards.
"""

from __future__ import annotations

__all__ = ["GradientNoise"]

_LEAST_CRITICAL = 8.0
_MOST_PER_WORKER = 10
_AVERAGED = 50
"""Over about how many rounds noise and signal are averaged."""


class GradientNoise:
    """The noise of one model's gradients."""

    def __init__(self) -> None:
        self._rounds = 0
        self._noise = self._signal = 0.0

    def add(self, squares: list[float], mean_square: float) -> None:
        """Take in a round.

        Args:
            squares: the squared norm of each gradient in it.
            mean_square: that of their mean.
        """
        n = len(squares)
        if n < 2 or not mean_square > 0:
            return
        noise = max(0.0, n / (n - 1) * (sum(squares) / n - mean_square))
        signal = mean_square - noise / n
        self._rounds += 1
        weight = 1 / min(self._rounds, _AVERAGED)
        self._noise += weight * (noise - self._noise)
        self._signal += weight * (signal - self._signal)

    def critical(self, workers: int) -> float | None:
        """Return n_crit, at least 8 and at most ten times the workers; None before the first round."""
        if not self._rounds:
            return None
        most = max(_LEAST_CRITICAL, float(_MOST_PER_WORKER * workers))
        return min(most, max(_LEAST_CRITICAL, self._noise / self._signal)) if self._signal > 0 else most
