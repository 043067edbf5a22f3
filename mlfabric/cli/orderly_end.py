"""An orderly end when told to, for commands that make hosts or processes which must not outlive them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from mlfabric.launch.signals import EXIT_ON_SIGNAL

__all__ = ["ending_when_told", "undisturbed"]

_TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_when_told() -> Iterator[None]:
    """Raise what unwinds the block at the first SIGINT, SIGTERM or SIGHUP; further ones do not disturb the tidying up.

    One that the parent had us ignore (nohup) stays ignored, but SIGINT, which shells ignore for what runs behind.

    Raises:
        KeyboardInterrupt: on SIGINT.
        SystemExit: on the others, with the exit code of a process that they ended.
    """
    before = {number: signal.getsignal(number) for number in _TOLD}
    taken = [number for number in _TOLD if before[number] is not signal.SIG_IGN or number is signal.SIGINT]

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for told in taken:
            signal.signal(told, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_ON_SIGNAL + number)

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what would end the block until it is over, so that nothing that it starts is lost.

    Use it within :func:`ending_when_told`, and only for what takes a moment.
    """
    told: list[int] = []
    before = {number: signal.getsignal(number) for number in _TOLD}
    held = [number for number in _TOLD if callable(before[number])]
    for number in held:
        signal.signal(number, lambda number, _: told.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, before[number])
        if told:
            signal.raise_signal(told[0])
