"""How fast the planner is, on one core: a whole plan and its stages.

The paper's setting (its C++ took 30, 440 and 1,460 ms for 100, 500 and 1,000 updates): U updates from U / 2 hosts on
equal links into a core without congestion, two from each host, of one size, with deadlines uniform in 1..2U; 8
aggregators, and a replica that a bound on the divergence keeps busy. Two more rows: sizes drawn uniformly from 1 to
100 MB, and a two-tier leaf-spine of 64 hosts. Plans are made as the live scheduler makes them, with all shapes;
checking a plan is not in the figures. Times are CPU times of the one thread that plans: it waits for nothing, so they
are what it takes on an idle core, whatever else runs here.

Rounds of AllReduce are in ``round_plans.py``.

``mlfabric bench planner --json FILE``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import networkx as nx

from benchmarks import round_plans
from mlfabric.network import Network
from mlfabric.planning import (
    Aggregator,
    Batch,
    Candidate,
    DivergenceBound,
    FabricState,
    PlannerConfig,
    Replica,
    plan,
    push_plan,
    warm_up,
)
from mlfabric.protocol import UpdateId

__all__ = ["run"]

GBPS = 10**9
MB = 10**6
SIZES = (100, 500, 1000, 10_000)
AGGREGATORS = 8
STAGES = {"order": "order_ms", "forward_trees": "aggregate_ms", "replicate": "replicate_ms"}
READY = """
import sys, time
began = time.perf_counter()
from mlfabric.planning import warm_up
warm_up(lambda line: None)
sys.stdout.write(str((time.perf_counter() - began) * 1e3))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is planned; a function of its arguments."""

    name: str
    updates: int
    seed: int = 1

    def problem(self) -> tuple[Batch, Network, FabricState, PlannerConfig]:
        """Make the batch, the network, the state and the config."""
        rng, count = random.Random(self.seed), self.updates
        hosts = [f"h{n}" for n in range(64 if self.name == "leaf-spine" else max(1, count // 2))]
        network = _leaf_spine(hosts) if self.name == "leaf-spine" else _star(hosts)
        batch = Batch(updates=tuple(self._update(rng, hosts, n) for n in range(count)))
        config = PlannerConfig(
            tau_max=2 * count,
            div_max=DivergenceBound(norm=count / 4),
        )
        return batch, network, _state(hosts, 2 * count), config

    def _update(self, rng: random.Random, hosts: Sequence[str], n: int) -> Candidate:
        return Candidate(
            update=UpdateId(f"w{n % len(hosts)}", 0, n // len(hosts)),
            source=hosts[n % len(hosts)],
            size_bytes=rng.randint(MB, 100 * MB) if self.name == "random sizes" else 100 * MB,
            ready_ns=0,
            computed_from=rng.randint(1, 2 * self.updates) - 1,
            norm=1.0,
        )


def _state(hosts: Sequence[str], v_init: int) -> FabricState:
    helpers = tuple(Aggregator(host=host) for host in hosts[:AGGREGATORS])
    return FabricState(now_ns=0, v_init=v_init, server="server", aggregators=helpers, replica=Replica(host="replica"))


def _star(hosts: Sequence[str]) -> Network:
    network = Network.star(10 * GBPS)
    for host in ("server", "replica", *hosts):
        network.add_host(host)
    return network


def _leaf_spine(hosts: Sequence[str]) -> Network:
    """Racks of 16 and two spines, oversubscribed 2:1; server and replica are in the first two racks."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    racks = {host: f"leaf{n // 16}" for n, host in enumerate(hosts)} | {"server": "leaf0", "replica": "leaf1"}
    cables = [(host, leaf, 10 * GBPS) for host, leaf in racks.items()]
    cables += [(leaf, spine, 40 * GBPS) for leaf in sorted(set(racks.values())) for spine in ("spine0", "spine1")]
    for one, other, bps in cables:
        for tail, head in ((one, other), (other, one)):
            graph.add_edge(tail, head, capacity_bps=bps, latency_ns=1000)
    nx.set_node_attributes(graph, dict.fromkeys(racks, True), "host")
    return Network.from_graph(graph)


def run(
    runs: int = 7, sizes: Sequence[int] = SIZES, workers: Sequence[int] = round_plans.WORKERS, ready: bool = True
) -> dict[str, Any]:
    """Measure all rows.

    Args:
        runs: plans of each row; the fastest counts, as anything else that runs here only adds.
        sizes: numbers of updates in the paper's setting.
        workers: of rounds of AllReduce.
        ready: whether a fresh process is timed until it is ready to plan, with a cold cache (up to a minute) and a warm
            one.

    Returns:
        ``rows`` with ``setting``, ``updates``, ``order_ms``, ``aggregate_ms``, ``replicate_ms``, ``total_ms`` (of
        ``plan`` as a whole) and what came of it. ``growth`` is the total at the most updates over that at a tenth of
        these. ``rounds``: see ``round_plans.py``.
    """
    warm_up(_progress)
    cases = [Case(name="paper", updates=count) for count in sizes]
    cases += [Case(name="random sizes", updates=1000), Case(name="leaf-spine", updates=500)]
    rows = [_row(case, runs) for case in cases]
    _progress("rounds")
    found: dict[str, Any] = {"rows": rows, "rounds": list(round_plans.rows(runs, workers))}
    total = {row["updates"]: row["total_ms"] for row in rows if row["setting"] == "paper"}
    if max(total) // 10 in total:
        found["growth"] = total[max(total)] / total[max(total) // 10]
    return found | (_ready() if ready else {})


def _row(case: Case, runs: int) -> dict[str, Any]:
    _progress(f"{case.updates} updates, {case.name}")
    problem = case.problem()
    times: list[dict[str, float]] = []
    totals = [_ms(lambda: plan(*problem)) for _ in range(runs)]
    for _ in range(runs):
        with _stages() as stages:
            made = plan(*problem)
        times.append(stages)
    row: dict[str, Any] = {"setting": case.name, "updates": case.updates}
    row |= {stage: min(found[stage] for found in times) for stage in STAGES.values()}
    row |= {
        "total_ms": min(totals),
        "commits": len(made.commits),
        "groups": len(made.groups),
        "replica_steps": len(made.replica_steps),
    }
    return row


@contextmanager
def _stages() -> Iterator[dict[str, float]]:
    """Count what the stages of ``plan`` take, in ms."""
    found = dict.fromkeys(STAGES.values(), 0.0)

    def timed(name: str, stage: Callable[..., Any]) -> Callable[..., Any]:
        def run_stage(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            result = stage(*args, **options)
            found[name] += (time.thread_time() - began) * 1e3
            return result

        return run_stage

    stages: Mapping[str, Any] = {stage: timed(name, getattr(push_plan, stage)) for stage, name in STAGES.items()}
    with patch.multiple(push_plan, **stages):
        yield found


def _ms(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e3


def _ready() -> dict[str, float]:
    """Time fresh processes from their first line until they are ready to plan."""
    found = {}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold_ready_ms", "warm_ready_ms"):
            _progress(f"a fresh process, {name.partition('_')[0]} cache")
            # Python keeps byte code unless it is told not to: a user's cold start writes it, the warm one reads it.
            environment = kept | {"NUMBA_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
            command = [sys.executable, "-c", READY]
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[name] = float(ended.stdout)
    return found


def _progress(line: str) -> None:
    sys.stderr.write(f"planner: {line}\n")
