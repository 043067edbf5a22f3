"""Processes inside hosts: Python functions and commands, started by the dozen in a second.

A launcher owns a zygote, which has imported everything, and forks a child for each start. Outcomes and exceptions come
back; what a child prints goes to a file of its own. Nothing that was started outlives its launcher, even a killed one.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

from benchmarks.testbed.children import GRACE_S, Child, ChildError, Ends
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.inside import to_parent
from benchmarks.testbed.orders import Began, Kill, Start
from benchmarks.testbed.zygote import ORDER_BYTES
from mlfabric.errors import UnavailableError, UsageError

__all__ = ["Child", "ChildError", "Launcher", "to_parent"]

_ZYGOTE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from benchmarks.testbed.zygote import main; main(int(sys.argv[1]), json.loads(sys.argv[3]))"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Launcher:
    """Starts processes in hosts for as long as its block runs; stops those that are left at the end.

    Several threads may start processes at the same time.

    Args:
        folder: for the files with what children print; made if it is not there. Without one they go at the end.
        preloaded: names of further modules that children find imported; none may start a thread.
    """

    def __init__(self, folder: Path | None = None, *, preloaded: Sequence[str] = ()) -> None:
        self._folder = folder
        self._preloaded = preloaded
        self._children: dict[str, Child] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._folder is None:
                self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlfabric-testbed-")))
            self._folder.mkdir(parents=True, exist_ok=True)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self._control)
            with theirs:
                self._zygote = _start_zygote(theirs.fileno(), self._preloaded)
            stack.callback(self._end_zygote)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *unused: object) -> None:
        with self._stack:
            self._stop_all()

    def start(self, host: Host, function: Callable[..., Any], *arguments: Any, name: str = "") -> Child:
        """Run a function in a host.

        Args:
            host: of the testbed.
            function: of a module's top level; SIGTERM is a SystemExit to it.
            arguments: that can be pickled.
            name: of the child; made of the host's and the function's if it is not given.

        Raises:
            UsageError: the function cannot be sent, or the given name is in use.
            UnavailableError: processes cannot be started.
        """
        if function.__module__ == "__main__":
            raise UsageError(f"function {function.__qualname__} of the main program; give one of a module")
        try:
            call = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(f"function {function!r} with its arguments cannot be sent: {error}") from error
        child, ends = self._begin(host, name or self._name(host, function.__name__.strip("_<>")))
        with suppress(OSError):  # it has ended already, and tells why when it is joined
            ends.outcome.send_bytes(call)
        return child

    def _name(self, host: Host, what: str) -> str:
        """Return a name that is not in use."""
        name = f"{host.name}-{what}"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(name for name in names if name not in self._children)

    def _begin(self, host: Host, name: str) -> tuple[Child, Ends]:
        if not _NAME.fullmatch(name) or name in self._children:
            raise UsageError(f"name of a child {name!r}; allowed: letters, digits and ._-, each name once")
        assert self._folder is not None, "the launcher's block has not begun"
        output = (self._folder / f"{name}.log").resolve()
        order = Start(
            number=next(self._numbers),
            namespace=host.namespace,
            host_name=host.name,
            environment=tuple(_environment(host).items()),
            output=str(output),
        )
        ends = Ends()
        self._stack.callback(ends.close)
        pid = self._forked(order, ends)

        def kill(number: int) -> None:
            with suppress(BrokenPipeError, ConnectionResetError), self._lock:
                self._control.send(pickle.dumps(Kill(number=order.number, signal=number)))

        self._children[name] = Child(name=name, host=host, pid=pid, output=output, ends=ends, kill=kill)
        return self._children[name], ends

    def _forked(self, order: Start, ends: Ends) -> int:
        """Have the zygote fork; return the child's process id."""
        try:
            with self._lock:
                socket.send_fds(self._control, [pickle.dumps(order)], [end.fileno() for end in ends.of_child])
                answer = self._control.recv(ORDER_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        finally:
            ends.close_childs()
        if not answer:
            raise UnavailableError(f"the zygote ended with {self._zygote.wait()}; its last words are on stderr")
        began: Began = pickle.loads(answer)
        return began.pid

    def _stop_all(self) -> None:
        left = [child for child in self._children.values() if child.runs]
        for child in left:
            child.ask_to_end()
        until_s = time.monotonic() + GRACE_S
        for child in left:
            child.ended_or_killed(until_s)

    def _end_zygote(self) -> None:
        """End it, and with it all children that are left."""
        self._zygote.kill()
        self._zygote.wait()


def _start_zygote(control_fd: int, preloaded: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-u", "-c", _ZYGOTE, str(control_fd), json.dumps(sys.path), json.dumps(preloaded)]
    environment = dict.fromkeys(_ONE_THREAD, "1") | os.environ
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[control_fd], start_new_session=True
    )


def _environment(host: Host) -> dict[str, str]:
    """Return what tells libraries which interface to use: in a host they would find only loopback by themselves."""
    return {"GLOO_SOCKET_IFNAME": host.interface, "TP_SOCKET_IFNAME": host.interface}
