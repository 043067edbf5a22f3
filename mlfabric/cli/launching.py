"""Work that needs processes of this machine, and a fabric among them: begun, ended by a signal, nothing left behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable

from mlfabric.cli import options as opt
from mlfabric.launch.fabric import Fabric, FabricOptions, protection
from mlfabric.launch.output import Output
from mlfabric.launch.processes import Nursery
from mlfabric.launch.racing import first_of
from mlfabric.launch.signals import EXIT_ON_SIGNAL, StopSignals

__all__ = ["Work", "in_fabric", "launch"]

Work = Callable[[Nursery], Awaitable[int]]


async def launch(work: Work, code_at_sigterm: int) -> int:
    """Do work that starts processes, until it is done or a signal comes; end all it started."""
    signals = StopSignals()
    code = 0

    async def working(nursery: Nursery) -> None:
        nonlocal code
        code = await work(nursery)

    async def told() -> None:
        await signals.stop.wait()

    with signals.watch():
        async with Nursery(Output(), signals.hurry) as nursery:
            await first_of(told(), working(nursery))
    if signals.received is None:
        return code
    return code_at_sigterm if signals.received is signal.SIGTERM else EXIT_ON_SIGNAL + signals.received


async def in_fabric(
    nursery: Nursery, options: FabricOptions, work: Callable[[Fabric], Awaitable[int]], *, announce: bool
) -> int:
    """Start a fabric, do work in it, end it; return the work's code.

    Raises:
        UsageError: the fabric cannot run with these settings.
    """
    fabric = Fabric(nursery, options)
    code = 0

    async def working() -> None:
        nonlocal code
        status = await fabric.ready()
        if announce:
            rows = [("scheduler", fabric.scheduler), *((m.name, m.address) for m in status.members)]
            _announce(rows, fabric.scheduler, options)
        elif options.servers > 1:
            for line in protection(options):
                nursery.output.say(line)
        code = await work(fabric)

    fabric.start()
    try:
        await first_of(working(), fabric.keep())
    finally:
        await fabric.end()
    return code


def _announce(rows: list[tuple[str, str]], scheduler: str, options: FabricOptions) -> None:
    """Print where the services are, and how to train with them."""
    lines = ["mlfabric is up; Ctrl-C stops it", *(f"  {name:<10} {address}" for name, address in rows)]
    lines += [f"  {line}" for line in protection(options)]
    where = "" if scheduler == opt.DEFAULT_SCHEDULER_ADDRESS else f"--scheduler {scheduler} "
    where += f"--tls {options.tls} " if options.tls else "--insecure " if options.insecure else ""
    lines.append(f"train with: mlfabric run -n 4 {where}train.py")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
