"""Starts the process that sends pulses, one for all members of this process, and tells it for whom and where to.

It is started with the first member and ends with this process; should it end before, another one takes its place. Where
it cannot be started, members are judged by their streams alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlfabric.pulse import beat

__all__ = ["Watch", "forget", "watch"]

log = logging.getLogger(__name__)
RESTART_S = 0.5
END_S = 1.0
_MEANT_FOR_US = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)
"""What the process ends with if it is just being started when our process group is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """For whom pulses are sent.

    Args:
        key: what they are sealed with, ``beat.KEY_BYTES`` long.
        address, port: where they are sent to; a numeric address.
        recalled: called from another thread with the instant (``time.monotonic_ns``) of a pulse that was answered: the
            scheduler says that the member has to join again.
    """

    key: bytes
    address: str
    port: int
    recalled: Callable[[int], None]

    def line(self) -> str:
        """Return the order to send these pulses."""
        return f"watch {self.key.hex()} {self.address} {self.port}"


def watch(wanted: Watch) -> None:
    """Have pulses sent, instead of any others with the same key."""
    _Keeper.of_this_process().watch(wanted)


def forget(key: bytes) -> None:
    """Have no more pulses sent with this key."""
    _Keeper.of_this_process().forget(key)


class _Keeper:
    _present: _Keeper | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._watches: dict[bytes, Watch] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False
        atexit.register(self._end)

    @classmethod
    def of_this_process(cls) -> _Keeper:
        """Return the one of this process; one that was forked has its own."""
        with cls._making:
            if cls._present is None or cls._present._pid != os.getpid():
                cls._present = cls()
            return cls._present

    def watch(self, wanted: Watch) -> None:
        """Send pulses."""
        with self._lock:
            self._watches[wanted.key] = wanted
            if self._child is None:
                self._start()
            else:
                self._tell(wanted.line())

    def forget(self, key: bytes) -> None:
        """Send none any more."""
        with self._lock:
            if self._watches.pop(key, None) is not None:
                self._tell(f"forget {key.hex()}")

    def _start(self) -> None:
        """Start the process and give it all its orders; called under the lock."""
        command = [sys.executable or "python3", "-I", "-S", str(Path(beat.__file__)), str(os.getpid())]
        try:
            # A session of its own: neither Ctrl-C nor Ctrl-Z in the terminal reaches it.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("no signs of life will be sent: %s", error)
            return
        threading.Thread(target=self._listen, args=(self._child,), name="mlfabric pulse", daemon=True).start()
        for wanted in self._watches.values():
            self._tell(wanted.line())

    def _tell(self, line: str) -> None:
        if self._child is not None and self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(OSError):  # it has ended: whoever listens to it starts another one
                os.write(self._child.stdin.fileno(), f"{line}\n".encode())

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            order, key, sent_ns = line.decode().split()
            wanted = self._watches.get(bytes.fromhex(key))
            if order == "recall" and wanted is not None:
                wanted.recalled(int(sent_ns))
        code = child.wait()
        with self._lock:
            child.stdin.close()
            child.stdout.close()
        if not self._ending:
            level = logging.INFO if code in _MEANT_FOR_US else logging.WARNING
            log.log(level, "the process that sends signs of life ended with %s; starting another one", code)
            time.sleep(RESTART_S)
            with self._lock:
                if not self._ending:
                    self._start()

    def _end(self) -> None:
        """End the process with this one."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._ending, child = True, self._child
        if child is not None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S)
