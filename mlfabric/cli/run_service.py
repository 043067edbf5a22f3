"""Runs one long-lived service until a signal ends it in an orderly way."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from importlib import import_module, util

from mlfabric.errors import FabricClosedError
from mlfabric.launch.first_of import first_of
from mlfabric.launch.signals import EXIT_ON_SIGNAL, StopSignals, interrupt

__all__ = ["Service", "line_on_stdin", "serve"]

log = logging.getLogger("mlfabric")
Service = Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]]
"""Serves until the event is set, then drains. Calls the callback when there is something to drain: a signal before that
ends the process at once."""


def serve(service: Service) -> int:
    """Run a service; the first SIGINT, SIGTERM or SIGHUP drains it, the second ends it at once.

    Returns:
        The exit code: 0 after an orderly end, 130 after Ctrl-C.
    """
    signal.signal(signal.SIGINT, interrupt)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(service))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's event loop where it is installed (extra ``fast``)."""
    if util.find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


async def _serve(service: Service) -> int:
    signals = StopSignals()
    with ExitStack() as watching:

        def ready() -> None:
            watching.enter_context(signals.watch())
            log.info("running; Ctrl-C or SIGTERM ends it in an orderly way")

        async def run() -> None:
            await service(signals.stop, ready)

        await first_of(run(), _hurried(signals))
    return EXIT_ON_SIGNAL + signal.SIGINT if signals.received is signal.SIGINT else 0


async def line_on_stdin() -> None:
    """Wait for a line on standard input.

    Raises:
        FabricClosedError: it ended without one.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        if not await reader.readline():
            raise FabricClosedError("standard input ended before a line told this process to begin")
    finally:
        transport.close()


async def _hurried(signals: StopSignals) -> None:
    await signals.hurry.wait()
