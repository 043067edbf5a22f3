"""``mlfabric testbed``: a cluster of network namespaces with emulated links, for as long as it is wanted.

Making it is ``benchmarks/testbed``'s business, which is loaded from the checkout.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from mlfabric.cli import bench_command, tables
from mlfabric.cli import options as opt
from mlfabric.cli.orderly_end import ending_when_told, undisturbed
from mlfabric.config import parse_rate
from mlfabric.errors import UsageError
from mlfabric.launch.signals import EXIT_ON_SIGNAL
from mlfabric.twin.settings import NETWORK

__all__ = ["add_to"]

GRACE_S = 5.0


class Network(StrEnum):
    """How rates change."""

    N0 = "N0"
    N1 = "N1"
    N2 = "N2"
    N3 = "N3"


def cluster(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND [ARGUMENT]",
            help="Run here while the cluster is there; has NAMESPACE_h0, ADDRESS_h0, ... in its environment.",
            show_default=False,
        ),
    ] = None,
    hosts: Annotated[int, typer.Option(min=1, max=250, help="How many hosts; they are called h0, h1, ...")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link, each way, as 100M or 2.5G.")] = "100M",
    network: Annotated[
        Network,
        typer.Option(help="The paper's setting by which rates change every 5 s; N0: they do not."),
    ] = Network.N0,
    seed: Annotated[int, typer.Option(help="Of the changes.")] = 0,
    clean: Annotated[bool, typer.Option("--clean", help="Only remove what crashed runs have left behind.")] = False,
) -> None:
    """Emulate a cluster on this machine; needs root.

    Each host is a network namespace with a link of its own. Without a COMMAND the cluster stays until Ctrl-C. Needs a
    checkout of the project.
    """
    made = bench_command.benchmark("testbed.hosts")
    if clean:
        typer.echo(f"removed {len(made.remove_leftovers())} namespaces of runs that had ended")
        return
    link_bps = parse_rate(rate)
    with ExitStack() as stack:
        stack.enter_context(ending_when_told())
        bed = stack.enter_context(made.testbed([f"h{i}" for i in range(hosts)], link_bps=link_bps))
        weather = bench_command.benchmark("testbed.weather").Weather
        setting = NETWORK[network.value]
        stack.enter_context(weather(bed, setting, seed=seed, link_bps=link_bps, dilation=1.0))
        _show(bed, network.value)
        code = _run(command, bed) if command else _wait()
    raise typer.Exit(code)


def _show(bed: Any, network: str) -> None:
    """Print the hosts, and how to run something in them."""
    rows = [(h.name, h.address, h.interface, h.namespace, " ".join(h.command)) for h in bed.hosts]
    columns = ("host", "address", "interface", "namespace", "run there with")
    title = f"{len(rows)} hosts, links of {tables.rate_text(bed.link_bps)} each way, network {network}"
    tables.console().print(tables.table(title, columns, rows))


def _wait() -> NoReturn:
    typer.echo("Ctrl-C removes them")
    while True:
        signal.pause()


def _run(command: Sequence[str], bed: Any) -> int:
    """Run a command on this machine; return its exit code."""
    known = {f"NAMESPACE_{h.name}": h.namespace for h in bed.hosts} | {
        f"ADDRESS_{h.name}": h.address for h in bed.hosts
    }
    with ExitStack() as stack:
        with undisturbed():
            try:
                process = subprocess.Popen(command, env=os.environ | known)
            except OSError as error:
                text = f"command {command[0]!r}: {error.strerror}; give a program and its arguments"
                raise UsageError(text) from error
            stack.callback(_end, process)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # which it has seen too
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            raise
    return code if code >= 0 else EXIT_ON_SIGNAL - code


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have a command end, if it still runs."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        "testbed",
        context_settings={"allow_interspersed_args": False},
        epilog=opt.examples(
            "mlfabric testbed",
            "mlfabric testbed --hosts 4 --rate 100M --network N2 --seed 7",
            "mlfabric testbed --hosts 2 -- sh -c 'ip netns exec $NAMESPACE_h0 ip address'",
            "mlfabric testbed --clean",
        ),
    )(cluster)
