"""What SIGTERM does to a training process: an orderly exit, with every open push settled, unless that was declined.

``torchrun``, Slurm, Kubernetes and ``mlfabric run`` end a process by SIGTERM, and Python would die at once. The handler
here raises ``SystemExit(143)`` in the main thread; the workers' ``atexit`` functions then wait for open pushes (at most
30 s) and leave the fabric. Processes that are forked from this one, as by a ``DataLoader``, do not have the handler.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

__all__ = ["drain_on_sigterm"]


def drain_on_sigterm() -> None:
    """Turn SIGTERM into an orderly exit of this process; a handler that the script has set stays.

    Does nothing outside the main thread, where Python allows no handler to be set.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


_forking = threading.local()


def _hold() -> None:
    """Let SIGTERM wait while this thread forks: in the new process it would meet our handler, and be lost."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _die_of_sigterm() -> None:
    """Let a process that was just forked die of SIGTERM at once: it is no worker and has nothing to settle."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let()


os.register_at_fork(before=_hold, after_in_parent=_let, after_in_child=_die_of_sigterm)
