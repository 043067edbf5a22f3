"""The server of the vanilla parameter servers: one thread that serves all workers' connections.

Each worker's connection either takes in a gradient or sends out an answer, straight into and from that worker's own
vectors, so gradients and answers of different workers share the link as TCP shares it, and none waits for another.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import closing

import numpy as np
import torch

from benchmarks.testbed.recording import SnapshotKeeper
from benchmarks.testbed.runs import Consistency, RunPlan, ServerLog
from benchmarks.testbed.systems.sgd import Momentum
from mlfabric.errors import TransferError

__all__ = ["give", "serve", "take"]

SILENCE_S = 120.0
CLOSED = "the other end closed its connection in the middle of a run; see its own output"


def take(sock: socket.socket, vector: np.ndarray) -> None:
    """Fill a vector from a blocking socket; the kernel wakes this thread when all of it is there.

    Raises:
        TransferError: the other end closed the connection first.
    """
    view = vector.data.cast("B")
    while view:
        try:
            n = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        except ConnectionError as error:
            raise TransferError(CLOSED) from error
        if n == 0:
            raise TransferError(CLOSED)
        view = view[n:]


def give(sock: socket.socket, vector: np.ndarray) -> None:
    """Send all of a vector over a blocking socket.

    Raises:
        TransferError: the other end closed the connection first.
    """
    try:
        sock.sendall(vector.data.cast("B"))
    except ConnectionError as error:
        raise TransferError(CLOSED) from error


def serve(plan: RunPlan, sockets: Mapping[int, socket.socket]) -> ServerLog:
    """Serve all workers until each has been told that the run is over.

    Args:
        plan: its consistency says when a gradient takes effect.
        sockets: connected to the worker of each rank.

    Raises:
        TransferError: a worker ended early, or all were silent for too long.
    """
    with closing(selectors.DefaultSelector()) as selector:
        return _Server(plan, sockets, selector).run()


class _Peer:
    """A worker as the server sees it: its connection, and what is on its way to or from it.

    Args:
        gradient, answer: float32; take what comes in, and hold what goes out.
    """

    def __init__(self, rank: int, sock: socket.socket, gradient: np.ndarray, answer: np.ndarray) -> None:
        self.rank = rank
        self.sock = sock
        self.gradient = gradient
        self.answer = answer
        self.steps = 0
        self.read_version = 0
        self._left = gradient.data.cast("B")

    def read(self) -> bool:
        """Take in what is there; tell whether the gradient is complete."""
        n = self.sock.recv_into(self._left)
        if n == 0:
            raise TransferError(f"worker {self.rank} closed its connection in the middle of a run; see its own output")
        self._left = self._left[n:]
        return not self._left

    def begin_answer(self, weights: np.ndarray, *, over: bool) -> None:
        """Prepare the answer, from which the worker's next step starts."""
        self.answer[:-1] = weights
        self.answer[-1] = over
        self._left = self.answer.data.cast("B")

    def write(self) -> bool:
        """Send out what the connection takes; tell whether the answer is gone."""
        self._left = self._left[self.sock.send(self._left) :]
        if self._left:
            return False
        self._left = self.gradient.data.cast("B")
        return True


class _Server:
    """The model, and the loop that serves it."""

    def __init__(self, plan: RunPlan, sockets: Mapping[int, socket.socket], selector: selectors.BaseSelector) -> None:
        weights = plan.workload.build().initial()
        self._plan = plan
        self._selector = selector
        self._model = Momentum(weights, step_size=plan.step_size(len(sockets)), momentum=plan.momentum)
        self._gradients = np.empty((len(sockets), len(weights)), dtype=np.float32)
        self._peers = [
            _Peer(rank, sock, row, np.empty(len(weights) + 1, dtype=np.float32))
            for (rank, sock), row in zip(sorted(sockets.items()), self._gradients, strict=True)
        ]
        self._waiting: list[_Peer] = []
        self._version = 0
        self._began_ns = 0
        self._applied: list[tuple[int, int, int]] = []
        self._keeper = SnapshotKeeper()

    def run(self) -> ServerLog:
        """Serve until all workers have been told that the run is over."""
        self._begin()
        while self._selector.get_map():
            ready = self._selector.select(SILENCE_S)
            if not ready:
                raise TransferError(f"no worker sent or took anything for {SILENCE_S:g} s; see their own outputs")
            for key, _ in ready:
                self._go_on(key.data, key.events)
        applied_ns, workers, delays = zip(*self._applied, strict=True)
        return ServerLog(
            began_ns=self._began_ns,
            applied_ns=np.array(applied_ns, dtype=np.int64),
            workers=np.array(workers, dtype=np.int32),
            delays=np.array(delays, dtype=np.int32),
            snapshots=self._keeper.finish(applied_ns[-1], self._version, self._model.weights),
        )

    def _begin(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._keeper.offer(self._began_ns, 0, self._model.weights)
        for peer in self._peers:
            peer.sock.sendall(np.int64(self._began_ns).tobytes())
            peer.sock.setblocking(False)
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)

    def _go_on(self, peer: _Peer, events: int) -> None:
        """Do what a connection is ready for."""
        if events == selectors.EVENT_READ:
            if peer.read():
                self._selector.unregister(peer.sock)
                self._came(peer)
        elif peer.write():
            self._selector.unregister(peer.sock)
            if not peer.answer[-1]:
                self._selector.register(peer.sock, selectors.EVENT_READ, peer)

    def _came(self, peer: _Peer) -> None:
        """Step along a complete gradient, at once or when it is the last of its round, and answer."""
        self._waiting.append(peer)
        peer.steps += 1
        if self._plan.consistency is Consistency.ASYNCHRONOUS:
            self._model.step(torch.from_numpy(peer.gradient))
        elif len(self._waiting) == len(self._peers):
            self._model.step(torch.from_numpy(self._gradients).mean(0))
        else:
            return
        self._version += 1
        now_ns = time.monotonic_ns()
        self._keeper.offer(now_ns, self._version, self._model.weights)
        for answered in self._waiting:
            self._answer(answered, now_ns)
        self._waiting.clear()

    def _answer(self, peer: _Peer, now_ns: int) -> None:
        self._applied.append((now_ns, peer.rank, self._version - 1 - peer.read_version))
        peer.read_version = self._version
        peer.begin_answer(self._model.weights, over=self._plan.is_over(self._began_ns, now_ns, peer.steps))
        self._selector.register(peer.sock, selectors.EVENT_WRITE, peer)
