"""Whether AllReduces go in stripes or in another shape, judged by what both took lately. Pure.

Stripes give those hosts more to do whose links are fast, as far as is known. Where links change faster than that is
learnt, a round takes several times as long as planned, and a ring, which counts on nothing, is the better choice. So
what rounds of both kinds really took for each byte is compared, lately more than long ago, and the better kind is used.

Of the other kind a round or a few are made now and then, the rarer the worse it is: that costs at most a twentieth of
the time. Something else than stripes is not tried while they take less time than a ring needs by what is known of the
links.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from mlfabric.methods.all_reduce import ring_ns
from mlfabric.network import Network
from mlfabric.planning import Shape

__all__ = ["Made", "Trust"]

_FADES = 7 / 8
"""What an earlier round counts for beside the next one: about the last eight decide."""
_COST = 1 / 20
_TRIES = 3
"""How many rounds a try of stripes has: the first ones after others are planned with what is not known any more."""
_LEAST_BETWEEN = 4
_BEFORE_FIRST = 2
"""After so many rounds the other kind is tried for the first time: the first one in stripes may be of unknown links."""
_WORST = 10.0
"""How many times worse the other kind counts at most, so that it is tried again some day."""
_LEAST_WEIGHT = 1e-6


@dataclass(slots=True)
class _Pace:
    """The mean of what rounds of one kind took, each by its weight."""

    total_ns: float = 0.0
    weight: float = 0.0

    @property
    def mean_ns(self) -> float:
        """What a byte took; infinite if there was no round."""
        return self.total_ns / self.weight if self.weight else float("inf")

    def fade(self) -> None:
        """Let one more round have passed."""
        if self.weight > _LEAST_WEIGHT:
            self.total_ns, self.weight = _FADES * self.total_ns, _FADES * self.weight

    def took(self, ns_per_byte: float) -> None:
        """Count a round."""
        self.total_ns, self.weight = self.total_ns + ns_per_byte, self.weight + 1.0


class Made(NamedTuple):
    """A round that was made: how, of how much, and how long it took.

    ``without_stripes`` says that stripes were not to be used, though they might have been.
    """

    shape: Shape
    without_stripes: bool
    size_bytes: int
    took_ns: float


class Trust:
    """Chooses for the rounds of one model for which stripes were possible; at first they are used.

    ``is_lost`` tells whether the next round is to go in another shape.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._stripes, self._others = _Pace(), _Pace()
        self._tries = self._since = 0

    def took(self, ns_per_byte: float, ring_ns_per_byte: float, *, in_stripes: bool) -> None:
        """Note a round.

        Args:
            ns_per_byte: what it really took for each byte of the tensor.
            ring_ns_per_byte: what a ring needs at least, by what is now known of the links.
            in_stripes: it went in stripes; if not, it might have.
        """
        self._stripes.fade()
        self._others.fade()
        (self._stripes if in_stripes else self._others).took(ns_per_byte)
        stripes_are_better = self._stripes.mean_ns <= self._others.mean_ns
        if self._tries and in_stripes != stripes_are_better:
            self._tries -= 1
            if self._tries:
                return
        self._since = self._since + 1 if in_stripes == stripes_are_better else 0
        self._tries = 0
        if self._since >= self._between() and self._may_gain(ring_ns_per_byte):
            self._since, self._tries = 0, 1 if stripes_are_better else _TRIES
        self.is_lost = stripes_are_better == (self._tries > 0)

    def judge(self, made: Made, network: Network, hosts: Collection[str], now_ns: int) -> None:
        """Count how long a round took for or against stripes, if it went in stripes or might have.

        Args:
            network: what is now known of the links.
            hosts: of its workers.
        """
        in_stripes = made.shape is Shape.STRIPES
        if in_stripes or made.without_stripes:
            least_ns = ring_ns(network, hosts, made.size_bytes, now_ns)
            self.took(made.took_ns / made.size_bytes, least_ns / made.size_bytes, in_stripes=in_stripes)

    @property
    def without(self) -> frozenset[Shape]:
        """The shapes that the next round is not to have, if there are others: all but a ring once trust is lost."""
        return frozenset(Shape) - {Shape.RING} if self.is_lost else frozenset()

    @property
    def others_ns_per_byte(self) -> float | None:
        """What a byte took in other shapes lately; None if there were none."""
        return self._others.mean_ns if self._others.weight else None

    def failed(self, ns_per_byte: float) -> None:
        """Note a round in stripes that was given up after so long; the next one goes in another shape."""
        self._stripes.fade()
        self._others.fade()
        self._stripes.took(ns_per_byte)
        self._since = self._tries = 0
        self.is_lost = True

    def _may_gain(self, ring_ns_per_byte: float) -> bool:
        """Tell whether the kind that is worse may have become better, by what is known."""
        return self._others.mean_ns < self._stripes.mean_ns or ring_ns_per_byte < self._stripes.mean_ns

    def _between(self) -> float:
        """Return how many rounds of the better kind are made before the next try."""
        if not self._others.weight:
            return _BEFORE_FIRST
        better_ns, worse_ns = sorted((self._stripes.mean_ns, self._others.mean_ns))
        times = min(_WORST, worse_ns / better_ns) if better_ns else 1.0
        return max(_LEAST_BETWEEN, _TRIES * (times - 1.0) / _COST)
