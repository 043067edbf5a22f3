"""A fabric among the processes that a command starts on this machine."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Awaitable, Callable

from mlfabric.cli import options as opt
from mlfabric.launch.fabric import Fabric
from mlfabric.launch.fabric_services import FabricOptions, protection
from mlfabric.launch.processes import Nursery

__all__ = ["in_fabric", "show_page"]


async def in_fabric(
    nursery: Nursery, options: FabricOptions, work: Callable[[Fabric], Awaitable[int]], *, announce: bool, shows: bool
) -> int:
    """Start a fabric, do work in it, end it; return the work's code.

    Args:
        announce: print where everything is, not only the status page.
        shows: open the status page in a browser.

    Raises:
        UsageError: the fabric cannot run with these settings.
    """

    async def working(fabric: Fabric) -> int:
        status = await fabric.ready()
        if announce:
            rows = [("scheduler", fabric.scheduler), *((m.name, m.address) for m in status.members)]
            rows.append(("status page", status.page))
            rows += [("prometheus", fabric.prometheus)] if fabric.prometheus else []
            _announce(rows, fabric.scheduler, options)
        else:
            for line in (*(protection(options) if options.servers > 1 else ()), f"status page: {status.page}"):
                nursery.output.say(line)
        if shows:
            show_page(nursery, status.page)
        return await work(fabric)

    return await Fabric(nursery, options).run(working)


def show_page(nursery: Nursery, page: str) -> None:
    """Open a status page in a browser; say so if there is none of either."""
    if not (page and webbrowser.open(page)):
        nursery.output.say(f"--open: no browser here; open {page} in one" if page else "--open: there is no page")


def _announce(rows: list[tuple[str, str]], scheduler: str, options: FabricOptions) -> None:
    """Print where the services are, and how to train with them."""
    lines = ["mlfabric is up; Ctrl-C stops it", *(f"  {name:<11} {address}" for name, address in rows)]
    lines += [f"  {line}" for line in protection(options)]
    where = "" if scheduler == opt.DEFAULT_SCHEDULER_ADDRESS else f"--scheduler {scheduler} "
    where += f"--tls {options.tls} " if options.tls else "--insecure " if options.insecure else ""
    lines.append(f"train with: mlfabric run -n 4 {where}train.py")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
