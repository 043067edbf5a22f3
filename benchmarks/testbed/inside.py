"""What a child does between the fork and its end: moves into its host and runs its function."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from types import FrameType
from typing import NoReturn

from benchmarks.testbed.namespaces import enter, set_host_name
from benchmarks.testbed.orders import Raised, Returned, Start

__all__ = ["EXIT_FAILED", "be_child", "to_parent"]

EXIT_FAILED = 1
EXIT_ON_SIGNAL = 128
PR_SET_PDEATHSIG = 1
_to_parent: list[Connection] = []


def to_parent() -> Connection:
    """Return this child's end of its ``Child.messages``.

    Raises:
        RuntimeError: this process runs no function that a launcher started.
    """
    if not _to_parent:
        raise RuntimeError("only a function that a Launcher has started has a connection to its parent")
    return _to_parent[0]


def be_child(order: Start, outcome_fd: int, messages_fd: int, zygote: int) -> NoReturn:
    """Do what the order says and end; the fork's parent never gets back here.

    Args:
        order: what to do, and where.
        outcome_fd: brings the function, takes what came of it.
        messages_fd: of :func:`to_parent`.
        zygote: its process id.
    """
    code = EXIT_FAILED
    try:
        with Connection(outcome_fd) as outcome:
            try:
                _prepare(order, zygote)
                _to_parent.append(Connection(messages_fd))
                function, arguments = pickle.loads(outcome.recv_bytes())
                outcome.send(Returned(value=function(*arguments)))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else EXIT_FAILED if end.code else 0
            except BaseException as error:
                traceback.print_exc()
                summary = "".join(traceback.format_exception_only(error)).strip()
                outcome.send(Raised(summary=summary, traceback=traceback.format_exc().rstrip()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prepare(order: Start, zygote: int) -> None:
    """Become a process of the host: its network, its name, its environment, its output, its signals."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != zygote:
        sys.exit(EXIT_ON_SIGNAL + signal.SIGKILL)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    if order.namespace:
        enter(order.namespace)
        set_host_name(order.host_name)
    os.environ.update(order.environment)
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(EXIT_ON_SIGNAL + number)
