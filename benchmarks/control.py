"""What control costs: time added to a training step, decisions per second, and how long a worker waits for one.

1. *A lone worker* with a tiny model; scheduler, server and worker are processes of their own. Steps through the fabric
   (gradient, push, get) and plain local ones (gradient, SGD) take turns; the figure is the difference of the medians.
2. *256 simulated workers* and a simulated server in one client process, over real gRPC streams, against one scheduler
   process. In the closed loop each worker asks to push again as soon as it is answered. In the open loop requests
   arrive at random at a given rate, and latency counts from the arrival. The same streams against an echo, measured in
   turns with them, tell what gRPC alone costs here.

``mlfabric bench control --json FILE``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe

from benchmarks.control_load import LoadOptions, measure, serve_echo
from benchmarks.processes import HOST, child, next_answer, run_on_loop, scheduler_process, service

__all__ = ["run"]

STEPS = 400
WARM_UP_STEPS = 50


def run(
    rate_per_s: float = 3000.0, seconds: float = 3.0, rounds: int = 3, steps: int = STEPS, seed: int = 0
) -> dict[str, float]:
    """Measure the control plane on this machine; about a minute.

    Args:
        rate_per_s: arrivals in the open loop.
        seconds: length of each window.
        rounds: windows of each kind; medians are told.
        steps: training steps of each kind.
        seed: of arrivals.

    Returns:
        ``added_ms_per_step``, ``local_ms``, ``fabric_ms``: of a training step. ``decisions_per_s``: closed loop.
        ``p50_ms``, ``p99_ms``: from arrival to answer at ``open_per_s``. ``bare_per_s``: the echo, and
        ``ratio_to_bare``: the closed loop over it. ``scheduler_cpu_us_per_decision``, ``client_cpu_us_per_decision``.

    Raises:
        RuntimeError: a measuring process failed or was too slow.
    """
    with scheduler_process() as (address, _), service("server", "--scheduler", address):
        step = _ask(partial(_train, address, steps))
    with scheduler_process() as (address, pid), child(_echo_end) as echo:
        options = LoadOptions(
            scheduler=address,
            echo=f"{HOST}:{next_answer(echo)}",
            scheduler_pid=pid,
            rate_per_s=rate_per_s,
            seconds=seconds,
            rounds=rounds,
            seed=seed,
        )
        load = _ask(partial(_load, options))
    return {**step, **load, "ratio_to_bare": load["decisions_per_s"] / load["bare_per_s"]}


# Processes


def _ask(work: Callable[[Pipe], None]) -> dict[str, float]:
    with child(work) as pipe:
        answer: dict[str, float] = next_answer(pipe)
        return answer


def _echo_end(pipe: Pipe) -> None:
    run_on_loop(serve_echo(pipe))


def _load(options: LoadOptions, pipe: Pipe) -> None:
    pipe.send(run_on_loop(measure(options)))


# A lone worker's step


def _train(address: str, steps: int, pipe: Pipe) -> None:
    import torch  # here, so that the processes that make load need not load it

    import mlfabric

    torch.set_num_threads(1)
    plain, model = (torch.nn.Linear(32, 10) for _ in range(2))
    inputs, labels = torch.randn(32, 32), torch.randint(0, 10, (32,))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)

    def gradient(of: torch.nn.Module) -> None:
        torch.nn.functional.cross_entropy(of(inputs), labels).backward()  # type: ignore[no-untyped-call]

    def local_step() -> None:
        gradient(plain)
        optimizer.step()
        optimizer.zero_grad()

    rule = mlfabric.RuleSpec(lr=0.01)
    with mlfabric.register_as_worker(model, rule=rule, scheduler=address, name="lone") as worker:
        worker.get()

        def fabric_step() -> None:
            gradient(model)
            worker.push()
            worker.get()

        pipe.send(_compare_steps(local_step, fabric_step, steps))


def _compare_steps(local: Callable[[], None], fabric: Callable[[], None], steps: int) -> dict[str, float]:
    taken_ms: tuple[list[float], list[float]] = ([], [])
    for step in range(WARM_UP_STEPS + steps):
        for one, kept in zip((local, fabric), taken_ms, strict=True):
            began_s = time.perf_counter()
            one()
            if step >= WARM_UP_STEPS:
                kept.append(1e3 * (time.perf_counter() - began_s))
    local_ms, fabric_ms = map(statistics.median, taken_ms)
    return {"added_ms_per_step": fabric_ms - local_ms, "local_ms": local_ms, "fabric_ms": fabric_ms}
