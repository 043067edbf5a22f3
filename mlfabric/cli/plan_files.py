"""A plan's input from a small file: hosts and their links, what waits to be sent, what was chosen; pure.

The file is TOML or JSON; docs/planner.md lists its sections and keys. Every key is checked, so that a misspelt one is
an error and not a default.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import networkx as nx

from mlfabric.cli.fields import Fields
from mlfabric.errors import ConfigError
from mlfabric.network import LinkId, Network
from mlfabric.planning.plan_values import Candidate, GetCandidate
from mlfabric.planning.problem import (
    OWN_SHAPES,
    Aggregator,
    Batch,
    Consistency,
    DivergenceBound,
    FabricState,
    Objective,
    Pending,
    PlannerConfig,
    Replica,
    Shape,
)
from mlfabric.protocol import GetId, UpdateId

__all__ = ["Described", "describe"]

_RATE, _SIZE = "10G", "100M"
_MOST_GAMMA = 0.999999


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the planner takes."""

    batch: Batch
    network: Network
    state: FabricState
    config: PlannerConfig


def describe(text: str, *, is_json: bool, name: str) -> Described:
    """Read a description.

    Args:
        text: what the file holds.
        name: of the file, for errors.

    Raises:
        ConfigError: no TOML or JSON, an unknown section or key, or a value of the wrong kind; says which.
        UsageError: a host, link or rate that no network can have.
    """
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{name} is no {'JSON' if is_json else 'TOML'}: {error}") from error
    whole = Fields(document, name)
    counts: Counter[str] = Counter()
    replica = _replica(whole.table("replica"), counts) if "replica" in whole else None
    updates = tuple(c for table in whole.tables("updates") for c in _updates(table, counts))
    counts.clear()
    gets = tuple(g for table in whole.tables("gets") for g in _gets(table, counts))
    fabric, links = whole.table("fabric"), whole.tables("links")
    state = _state(fabric, replica)
    hosts = _hosts(updates, gets, state)
    network = _graph(fabric, links, hosts) if links else _star(fabric, whole.table("hosts"), hosts)
    config = _config(whole.table("planner"))
    for change in whole.tables("changes"):
        _change(network, change)
    fabric.done()
    if links and "hosts" in whole:
        raise ConfigError(f"{name} has both hosts and links; give the rates of hosts (a star), or all links (a graph)")
    whole.table("hosts")
    whole.done()
    return Described(batch=Batch(updates=updates, gets=gets), network=network, state=state, config=config)


def _updates(table: Fields, counts: Counter[str]) -> Iterator[Candidate]:
    workers, host = table.names("worker", "workers"), table.text("host", "")
    size_bytes, ready_ns = table.size_bytes("size", _SIZE), table.time_ns("ready_ms")
    computed_from = table.whole("computed_from", 0)
    norm, clock = table.number("norm", 1.0), table.whole("clock", 0)
    table.done()
    for worker in workers:
        yield Candidate(
            update=UpdateId(worker, 0, _next(counts, worker)),
            source=host or worker,
            size_bytes=size_bytes,
            ready_ns=ready_ns,
            computed_from=computed_from,
            norm=norm,
            clock=clock,
        )


def _gets(table: Fields, counts: Counter[str]) -> Iterator[GetCandidate]:
    workers, host = table.names("worker", "workers"), table.text("host", "")
    size_bytes, ready_ns, clock = table.size_bytes("size", _SIZE), table.time_ns("ready_ms"), table.whole("clock", 0)
    table.done()
    for worker in workers:
        yield GetCandidate(
            get=GetId(worker, 0, _next(counts, worker)),
            destination=host or worker,
            size_bytes=size_bytes,
            ready_ns=ready_ns,
            clock=clock,
        )


def _replica(table: Fields, counts: Counter[str]) -> Replica:
    pending = []
    for row in table.tables("pending"):
        worker = row.text("worker")
        pending.append(
            Pending(
                update=UpdateId(worker, 0, _next(counts, worker)),
                source=row.text("host", worker),
                size_bytes=row.size_bytes("size", _SIZE),
                step_norm=row.number("step_norm", row.number("norm", 1.0)),
            )
        )
        row.done()
    found = Replica(
        host=table.text("host"),
        pending=tuple(pending),
        history_norm=table.number("history_norm", 0.0),
    )
    table.done()
    return found


