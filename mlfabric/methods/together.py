"""Rounds of everybody: each waits for the slowest worker. Pure."""

from __future__ import annotations

from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.specs import ModelSpec

__all__ = ["Together"]


class Together:
    """Rounds of all workers."""

    most_waiting = 4
    waits_for_slow = True
    delay_bound = 0

    def __init__(self, spec: ModelSpec) -> None:
        """Rounds of everybody have no options."""

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Begin once nobody computes any more."""
        return None if who.computing_ns else now_ns

    def late(self, delay: int, gradients: int, *, can_renew: bool = False) -> Late:
        """Drop it: a round is made of gradients of one version."""
        return Late.IS_DROPPED if delay else Late.JOINS
