"""Vanilla parameter servers: each worker pushes its gradient, and the server answers with the model.

Asynchronous: the server takes each gradient as soon as it has come, in whatever order, and answers at once; nothing is
ordered, aggregated, delayed or dropped. Synchronous: it waits for the gradients of all workers, steps along their mean
and answers all of them. Momentum is the server's in both.

On the wire, over one TCP connection for each worker: the worker's rank (int64); when all are there, the time at which
the run began (int64); then by turns a gradient (float32, the model's length) and an answer, the model and one element
more, which is 1 when the worker is to end. One thread serves all connections, straight from and into its vectors.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType

import numpy as np

from benchmarks.testbed.recording import StepRecorder
from benchmarks.testbed.runs import Place, RunPlan, ServerLog, Service, WorkerLog
from benchmarks.testbed.systems.serving import give, serve, take
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import PaddedCompute
from mlfabric.errors import UnavailableError

__all__ = ["SERVER", "SERVICES", "server", "worker"]

SERVER = "server"
TIMEOUT_S = 120.0
RETRY_S = 0.05


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Compute gradients, push them, and take the model from the answers, until the server says that the run is over.

    Raises:
        UnavailableError: nobody serves on the server's host.
        TransferError: the server ended early.
    """
    rank = place.own_rank
    workload = plan.workload.build()
    padded = compute_of(PaddedCompute, place, plan)
    recorder = StepRecorder()
    gradient = np.empty(workload.n_parameters, dtype=np.float32)
    answer = np.empty(workload.n_parameters + 1, dtype=np.float32)
    answer[:-1] = workload.initial()
    with _connect(place.addresses[SERVER], place.port) as sock:
        give(sock, np.array([rank], dtype=np.int64))
        began_ns = np.empty(1, dtype=np.int64)
        take(sock, began_ns)
        step, over = 0, False
        while not over:
            recorder.start()
            compute = partial(workload.gradient, answer[:-1], rank, step, gradient)
            recorder.computed(padded.run(step, compute)[1])
            give(sock, gradient)
            take(sock, answer)
            recorder.end()
            step, over = step + 1, bool(answer[-1])
    return recorder.log(rank=rank, began_ns=int(began_ns[0]), overruns=padded.overruns)


def _connect(address: str, port: int) -> socket.socket:
    """Connect as soon as somebody listens there."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            sock = socket.create_connection((address, port), timeout=TIMEOUT_S)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"no parameter server at {address}:{port}: {error}; start it too") from error
            time.sleep(RETRY_S)
        else:
            sock.setblocking(True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock


def server(place: Place, plan: RunPlan) -> ServerLog:
    """Keep the model until every worker has been told that the run is over.

    Raises:
        UnavailableError: not all workers came.
        TransferError: a worker ended early.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(
            socket.create_server((place.addresses[SERVER], place.port), backlog=place.workers)
        )
        listener.settimeout(TIMEOUT_S)
        by_rank: dict[int, socket.socket] = {}
        while len(by_rank) < place.workers:
            sock = stack.enter_context(_accept(listener, len(by_rank), place.workers))
            rank = np.empty(1, dtype=np.int64)
            take(sock, rank)
            by_rank[int(rank[0])] = sock
        return serve(plan, by_rank)


def _accept(listener: socket.socket, present: int, wanted: int) -> socket.socket:
    try:
        sock, _ = listener.accept()
    except TimeoutError as error:
        raise UnavailableError(
            f"{present} of {wanted} workers came within {TIMEOUT_S:g} s; start all of them"
        ) from error
    sock.settimeout(TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


SERVICES: Mapping[str, Service] = MappingProxyType({SERVER: server})
