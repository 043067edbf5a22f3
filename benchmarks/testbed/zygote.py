"""Forks children into hosts: a process that has imported everything once, so that each child begins in milliseconds.

A launcher starts it in a session of its own, where no Ctrl-C comes, and is the only one who talks to it, over a socket
of packets. It forks, says how each child ended, and sends signals, but to children that have not ended (a process id is
used again). When the launcher ends, however it does, the socket closes, and zygote and children end too.

Nothing that a fork could catch in the middle of something may run in here: there is one thread.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import socket
import struct
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import NoReturn

from benchmarks.testbed.inside import EXIT_FAILED, be_child
from benchmarks.testbed.orders import Began, Kill, Start

__all__ = ["ORDER_BYTES", "PIPES", "PRELOADED", "STATUS", "main"]

PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch._dynamo",  # the first optimizer of a process imports it, which takes seconds of each child's time
    "grpc.aio",
    "mlfabric",
    "mlfabric.cli.app",
    "mlfabric.worker_daemon.register",
)
ORDER_BYTES = 64 * 1024
PIPES = 3
STATUS = struct.Struct("=i")
"""How a child's end is told: its exit code, or the signal that ended it as a negative number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    number: int
    pid: int
    pidfd: int
    status_fd: int


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        """Obey until the launcher ends."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, _Child):
                    self._reap(key.data)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Do what the next order says; False if none will come."""
        data, pipes, *_ = socket.recv_fds(self._control, ORDER_BYTES, PIPES, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        match pickle.loads(data):
            case Start() as order:
                self._start(order, pipes)
            case Kill(number=number, signal=kind) if number in self._children:
                os.kill(self._children[number].pid, kind)
        return True

    def _start(self, order: Start, pipes: Sequence[int]) -> None:
        outcome_fd, messages_fd, status_fd = pipes
        zygote, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                self._forget(status_fd)
                be_child(order, outcome_fd, messages_fd, zygote)
            finally:
                os._exit(EXIT_FAILED)  # whatever happens, a child never gets back into the zygote's loop
        os.close(outcome_fd)
        os.close(messages_fd)
        child = _Child(number=order.number, pid=pid, pidfd=os.pidfd_open(pid), status_fd=status_fd)
        self._children[order.number] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self._control.send(pickle.dumps(Began(pid=pid)))

    def _forget(self, status_fd: int) -> None:
        """Close, in a child, what is the zygote's."""
        self._selector.close()
        self._control.close()
        os.close(status_fd)
        for other in self._children.values():
            os.close(other.pidfd)
            os.close(other.status_fd)

    def _reap(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.number]
        with Connection(child.status_fd, readable=False) as end, suppress(BrokenPipeError):
            end.send_bytes(STATUS.pack(os.waitstatus_to_exitcode(status)))

    def kill_all(self) -> None:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)


def main(control_fd: int, preloaded: Sequence[str]) -> NoReturn:
    """Be a zygote.

    Args:
        control_fd: socket to the launcher.
        preloaded: names of modules to import besides its own.

    Raises:
        RuntimeError: something that was imported has started threads.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.gettempdir()  # torch makes a folder of its own there otherwise
    modules = (*PRELOADED, *preloaded)
    for module in modules:
        import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads after importing {', '.join(modules)}; a fork would break some of them")
    gc.collect()
    gc.freeze()
    zygote = _Zygote(socket.socket(fileno=control_fd))
    code = 0
    try:
        zygote.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the launcher has ended in the middle of something
    except Exception:
        traceback.print_exc()
        code = EXIT_FAILED
    zygote.kill_all()
    os._exit(code)
