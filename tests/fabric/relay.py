"""A name that moves: an address whose connections go to one service now, and to another one later."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

__all__ = ["Relay"]

PIECE_BYTES = 1 << 16


class Relay:
    """Passes bytes on between whoever connects and the port of loopback that it points at."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._cut()
        for thread in self._threads:
            thread.join()
        for line in (self._listener, *self._lines):
            line.close()

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def move(self, port: int) -> None:
        """Point at another port; the connections that there are end, on this side and on the other."""
        self._target = port
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._lines += [near, far]
                for source, sink in ((near, far), (far, near)):
                    self._start(self._pass_on, source, sink)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                sink.sendall(piece)
        for line in (source, sink):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
