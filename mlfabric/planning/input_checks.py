"""Refuses problems that cannot be planned before anything is computed, with what was given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mlfabric.errors import UsageError
from mlfabric.network import MAX_SIZE_BYTES, Network
from mlfabric.network.profile import check_size
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.problem import Aggregator, Batch, Consistency, FabricState, PlannerConfig, Replica

__all__ = ["check_problem"]


def check_problem(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> None:
    """Refuse a problem that has no meaning.

    Raises:
        UsageError: says what was given and what is allowed.
    """
    _check_config(config)
    _check_state(network, state, config)
    _check_updates(batch, network, state, config)
    _check_unique("get", [get.get for get in batch.gets])
    for get in batch.gets:
        check_size(get.size_bytes)
    _check_hosts(network, [get.destination for get in batch.gets])
    if batch.gets and not state.server:
        raise UsageError(f"{len(batch.gets)} gets and no server; give the host that has the model")


def _check_config(config: PlannerConfig) -> None:
    asynchronous = config.consistency is Consistency.ASYNCHRONOUS
    allowed = (
        ("tau_max", config.tau_max, config.tau_max is None or config.tau_max >= 0, "0 or more, or None"),
        ("tau_max", config.tau_max, asynchronous or config.tau_max is None, f"None when {config.consistency.name}"),
        ("gamma", config.gamma, 0 <= config.gamma < 1, "0 to below 1"),
        ("chunk_bytes", config.chunk_bytes, config.chunk_bytes > 0, "more than 0"),
        ("group_ns", config.group_ns, config.group_ns >= 0, "0 or more"),
        ("replicate_from", config.replicate_from, 0 <= config.replicate_from <= 1, "0 to 1"),
        ("slack", config.slack, config.slack >= 0, "0 or more"),
    )
    for name, given, fits, words in allowed:
        if not fits:
            raise UsageError(f"{name}={given}; allowed: {words}")
    bound = config.div_max
    if bound is not None and not (bound.norm >= 0 and (bound.updates is None or bound.updates >= 0)):
        raise UsageError(f"div_max of norm {bound.norm}, updates {bound.updates}; allowed: 0 or more")


def _check_state(network: Network, state: FabricState, config: PlannerConfig) -> None:
    if config.consistency is Consistency.ALL_REDUCE and (state.server or state.replica):
        raise UsageError("AllReduce has no server and no replica; leave both out")
    _check_hosts(network, (state.server,) if state.server else ())
    _check_helpers("aggregator", network, state.aggregators)
    _check_helpers("distributor", network, state.distributors)
    if state.replica is not None:
        _check_replica(network, state, state.replica)
    elif config.div_max is not None:
        raise UsageError("div_max is given and there is no replica; add one, or leave div_max out")


def _check_replica(network: Network, state: FabricState, replica: Replica) -> None:
    if not state.server:
        raise UsageError("a replica and no server; give the server's host")
    _check_hosts(network, (replica.host, *(pending.source for pending in replica.pending)))
    if not (math.isfinite(replica.history_norm) and replica.history_norm >= 0):
        raise UsageError(f"history_norm={replica.history_norm}; allowed: finite, 0 or more")
    for pending in replica.pending:
        check_size(pending.size_bytes)
        if not 0 <= pending.step_norm < math.inf:
            raise UsageError(f"{pending.update}: norm {pending.step_norm}; allowed: finite, 0 or more")


def _check_updates(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> None:
    updates = batch.updates
    if not updates:
        return
    if not state.server and config.consistency is not Consistency.ALL_REDUCE:
        raise UsageError(f"{len(updates)} updates and no server; give the server's host")
    _check_unique("update", [candidate.update for candidate in updates])
    _check_hosts(network, {candidate.source for candidate in updates})
    if not _all_fit([candidate.size_bytes for candidate in updates], [candidate.norm for candidate in updates]):
        _check_each(updates)


def _all_fit(sizes: Sequence[int], norms: Sequence[float]) -> bool:
    """Say whether all are surely in range; a sum tells of any norm that is not finite."""
    return min(sizes) >= 0 and max(sizes) <= MAX_SIZE_BYTES and min(norms) >= 0 and sum(norms) < math.inf


def _check_each(updates: Sequence[Candidate]) -> None:
    for candidate in updates:
        check_size(candidate.size_bytes)
        if not 0 <= candidate.norm < math.inf:
            raise UsageError(f"{candidate.update}: norm {candidate.norm}; allowed: finite, 0 or more")


def _check_helpers(what: str, network: Network, helpers: Sequence[Aggregator]) -> None:
    hosts = [helper.host for helper in helpers]
    _check_hosts(network, hosts)
    _check_unique(what, hosts)
    for helper in helpers:
        if helper.most_updates < 0:
            raise UsageError(f"{what} {helper.host}: most_updates={helper.most_updates}; allowed: 0 (any) or more")


def _check_unique(what: str, given: Sequence[object]) -> None:
    if len(set(given)) < len(given):
        seen: set[object] = set()
        twice = next(item for item in given if item in seen or seen.add(item))  # type: ignore[func-returns-value]
        raise UsageError(f"{what} {twice} is given twice; give each once")


def _check_hosts(network: Network, hosts: Iterable[str]) -> None:
    host = network.unknown_host(hosts)
    if host is not None:
        raise UsageError(f"unknown host {host!r}; {len(network.hosts)} are known; add it first")