def _next(counts: Counter[str], worker: str) -> int:
    counts[worker] += 1
    return counts[worker] - 1


def _aggregators(table: Fields, key: str) -> tuple[Aggregator, ...]:
    rows = table.named(key)
    found = tuple(Aggregator(host=row.text("host"), most_updates=row.whole("most_updates", 0)) for row in rows)
    for row in rows:
        row.done()
    return found


def _state(fabric: Fields, replica: Replica | None) -> FabricState:
    return FabricState(
        now_ns=0,
        v_init=fabric.whole("version", 0),
        server=fabric.text("server", ""),
        aggregators=_aggregators(fabric, "aggregators"),
        distributors=_aggregators(fabric, "distributors"),
        replica=replica,
        slowest_clock=fabric.whole("slowest_clock", 0),
    )


def _hosts(updates: Iterable[Candidate], gets: Iterable[GetCandidate], state: FabricState) -> list[str]:
    """Every host that anything else names, each once."""
    names = [*filter(None, [state.server]), *(c.source for c in updates), *(g.destination for g in gets)]
    names += [a.host for a in (*state.aggregators, *state.distributors)]
    if state.replica is not None:
        names.append(state.replica.host)
        names += [p.source for p in state.replica.pending]
    return list(dict.fromkeys(names))


def _star(fabric: Fields, rates: Fields, hosts: Iterable[str]) -> Network:
    network = Network.star(fabric.rate_bps("rate", _RATE), latency_ns=fabric.time_ns("latency_ms"))
    for host in dict.fromkeys([*hosts, *rates.keys()]):
        if host in rates:
            own = rates.table(host)
            both = own.rate_bps("rate", "0")
            network.add_host(host, own.rate_bps("up", str(both)), own.rate_bps("down", str(both)))
            own.done()
        else:
            network.add_host(host)
    return network


def _graph(fabric: Fields, links: Iterable[Fields], hosts: Iterable[str]) -> Network:
    """Cables both ways unless they say otherwise; whatever is no host is a switch."""
    rate_bps, latency_ns = fabric.rate_bps("rate", _RATE), fabric.time_ns("latency_ms")
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in links:
        tail, head = link.text("from"), link.text("to")
        capacity_bps, ends = link.rate_bps("rate", str(rate_bps)), [(tail, head)]
        delay_ns = link.time_ns("latency_ms", latency_ns / 1e6)
        if not link.flag("one_way"):
            ends.append((head, tail))
        link.done()
        for one, two in ends:
            if graph.has_edge(one, two):
                raise ConfigError(f"{link.where}: {one} to {two} is given before; one_way gives each direction its own")
            graph.add_edge(one, two, capacity_bps=capacity_bps, latency_ns=delay_ns)
    for host in hosts:
        if host not in graph:
            raise ConfigError(f"host {host!r} is on no link; the links join {', '.join(sorted(graph))}")
        graph.nodes[host]["host"] = True
    return Network.from_graph(graph)


def _change(network: Network, table: Fields) -> None:
    name, at_ns, bps = table.text("link"), table.time_ns("at_ms", None), table.rate_bps("rate")
    table.done()
    links: dict[str, LinkId] = {str(link): link for link in network.links}
    if name not in links:
        raise ConfigError(f"{table.where}: link = {name!r}; allowed: {', '.join(links)}")
    network.plan_rate_change(links[name], at_ns, bps)


def _config(table: Fields) -> PlannerConfig:
    usual = PlannerConfig()
    found = PlannerConfig(
        consistency=table.choice("consistency", Consistency.ASYNCHRONOUS),
        objective=table.choice("objective", Objective.MEAN_COMMIT),
        tau_max=table.whole_or_none("tau_max"),
        shapes=frozenset(table.choices("shapes", [shape for shape in Shape if shape in OWN_SHAPES])),
        gamma=table.number("gamma", usual.gamma, most=_MOST_GAMMA),
        chunk_bytes=table.size_bytes("chunk", str(usual.chunk_bytes)),
        div_max=_bound(table),
        replicate_from=table.number("replicate_from", usual.replicate_from, most=1.0),
        slack=table.whole("slack", usual.slack),
    )
    table.done()
    return found


def _bound(table: Fields) -> DivergenceBound | None:
    given = "div_max" in table or "div_max_updates" in table
    bound = DivergenceBound(norm=table.number("div_max", math.inf), updates=table.whole_or_none("div_max_updates"))
    return bound if given else None
