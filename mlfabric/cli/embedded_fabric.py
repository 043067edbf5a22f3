"""A fabric among the processes that a command starts on this machine."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from mlfabric.cli import options as opt
from mlfabric.launch.fabric import Fabric, FabricOptions, protection
from mlfabric.launch.processes import Nursery

__all__ = ["in_fabric"]


async def in_fabric(
    nursery: Nursery, options: FabricOptions, work: Callable[[Fabric], Awaitable[int]], *, announce: bool
) -> int:
    """Start a fabric, do work in it, end it; return the work's code.

    Raises:
        UsageError: the fabric cannot run with these settings.
    """

    async def working(fabric: Fabric) -> int:
        status = await fabric.ready()
        if announce:
            rows = [("scheduler", fabric.scheduler), *((m.name, m.address) for m in status.members)]
            _announce(rows, fabric.scheduler, options)
        elif options.servers > 1:
            for line in protection(options):
                nursery.output.say(line)
        return await work(fabric)

    return await Fabric(nursery, options).run(working)


def _announce(rows: list[tuple[str, str]], scheduler: str, options: FabricOptions) -> None:
    """Print where the services are, and how to train with them."""
    lines = ["mlfabric is up; Ctrl-C stops it", *(f"  {name:<10} {address}" for name, address in rows)]
    lines += [f"  {line}" for line in protection(options)]
    where = "" if scheduler == opt.DEFAULT_SCHEDULER_ADDRESS else f"--scheduler {scheduler} "
    where += f"--tls {options.tls} " if options.tls else "--insecure " if options.insecure else ""
    lines.append(f"train with: mlfabric run -n 4 {where}train.py")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
