"""Processes that are forked from a worker's, such as those of a ``DataLoader``: they are not the worker, and know it.

A fork copies the memory of all threads and goes on with one of them. What the other threads were at is never finished
in the copy: the daemon's event loop stands still, gRPC's locks may be held for ever. So there

* gRPC is left alone. Its own handlers of forks would start its threads again in the copy, which then work on
  connections that are the worker's: such a process dies of a segmentation fault. They are switched off by a variable
  of the environment, which gRPC reads when it is loaded, and nobody after that;
* no object of before the fork is torn down: the collector of reference cycles passes them over;
* each worker is told, so that it neither leaves the fabric in the other's name nor waits for what cannot come.

A process that is started anew (``spawn``, ``forkserver``) has none of this. Needs the standard library alone.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

__all__ = ["IN_A_COPY", "Forked", "is_copy", "switch_grpc_handlers_off", "tell_copies"]

log = logging.getLogger("mlfabric.worker")
IN_A_COPY = (
    "this process was forked from the worker's, and that one alone is in the fabric; use the worker there, or start "
    "this process with 'spawn' and register in it"
)
_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_OFF = ("0", "false")


class Forked(Protocol):
    """What has a part in the process that made it, and none in a copy of that."""

    def in_a_copy(self) -> None:
        """Do nothing from now on that the original would notice; called in the copy."""


@dataclass
class _Process:
    """What this process has.

    Args:
        told: what is said to its copies goes to these.
        is_used: whether it ever had a part in the fabric.
        is_copy: whether it was forked from a process that had.
        is_armed: whether gRPC was loaded with its handlers on, and nobody was warned of that yet.
    """

    told: WeakSet[Forked] = field(default_factory=WeakSet)
    is_used: bool = False
    is_copy: bool = False
    is_armed: bool = False


_here = _Process()


def switch_grpc_handlers_off() -> None:
    """Keep gRPC's handlers out of the forks of this process; to be called before gRPC is loaded."""
    _here.is_armed |= "grpc" in sys.modules and os.environ.get(_VARIABLE, "").lower() not in _OFF
    os.environ[_VARIABLE] = "0"


def tell_copies(one: Forked) -> None:
    """Have it said in every process that is forked from here from now on."""
    _here.told.add(one)
    if not _here.is_used:
        _here.is_used = True
        os.register_at_fork(before=_warn, after_in_child=_tell)


def is_copy() -> bool:
    """Tell whether this process was forked from one that had a part in the fabric: gRPC does not work here."""
    return _here.is_copy


def _warn() -> None:
    if _here.is_armed:
        _here.is_armed = False
        log.warning(
            "this process is forked, by a DataLoader perhaps, and had loaded gRPC before mlfabric: the copies may "
            "crash; import mlfabric first, or start them with multiprocessing_context='spawn'"
        )


def _tell() -> None:
    gc.freeze()
    _here.is_copy = True
    for one in _here.told:
        one.in_a_copy()
