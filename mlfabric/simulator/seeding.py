"""How a simulated primary copies a model between two steps and sends it to its replica.

Does what ``server/seeds.py`` does, and the turns that ``server/stores.py`` gives.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from mlfabric.model.update_rules import RuleSpec
from mlfabric.protocol import Outcome, Seed, ServerHolds, UpdateId
from mlfabric.server import actions as act
from mlfabric.simulator.calls import Calls, Offer
from mlfabric.simulator.exact import Weights
from mlfabric.simulator.motion import Motion
from mlfabric.simulator.payloads import Payload
from mlfabric.simulator.world import Timer, World

__all__ = ["Copy", "SimulatedSeeder", "Turns"]

PAUSE_NS = 200_000_000
COPY_NS = 1_000_000


class Turns:
    """One thing at a time is done to a model, in the order in which it was asked for."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Callable[[], None]]] = defaultdict(deque)

    def take(self, model: str, work: Callable[[], None]) -> None:
        """Let work begin when it is its turn; it calls :meth:`done` at its end."""
        queue = self._queues[model]
        queue.append(work)
        if len(queue) == 1:
            work()

    def done(self, model: str) -> None:
        """End the work that is under way; the next begins."""
        queue = self._queues[model]
        queue.popleft()
        if queue:
            queue[0]()


class Copy(NamedTuple):
    """A model at one version."""

    holds: ServerHolds
    weights: Weights
    motion: Motion
    rule: RuleSpec

    @property
    def size_bytes(self) -> int:
        """What travels."""
        return (1 + self.rule.state_images) * self.holds.spec.layout.size_bytes

    def taken(self) -> act.SeedTaken:
        """Tell the state machine of it."""
        history = abs(self.motion.history) if self.rule.server_momentum > 0 else 0.0
        return act.SeedTaken(
            model=self.holds.spec.name,
            history_norm=history,
            weights_norm=abs(self.motion.weights),
            steps=self.motion.steps,
        )


class SimulatedSeeder:
    """Sends one seed of each model at a time, again and again until the replica has it.

    Args:
        calls: the server's.
        turns: of the server's models.
        copied: copies a model, and tells the state machine.
    """

    def __init__(self, world: World, calls: Calls[str], turns: Turns, copied: Callable[[str], Copy]) -> None:
        self._world = world
        self._turns = turns
        self._copied = copied
        self._calls = calls
        self._orders: dict[str, Seed] = {}
        self._timers: dict[str, Timer] = {}

    def send(self, order: Seed) -> None:
        """Send a seed, instead of one of an earlier term."""
        self.stop(order.model)
        order = replace(order)  # the same order may come twice; each has a life of its own
        self._orders[order.model] = order
        self._begin(order)

    def stop(self, model: str) -> None:
        """Send no seed of a model any more: it has no replica."""
        self._orders.pop(model, None)
        self._calls.give_up(model)
        if (timer := self._timers.pop(model, None)) is not None:
            timer.cancel()

    def stop_all(self) -> None:
        """Send no seed any more: a scheduler that admits this server orders again what it wants."""
        for model in list(self._orders):
            self.stop(model)

    def _begin(self, order: Seed) -> None:
        if self._orders.get(order.model) is order:
            self._turns.take(order.model, partial(self._copy, order))

    def _copy(self, order: Seed) -> None:
        if self._orders.get(order.model) is order:
            delay_ns = self._world.pause_ns(COPY_NS)
            self._world.later(delay_ns, f"{order.model} copied", partial(self._finish_copy, order))
        else:
            self._turns.done(order.model)

    def _finish_copy(self, order: Seed) -> None:
        if self._orders.get(order.model) is order:
            copy = self._copied(order.model)
            self._offer(order, copy)
        self._turns.done(order.model)

    def _offer(self, order: Seed, copy: Copy) -> None:
        def broke(detail: str) -> None:
            self._calls.over(order.model)
            what = f"the seed of {order.model} is sent again"
            self._timers[order.model] = self._world.later(PAUSE_NS, what, partial(self._begin, order))

        def answered(outcomes: dict[UpdateId, Outcome]) -> None:
            del self._orders[order.model]
            self._calls.over(order.model)

        offered = Offer(
            transfer=order.transfer,
            ticket=order.ticket,
            payload=partial(Payload.whole, copy.weights, copy.size_bytes),
            digest=copy.holds.spec.layout.digest,
            seed=act.SeedOffered(holds=copy.holds, steps=copy.motion.steps),
        )
        self._calls.offer(order.model, order.address, offered, answered, broke)
