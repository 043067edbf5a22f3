"""Ways to train: one small pure file each; who is waited for, what a version is, what is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlfabric.methods.asynchronous import Asynchronous
from mlfabric.methods.clocks import Clocks
from mlfabric.methods.elastic import Elastic
from mlfabric.methods.gossip import Gossip
from mlfabric.methods.partial import Partial
from mlfabric.methods.policy import Policy, Standing
from mlfabric.methods.round_rule import Late, Readiness, RoundRule
from mlfabric.methods.stale_synchronous import StaleSynchronous
from mlfabric.methods.synchronous import Synchronous
from mlfabric.methods.together import Together
from mlfabric.model.specs import Method, ModelSpec

__all__ = ["Clocks", "Late", "Policy", "Readiness", "RoundRule", "Standing", "policy_of", "round_rule_of"]

_POLICIES: Mapping[Method, Callable[[ModelSpec], Policy]] = {
    Method.ASYNCHRONOUS: Asynchronous,
    Method.SYNCHRONOUS: Synchronous,
    Method.STALE_SYNCHRONOUS: StaleSynchronous,
}
_ROUND_RULES: Mapping[Method, Callable[[ModelSpec], RoundRule]] = {
    Method.ALL_REDUCE: Together,
    Method.PARTIAL: Partial,
    Method.ELASTIC: Elastic,
    Method.LOCAL_SGD: Elastic,
    Method.DILOCO: Elastic,
    Method.SMA: Together,
    Method.DPSGD: Gossip,
    Method.RAND: Gossip,
    Method.RAND_AWARE: Gossip,
    Method.D1D: Gossip,
    Method.ADPSGD: Gossip,
}


def policy_of(spec: ModelSpec) -> Policy:
    """Return what decides for a model; its method has a server."""
    return _POLICIES[spec.method](spec)


def round_rule_of(spec: ModelSpec) -> RoundRule:
    """Return what decides for a model whose workers apply rounds by themselves."""
    return _ROUND_RULES[spec.method](spec)
