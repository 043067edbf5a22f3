"""Plans: who sends when, to whom and whether at all; pure (design, section 5)."""

from mlfabric.scheduler.planning.conflicts import Timetable, paced_rate
from mlfabric.scheduler.planning.gets import order_gets
from mlfabric.scheduler.planning.ordering import order
from mlfabric.scheduler.planning.reserving import warm_up
from mlfabric.scheduler.planning.values import (
    Candidate,
    DropRule,
    GetCandidate,
    GetSlot,
    Left,
    Ordering,
    Pick,
    Slot,
)

__all__ = [
    "Candidate",
    "DropRule",
    "GetCandidate",
    "GetSlot",
    "Left",
    "Ordering",
    "Pick",
    "Slot",
    "Timetable",
    "order",
    "order_gets",
    "paced_rate",
    "warm_up",
]
