"""The tables of a plan that all checks use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from mlfabric.planning.plan import Plan, Transfer
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.problem import Consistency, FabricState, PlannerConfig
from mlfabric.protocol import UpdateId

__all__ = ["View", "listed"]

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A plan and what its checks look up.

    Args:
        transfers: by index.
        candidates: the batch's updates.
        sources: host of each update, of the batch or pending at the replica.
        sizes: bytes of each of these.
        uses: by transfer, which others forward its content.
    """

    plan: Plan
    transfers: tuple[Transfer, ...]
    candidates: dict[UpdateId, Candidate]
    sources: dict[UpdateId, str]
    sizes: dict[UpdateId, int]
    uses: dict[int, list[int]]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Make the tables of a plan."""
        transfers = tuple(plan.transfers)
        pending = plan.state.replica.pending if plan.state.replica else ()
        latest = {p.update.worker: p.source for p in pending}  # a worker folds what it keeps, wherever it is now
        waiting = plan.batch.updates
        uses: dict[int, list[int]] = {}
        for i, transfer in enumerate(transfers):
            for k in transfer.inputs:
                uses.setdefault(k, []).append(i)
        return cls(
            plan=plan,
            transfers=transfers,
            candidates={c.update: c for c in waiting},
            sources={p.update: latest[p.update.worker] for p in pending} | {c.update: c.source for c in waiting},
            sizes={p.update: p.size_bytes for p in pending} | {c.update: c.size_bytes for c in waiting},
            uses=uses,
        )

    @property
    def config(self) -> PlannerConfig:
        """What was chosen."""
        return self.plan.config

    @property
    def state(self) -> FabricState:
        """What was known."""
        return self.plan.state

    @property
    def tensors(self) -> int:
        """How many tensors the sum of several updates is."""
        return 2 if self.config.gamma > 0 and self.config.consistency is not Consistency.ALL_REDUCE else 1

    def name(self, index: int) -> str:
        """Name a transfer for a sentence."""
        transfer = self.transfers[index]
        return f"transfer {index} ({transfer.kind.name}, {transfer.source} to {transfer.destination})"

    def bytes_of(self, update: UpdateId, stripe: int) -> int:
        """Return how large an update is, or what of it is in one stripe."""
        return self.plan.stripe_bytes[stripe] if self.plan.stripe_bytes else self.sizes[update]


def listed(things: Iterable[object]) -> str:
    """Name some things for a sentence, not too many."""
    names = [str(thing) for thing in things]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "none"
