"""How many bytes of updates a server takes in with aggregators and without, for the same number of updates applied.

Services are processes of their own, one fabric with three aggregators and one with none; eight workers push at the same
time, again and again, over sockets. All cards that updates cross are emulated: the server's and the workers' alike, the
aggregators' twice as fast. Workers keep the momentum, so a sum is one tensor. Of each eight updates the first is
planned by itself, since it finds the server idle, and the others together, when the server has almost taken it in: the
batch window is so long that it never ends a batch.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from prometheus_client.parser import text_string_to_metric_families

import mlfabric
from benchmarks.fabric_processes import FabricPlan, Place, Services, run_services
from mlfabric.planning import warm_up

__all__ = ["run"]

WORKERS = 8
AGGREGATORS = 3
CARD = "40M"
AGGREGATOR_CARD = "80M"
ELEMENTS = 100_000  # 80 ms over a card
STEPS = 6
RULE = mlfabric.RuleSpec(lr=1e-3, momentum=0.9, momentum_at=mlfabric.MomentumAt.WORKERS)
BATCH_WINDOW = ("--batch-window", "5")
PATIENCE_S = 120.0

TORN = "mlfabric_sums_torn_total cause="


class Round(NamedTuple):
    """Some steps of all workers.

    Args:
        time_s: from the first push to the last outcome.
        counted: how much each metric of the scheduler and the server has grown.
    """

    time_s: float
    counted: dict[str, float]

    @property
    def applied(self) -> int:
        """Updates that were applied."""
        return round(self.counted["mlfabric_commits_total"])

    @property
    def ingress_bytes(self) -> float:
        """Bytes of updates that the server took in."""
        return self.counted["mlfabric_received_bytes_total"]

    @property
    def sums(self) -> int:
        """Sums that the server took in."""
        return round(self.counted.get("mlfabric_received_total kind=sum", 0))

    @property
    def summed(self) -> int:
        """Updates that came in sums."""
        return self.applied - round(self.counted["mlfabric_received_total kind=update"])

    @property
    def torn(self) -> dict[str, int]:
        """Sums that were given up, by reason."""
        return {k.removeprefix(TORN): round(n) for k, n in self.counted.items() if k.startswith(TORN) and n}

    def batches(self, least: int, most: int) -> int:
        """Return how many batches of more than ``least`` and up to ``most`` updates were planned."""
        upper, lower = (self.counted.get(f"mlfabric_batch_updates_bucket le={n}.0", 0) for n in (most, least))
        return round(upper - lower)


class Fabric:
    """Services that run, and the workers that push to them."""

    def __init__(self, services: Services, workers: Sequence[mlfabric.Worker], tensors: Sequence[torch.Tensor]) -> None:
        self._services = services
        self._workers = workers
        self._tensors = tensors

    def measure(self) -> Round:
        """Let all workers push at the same time, a few times.

        Raises:
            RuntimeError: not every update was applied.
        """
        before, began_s = self._counted(), time.monotonic()
        for _ in range(STEPS):
            self._step()
        time_s, after = time.monotonic() - began_s, self._counted()
        found = Round(time_s, {name: value - before[name] for name, value in after.items()})
        if found.applied != WORKERS * STEPS:
            raise RuntimeError(f"{found.applied} updates were applied; {WORKERS * STEPS} were to be")
        return found

    def _step(self) -> None:
        for tensor in self._tensors:
            tensor.grad = torch.randn(ELEMENTS)
        handles = [worker.push() for worker in self._workers]
        for handle in handles:
            handle.result(PATIENCE_S)
        for worker in self._workers:
            worker.get()

    def _counted(self) -> defaultdict[str, float]:
        """Return each metric, summed over all labels, and over all but one label for each value of that one."""
        found: defaultdict[str, float] = defaultdict(float)
        for page in (self._services.scheduler_metrics(), self._services.server_metrics()):
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    found[sample.name] += sample.value
                    for label, value in sample.labels.items():
                        found[f"{sample.name} {label}={value}"] += sample.value
        return found


def run(rounds: int = 5) -> dict[str, Any]:
    """Compare the bytes into a server's card with and without aggregators, in turns.

    Returns:
        ``ingress_bytes_ratio``: without over with, the median of all rounds; ``ingress_time_ratio``, likewise of the
        time that a round takes; ``ingress_updates_applied`` in each round. Of all rounds with aggregators:
        ``ingress_batches_of_one`` and ``ingress_batches_of_five_to_eight``, ``ingress_sums``,
        ``ingress_members_per_sum``, and ``ingress_torn_sums`` by reason.

    Raises:
        RuntimeError: a service failed, or not every update was applied.
    """
    warm_up(lambda _: None)
    with _fabric(0) as plain, _fabric(AGGREGATORS) as summing:
        pairs = [(plain.measure(), summing.measure()) for _ in range(rounds)]
    found = [with_sums for _, with_sums in pairs]
    sums, torn = sum(r.sums for r in found), Counter[str]()
    for r in found:
        torn.update(r.torn)
    return {
        "ingress_bytes_ratio": statistics.median(a.ingress_bytes / b.ingress_bytes for a, b in pairs),
        "ingress_time_ratio": statistics.median(a.time_s / b.time_s for a, b in pairs),
        "ingress_updates_applied": WORKERS * STEPS,
        "ingress_batches_of_one": sum(r.batches(0, 1) for r in found),
        "ingress_batches_of_five_to_eight": sum(r.batches(4, 8) for r in found),
        "ingress_sums": sums,
        "ingress_members_per_sum": sum(r.summed for r in found) / max(1, sums),
        "ingress_torn_sums": dict(torn),
    }


@contextmanager
def _fabric(aggregators: int) -> Iterator[Fabric]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        plan = FabricPlan(
            directory=Path(directory),
            aggregators=aggregators,
            server_down=CARD,
            aggregator_card=AGGREGATOR_CARD,
            scheduler=BATCH_WINDOW,
        )
        services = stack.enter_context(run_services(plan))
        tensors = [torch.nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(WORKERS)]
        places = [Place(scheduler=services.scheduler, rank=i, workers=WORKERS, up=CARD) for i in range(WORKERS)]

        def join(place: Place) -> mlfabric.Worker:
            weights = {"w": tensors[place.rank]}
            worker = mlfabric.register_as_worker(weights, rule=RULE, tau_max=1000, settings=place.settings)
            stack.callback(worker.leave)
            worker.get()
            return worker

        with ThreadPoolExecutor(WORKERS) as pool:
            workers = list(pool.map(join, places))
        yield Fabric(services, workers, tensors)
