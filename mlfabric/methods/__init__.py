"""Ways to train: one small pure file each; who is waited for, what a version is, what is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlfabric.methods.asynchronous import Asynchronous
from mlfabric.methods.clocks import Clocks
from mlfabric.methods.policy import Policy, Standing
from mlfabric.methods.stale_synchronous import StaleSynchronous
from mlfabric.methods.synchronous import Synchronous
from mlfabric.model.specs import Mode, ModelSpec

__all__ = ["Clocks", "Policy", "Standing", "has_server", "policy_of"]

_POLICIES: Mapping[Mode, Callable[[ModelSpec], Policy]] = {
    Mode.ASYNCHRONOUS: Asynchronous,
    Mode.SYNCHRONOUS: Synchronous,
    Mode.STALE_SYNCHRONOUS: StaleSynchronous,
}


def has_server(mode: Mode) -> bool:
    """Tell whether models of this mode are held by a server."""
    return mode in _POLICIES


def policy_of(spec: ModelSpec) -> Policy:
    """Return what decides for a model; its mode has a server."""
    return _POLICIES[spec.mode](spec)
