"""How a model's epochs are named, and which earlier versions led to the present one. Pure.

The scheduler names an epoch from its own term whenever a server begins a model, resumes it from a checkpoint or
replaces another server: ``(term << EPOCH_BITS) + n``, n counted from 1. Terms only grow, so a later epoch is greater.
The epochs that led to the present one, from the first to the present one, are a *path*: for each, the version at which
it began. A version is on the path if its epoch is, and it was made before the next epoch of the path began.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.protocol.identities import ModelVersion

__all__ = [
    "EPOCH_BITS",
    "fork",
    "is_in_lineage",
    "is_in_lineage_of_part",
    "kept",
    "name_of_epoch",
    "root_of",
    "term_of",
]

EPOCH_BITS = 12
"""So few that an epoch whose term is a time in ms is exact as a double, which many JSON readers use."""

Began = Sequence[ModelVersion]
"""The versions at which the epochs of a path began, the earliest first."""


def name_of_epoch(term: int, number: int) -> int:
    """Return the epoch that a scheduler of this term names as its ``number``-th one."""
    return (term << EPOCH_BITS) + number


def term_of(epoch: int) -> int:
    """Return the term of the scheduler that named an epoch; 0 for epochs of releases in which servers named them."""
    return epoch >> EPOCH_BITS


def root_of(began: Began) -> int:
    """Return the epoch in which a model began without weights; 0 if none is known."""
    return began[0].epoch if began else 0


def kept(began: Began, epoch: int, newest: int) -> int | None:
    """Return the last version of an epoch that led to the present one; None if the epoch is not on the path.

    Args:
        newest: the number of the present version.
    """
    for place, first in enumerate(began):
        if first.epoch == epoch:
            return began[place + 1].number if place + 1 < len(began) else newest
    return None


def is_in_lineage(began: Began, version: ModelVersion, newest: int) -> bool:
    """Tell whether a version went into the present one, whose number is ``newest``, or is it."""
    last = kept(began, version.epoch, newest)
    return last is not None and version.number <= last


def fork(former: Began, number: int, began: Began, newest: int) -> int:
    """Return the last version that two paths have in common; 0 if there is none.

    Args:
        former, number: one of them, and the number of the version that it had come to.
        began, newest: the other one.
    """
    upto = number
    for first in reversed(former):
        last = kept(began, first.epoch, newest)
        if last is not None:
            return min(upto, last)
        upto = first.number
    return 0


def is_in_lineage_of_part(began: Began, version: ModelVersion, newest: int) -> bool:
    """Tell the same for a part of a model that is cut.

    Parts count under each other's epochs at the same version, so one that is not on the path stands for the last
    one of the path before it.
    """
    before = [first.epoch for first in began if first.epoch <= version.epoch]
    return bool(before) and is_in_lineage(began, ModelVersion(before[-1], version.number), newest)
