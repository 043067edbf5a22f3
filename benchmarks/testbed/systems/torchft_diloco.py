"""DiLoCo with torchft, which people use over slow links today: each worker is a replica group, gloo is between them.

torchft makes its groups, counts who is there before each round and decides after it whether all have it, as its
documentation shows. All of that is warm when a run begins.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from benchmarks.testbed.overlapping import Buckets
from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog, worker_name
from benchmarks.testbed.systems.collective import TIMEOUT_S, agree_through, meeting_point
from benchmarks.testbed.systems.flat_model import Flat
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import PaddedCompute, Workload
from mlfabric.worker_daemon.local_steps import DILOCO_LR, DILOCO_MOMENTUM

__all__ = ["worker"]

QUORUM_TICK_MS = 5
"""How often it is looked whether all are there; torchft's usual 100 ms would be waited for in each round."""


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train until the run is over.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    workload = plan.workload.build()
    model = Flat(workload, Buckets.even(1 + workload.n_parameters, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=plan.momentum)
    outer = torch.optim.SGD(model.parameters(), lr=DILOCO_LR, momentum=DILOCO_MOMENTUM, nesterov=True)
    inner_steps = plan.wrapped["inner_steps"]
    assert isinstance(inner_steps, int), "it is a number"
    store = meeting_point(place)
    with _manager(place, store) as manager, DiLoCo(manager, [model], sgd, outer, sync_every=inner_steps):
        return _train(place, plan, workload, model, sgd, manager, agree_through(store, place))


def _train(
    place: Place,
    plan: RunPlan,
    workload: Workload,
    model: Flat,
    optimizer: torch.optim.Optimizer,
    manager: Manager,
    began_ns: int,
) -> WorkerLog:
    compute, recorder, rank = compute_of(PaddedCompute, place, plan), StepRecorder(), place.own_rank
    keeper, shared = SnapshotKeeper(every_ns=0), model.values().copy()
    judged = (lambda: workload.accuracy(shared[1:])) if rank == 0 else None
    if rank == 0:
        keeper.offer(began_ns, 0, shared[1:])
    applied_ns: list[int] = []
    rounds: list[int] = []
    step, is_over = 0, False
    while not is_over:
        recorder.start()
        recorder.computed(compute.run(step, partial(workload.gradient, model.weights, rank, step, model.gradient))[1])
        model.say(plan.is_over(began_ns, time.monotonic_ns(), step + 1, judged))
        model.give(0)
        optimizer.step()
        now_ns, step = recorder.end(), step + 1
        version = manager.current_step()
        if version == (rounds[-1] if rounds else 0):
            continue
        gradients = step - len(rounds)
        rounds += [version] * gradients
        applied_ns += [now_ns] * gradients
        shared[:] = model.values()
        is_over = bool(shared[0] != 0)
        if rank == 0:
            keeper.offer(now_ns, version, shared[1:])
    log = recorder.log(rank=rank, began_ns=began_ns, overruns=compute.overruns)
    return replace(
        log,
        snapshots=keeper.taken,
        applied_ns=np.array(applied_ns, dtype=np.int64),
        delays=np.zeros(len(rounds), dtype=np.int32),
        rounds=np.array(rounds, dtype=np.int64),
    )


@contextmanager
def _manager(place: Place, store: TCPStore) -> Iterator[Manager]:
    """Give this worker's part of torchft, its group made; w0 has the service that counts who is there."""
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    own, first = place.addresses[place.name], place.addresses[worker_name(0)]
    lighthouse, lighthouse_port, own_port = None, place.port + 1, place.port + 2
    if place.own_rank == 0:
        lighthouse = LighthouseServer(
            bind=f"{own}:{lighthouse_port}", min_replicas=place.workers, quorum_tick_ms=QUORUM_TICK_MS
        )
        store.set("lighthouse", "is there")
    store.wait(["lighthouse"])
    timeout = timedelta(seconds=TIMEOUT_S)
    listener = socket.create_server((own, own_port), backlog=place.workers)
    kept = TCPStore(own, own_port, 1, is_master=True, timeout=timeout, master_listen_fd=listener.detach())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=place.workers,
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=own_port,
        lighthouse_addr=f"http://{first}:{lighthouse_port}",
        replica_id=f"worker_{place.own_rank}",
        hostname=own,
        init_sync=False,
    )
    try:
        manager.start_quorum()
        manager.allreduce(torch.zeros(1)).wait()
        yield manager
    finally:
        if store.add("ended", 1) == place.workers:
            store.set("all ended", "yes")
        store.wait(["all ended"])
        manager.shutdown()
        del kept
        if lighthouse is not None:
            lighthouse.shutdown()
