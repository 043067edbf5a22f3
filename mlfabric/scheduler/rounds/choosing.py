"""Which workers make the rounds of one model, and when the others are lent its weights. Pure.

Where not everybody is in each round (``methods/chosen.py``), a worker with slow links is *left out*: it gets no
results, and its gradients wait. It is a guest of every eighth round, which has everybody: before that it is lent the
weights of the newest version, as early as its link and the delay bound demand, and computes a gradient from them. A
guest applies no round. Who is chosen anew fetches the whole state as a newcomer does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil
from statistics import median

from mlfabric.methods import RoundRule
from mlfabric.methods.chosen import FULL_EVERY, Links, Turn, choose, least_of, lend_ns
from mlfabric.methods.gradient_noise import GradientNoise
from mlfabric.model.specs import ModelSpec, RoundOptions
from mlfabric.network import down_link, up_link
from mlfabric.protocol import Instruction, ReduceRequested
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.rounds.model_states import ModelStates
from mlfabric.scheduler.rounds.running_round import RunningRound
from mlfabric.scheduler.rounds.standings import Standing

__all__ = ["Choosing"]

_VERSIONS = 4
"""So long the squared norms of a round's gradients are kept: workers tell of its mean with their next ones."""
_CYCLES = 8
_LEND_STRETCH = 3
"""Weights that are lent take so many times what the guest's link needs alone: rounds are under way meanwhile."""


class Choosing:
    """Who is in, and who is out.

    Args:
        context: knows links.
        spec: of the model.
        rule: of its method.
        states: who has the model; told who is left out.

    Attributes:
        why: why not everybody is in each round, in words; "" if everybody is.
    """

    def __init__(self, context: Context, spec: ModelSpec, rule: RoundRule, states: ModelStates) -> None:
        self.why = ""
        self._context, self._rule, self._states = context, rule, states
        self._of = states.standings.of
        self._tau_max = (spec.rounds or RoundOptions()).tau_max
        self._noise = GradientNoise()
        self._squares: dict[int, list[float]] = {}
        self._size_bytes = 0
        self._since_full = 0
        self._settled_ns: int | None = None
        self._cycles_ns: deque[int] = deque(maxlen=_CYCLES)

    @property
    def wants_everybody(self) -> bool:
        """Whether the next round has everybody."""
        return self._since_full >= FULL_EVERY - 1

    def too_few(self) -> list[str]:
        """Return the chosen that fetch the model, as long as not enough of them have it for a round."""
        chosen = [(worker, one) for worker, one in sorted(self._of.items()) if not one.left_out]
        if not self.why or sum(one.has_state for _, one in chosen) >= least_of(len(self._of)):
            return []
        return [worker for worker, one in chosen if one.fetches_from]

    def offered(self, offer: ReduceRequested) -> None:
        """Learn from what a worker tells with its gradient."""
        self._size_bytes = offer.size_bytes
        if offer.mean_square and (squares := self._squares.pop(offer.computed_from, None)) is not None:
            self._noise.add(squares, offer.mean_square)

    def settled(self, running: RunningRound, now_ns: int) -> None:
        """Learn from a round."""
        if not self._rule.chooses:
            return
        is_full = self.wants_everybody or not self.why
        self._since_full = 0 if is_full else self._since_full + 1
        if is_full:
            for standing in self._of.values():
                standing.lent_ns = None
        elif self._settled_ns is not None:
            self._cycles_ns.append(now_ns - self._settled_ns)
        self._settled_ns = now_ns
        self._squares[running.version] = [member.square for member in running.members.values()]
        for old in [version for version in self._squares if version <= running.version - _VERSIONS]:
            del self._squares[old]

    def choose(self, now_ns: int) -> None:
        """Decide anew who is left out; everybody is in as long as little is known."""
        usual_ns, n_crit = self._states.standings.usual_ns, self._noise.critical(len(self._of))
        if not self._rule.chooses or usual_ns is None or n_crit is None or not self._size_bytes or not self._of:
            return
        links = {worker: self._links(worker, now_ns) for worker in self._of}
        before = frozenset(worker for worker, one in self._of.items() if not one.left_out)
        turn = Turn(self._size_bytes, usual_ns, self._tau_max, n_crit)
        chosen = choose(links, turn, before if len(before) < len(links) else frozenset())
        having = frozenset(worker for worker, one in self._of.items() if one.has_state)
        chosen |= frozenset() if chosen & having else having  # the others get it from them
        for worker, standing in self._of.items():
            up_bps, down_bps = links[worker]
            rates = f"its links carry {up_bps / 1e6:.1f} and {down_bps / 1e6:.1f} Mbit/s up and down"
            if worker not in chosen and not standing.left_out:
                self._states.standings.gives_no_more(worker)
            standing.left_out = "" if worker in chosen else rates
        everybody = len(chosen) == len(links)
        self.why = "" if everybody else f"{len(chosen)} of {len(links)} chosen, as n_crit is {n_crit:.1f}"

    def _links(self, worker: str, now_ns: int) -> Links:
        network, host = self._context.network, self._context.host(worker)
        return Links(network.rate_bps(up_link(host), now_ns), network.rate_bps(down_link(host), now_ns))

    def lend(self, now_ns: int) -> Iterator[Instruction]:
        """Have those that are left out fetch the weights, as soon as the next round of everybody is near enough."""
        if not self._rule.chooses or not self.why or self._states.nobody_has_it:
            return
        left = max(0, FULL_EVERY - 1 - self._since_full)
        for worker, standing in sorted(self._of.items()):
            if standing.left_out and standing.lent_ns is None and not self._may_come_anyway(standing, left):
                takes_ns = round(_LEND_STRETCH * lend_ns(self._links(worker, now_ns).down_bps, self._size_bytes))
                if left <= self._early(takes_ns):
                    # At the latest when no other round is under way any more, the links are free for it.
                    lent_ns = now_ns + left * self._cycle_ns(takes_ns) + takes_ns
                    yield from self._states.lend(worker, standing, lent_ns)

    def _may_come_anyway(self, standing: Standing, left: int) -> bool:
        """Tell whether it has a gradient that will not be too old."""
        offer = standing.offer
        return offer is not None and self._states.version + left - offer.computed_from <= self._tau_max

    def _early(self, takes_ns: int) -> int:
        """Return how many rounds before the one with everybody the weights are to be fetched that take so long."""
        needs_ns = takes_ns + (self._states.standings.usual_ns or 0)
        return min(self._tau_max, ceil(needs_ns / self._cycle_ns(takes_ns)))

    def _cycle_ns(self, unless_known_ns: int) -> int:
        """Return how long a round takes with the step before it."""
        return max(1, round(median(self._cycles_ns)) if self._cycles_ns else unless_known_ns)
