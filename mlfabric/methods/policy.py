"""What a consistency method decides, whatever the method: the questions, and what the answers follow from. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from mlfabric.methods.clocks import Clocks
from mlfabric.planning import PlannerConfig
from mlfabric.protocol import Dropped, GetRequested, ModelVersion, PushRequested, UpdateId
from mlfabric.values import dataclass

__all__ = ["NO_BOUND", "Policy", "Standing", "WaitingUpdate"]

NO_BOUND = 2**31 - 1


@dataclass(slots=True)
class WaitingUpdate:
    """An update that no plan holds yet; ``blocked_until_ns`` is when it is worth while to try again."""

    request: PushRequested
    since_ns: int
    blocked_until_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a model stands.

    Args:
        version: the newest that is known.
        clocks: of the workers that are waited for: all that train the model, but those silent for too long.
        under_way: the updates that are planned and not settled.
        is_under_way: a gradient is among them, or the present iteration still lacks one (synchronous).
        missing: how many more workers the first iteration waits for; 0 once they have joined, for good.
        owed: those of the present iteration that were let go of on their way and are planned anew (synchronous).
    """

    version: ModelVersion
    clocks: Clocks
    under_way: Container[UpdateId]
    is_under_way: bool
    missing: int = 0
    owed: Container[UpdateId] = ()


class Policy(Protocol):
    """A method's answers for one model.

    Attributes:
        waits_for_others: what a worker may do depends on how far the others are. If not, all that waits is planned, and
            no get is held back.
        has_barrier: nothing is planned before every worker is ready: what is planned then goes at once, has no
            order, and cannot be overtaken; what misses its iteration is outdated.
        waiting_words: what a worker is doing whose update is not planned yet.
    """

    waits_for_others: bool
    has_barrier: bool
    waiting_words: str

    def delay_bound(self, most_workers: int) -> int:
        """Return the bound that the delay of each update is held to.

        Args:
            most_workers: the most that were ever joined at the same time.
        """

    def planner_config(self, most_workers: int) -> PlannerConfig:
        """Return how the planner is to plan."""

    def outdated(self, request: PushRequested, version: ModelVersion) -> Dropped | None:
        """Say why an update cannot take part any more now that the model is at ``version``, or None."""

    def batch(self, waiting: list[WaitingUpdate], standing: Standing) -> list[WaitingUpdate]:
        """Return what is to be planned together now, of all that waits; initial weights wait for nobody."""

    def holds_back(self, get: GetRequested, standing: Standing) -> str:
        """Say why a get must not be answered yet; "" if it may."""
