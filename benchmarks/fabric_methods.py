"""Whether methods keep their promises: synchronous workers against one process, asynchronous ones against the bound.

*Synchronous*: 3 and 4 workers train 20 steps in float64, each on its share of every batch, with momentum and weight
decay, on one server and on three, with and without sums on the way (the servers' incoming links are slow then, so that
sums are planned). One process trains on whole batches with ``torch.optim.SGD``.

*Asynchronous*: some workers compute slowly, some have slow network cards, the server's incoming link is busy enough for
sums, and all go on until the server has applied so many updates. The delays are read from the server's own commit log.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import mlfabric
from benchmarks.fabric_processes import FabricPlan, Job, Place, run_fabric, wait_for_all

__all__ = ["asynchronous", "synchronous"]

STEPS = 20
ROWS = 4
COLUMNS = 80
RULE = mlfabric.RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01)
SLOW_DOWN = "20M"

TAU_MAX = 8
AGGREGATORS = 2
BUSY_DOWN = "60M"
ELEMENTS = 8192
COMPUTE_S = (0.002, 0.002, 0.002, 0.02, 0.002, 0.002)
UP = ("", "", "", "", "30M", "15M")

Weights = list[npt.NDArray[np.float64]]


# Synchronous


def synchronous(workers: Sequence[int] = (3, 4)) -> dict[str, Any]:
    """Compare the weights that synchronous workers end with to those of one process.

    Args:
        workers: how many there are, one number after the other.

    Returns:
        ``sync_max_rel_diff``: the greatest difference of an element, relative to the greatest element of its tensor;
        and what it is by case.

    Raises:
        RuntimeError: a process failed, or no sums were made where they were to be.
    """
    cases = {
        f"{count} workers"
        + (f", {servers} servers" if servers > 1 else "")
        + (f", {aggregators} aggregators" if aggregators else ""): (count, servers, aggregators)
        for count in workers
        for servers in (1, 3)
        for aggregators in (0, 2)
    }
    found = {f"sync_max_rel_diff {name}": _difference(*case) for name, case in cases.items()}
    return {"sync_max_rel_diff": max(found.values()), **found}


def _difference(workers: int, servers: int, aggregators: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        slow = SLOW_DOWN if aggregators else ""
        plan = FabricPlan(directory=Path(directory), servers=servers, aggregators=aggregators, server_down=slow)
        found = run_fabric(plan, Job(work=_train_synchronously, up=("",) * workers, arguments=(servers,)))
    if aggregators and not found.sums:
        raise RuntimeError(f"{aggregators} aggregators were there, and no sum reached a server")
    expected = _train_alone(workers)
    return max(_relative(weights, expected) for weights in found.answers)


def _relative(ours: Weights, expected: Weights) -> float:
    pairs = zip(ours, expected, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(COLUMNS, COLUMNS), torch.nn.Tanh(), torch.nn.Linear(COLUMNS, 2)).double()


def _weights(net: torch.nn.Module) -> Weights:
    return [parameter.detach().numpy() for parameter in net.parameters()]


def _share(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    own = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = (torch.randn(ROWS, n, dtype=torch.float64, generator=own) for n in (COLUMNS, 2))
    return inputs, targets


def _loss(net: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(net(inputs), targets)


def _train_alone(workers: int) -> Weights:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=RULE.lr, momentum=RULE.momentum, weight_decay=RULE.weight_decay)
    for step in range(STEPS):
        inputs, targets = (torch.cat(parts) for parts in zip(*(_share(step, r) for r in range(workers)), strict=True))
        optimizer.zero_grad()
        _loss(net, inputs, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _weights(net)


def _train_synchronously(place: Place, servers: int) -> Weights:
    net = _net()
    optimizer = mlfabric.wrap(
        torch.optim.SGD(net.parameters(), lr=RULE.lr, momentum=RULE.momentum, weight_decay=RULE.weight_decay),
        net,
        method=mlfabric.Method.SYNCHRONOUS,
        servers=servers,
        settings=place.settings,
    )
    wait_for_all(place)  # an iteration is of those that are there
    for step in range(STEPS):
        inputs, targets = _share(step, place.rank)
        _loss(net, inputs, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    optimizer.worker.leave()
    return _weights(net)


# Asynchronous


def asynchronous(updates: int = 10_000) -> dict[str, Any]:
    """Compare the delays in a server's commit log with the bound.

    Args:
        updates: to be applied.

    Returns:
        ``delay_excess_max``: the greatest delay of an applied update, less the bound; ``delay_max``, that delay;
        ``tau_max``; ``updates_applied``, ``sums_received`` and ``updates_dropped``; ``applied_share_of_stragglers``, of
        their own updates.
    """
    with tempfile.TemporaryDirectory() as directory:
        plan = FabricPlan(directory=Path(directory), aggregators=AGGREGATORS, server_down=BUSY_DOWN)
        found = run_fabric(plan, Job(work=_train_asynchronously, up=UP, arguments=(updates,)))
        (log,) = Path(directory).glob("*.commits.jsonl")
        delays = [tau for line in log.read_text().splitlines() for tau in json.loads(line)["tau"]]
    if len(delays) < updates:
        raise RuntimeError(f"{len(delays)} updates are in the commit log; {updates} were to be applied")
    stragglers = [
        end for end, up, compute_s in zip(found.answers, UP, COMPUTE_S, strict=True) if up or compute_s > min(COMPUTE_S)
    ]
    committed, dropped = (sum(end[i] for end in stragglers) for i in (0, 1))
    return {
        "delay_excess_max": max(delays) - TAU_MAX,
        "delay_max": max(delays),
        "tau_max": TAU_MAX,
        "updates_applied": len(delays),
        "sums_received": found.sums,
        "updates_dropped": sum(dropped for _, dropped in found.answers),
        "applied_share_of_stragglers": committed / max(1, committed + dropped),
    }


def _train_asynchronously(place: Place, updates: int) -> tuple[int, int]:
    """Push until the server has applied enough; return how many were committed and dropped."""
    tensor = torch.nn.Parameter(torch.zeros(ELEMENTS))
    rule = mlfabric.RuleSpec(lr=1e-6)
    with mlfabric.register_as_worker({"w": tensor}, rule=rule, tau_max=TAU_MAX, settings=place.settings) as worker:
        worker.get()
        while worker.version.number < updates:
            time.sleep(COMPUTE_S[place.rank])
            tensor.grad = torch.randn(ELEMENTS)
            worker.exchange()
        tally = worker.drain()
    return tally.committed, tally.dropped
