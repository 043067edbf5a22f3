"""SIGINT, SIGTERM and SIGHUP as events: the first asks for an orderly end, the second hurries."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["EXIT_ON_SIGNAL", "StopSignals", "interrupt"]

EXIT_ON_SIGNAL = 128
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """What the process was told from outside; made inside the event loop.

    Attributes:
        stop: set at the first signal, or by whoever wants the end.
        hurry: set at the second signal.
        received: the first signal.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.received: signal.Signals | None = None

    def arrived(self, number: signal.Signals) -> None:
        """Note a signal."""
        if self.received is None:
            self.received = number
            self.stop.set()
        else:
            self.hurry.set()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take the signals for as long as the block runs; one that the parent had us ignore (nohup) stays ignored."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _WATCHED}
        taken = [number for number in _WATCHED if before[number] is not signal.SIG_IGN or number is signal.SIGINT]
        for number in taken:
            loop.add_signal_handler(number, self.arrived, number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; as SIGINT's handler it keeps asyncio from postponing the first Ctrl-C."""
    raise KeyboardInterrupt
