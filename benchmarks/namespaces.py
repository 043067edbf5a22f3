"""Machines for measurements on one computer: network namespaces on a bridge, each with a link of its own rate.

Every namespace hangs on a veth pair whose two ends are shaped by token buckets (tbf): one is the machine's up-link, the
other its down-link. Needs root and iproute2; everything is removed at the end.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mlfabric.errors import UnavailableError

__all__ = ["Machine", "machines"]

BURST_BYTES = 128 * 1024
QUEUE = "200ms"
INTERFACE = "veth0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One namespace.

    Args:
        name: of the namespace: what runs in it is started with ``command``.
        address: its IP address.
        bps: of its link, each way.
        bridge: IP address of the computer itself as the machine sees it.
    """

    name: str
    address: str
    bps: int
    bridge: str

    @property
    def command(self) -> list[str]:
        """What to put before a command so that it runs there."""
        return ["ip", "netns", "exec", self.name]


@contextmanager
def machines(rates_bps: Sequence[int]) -> Iterator[list[Machine]]:
    """Make a machine for each rate; remove them all at the end.

    Args:
        rates_bps: of each machine's link, each way, > 0; at most 250.

    Raises:
        UnavailableError: namespaces or their links cannot be made here; says why.
    """
    token = secrets.token_hex(2)
    net = f"10.{200 + int(token[0], 16)}.{int(token[1:3], 16)}"
    bridge = f"mf{token}"
    with ExitStack() as stack:
        _do("link", "add", bridge, "type", "bridge")
        stack.callback(_do, "link", "del", bridge)
        _do("addr", "add", f"{net}.254/24", "dev", bridge)
        _do("link", "set", bridge, "up")
        made = []
        for i, bps in enumerate(rates_bps):
            machine = Machine(name=f"{bridge}-{i}", address=f"{net}.{i + 1}", bps=bps, bridge=f"{net}.254")
            _do("netns", "add", machine.name)
            stack.callback(_do, "netns", "del", machine.name)
            _connect(machine, bridge, f"{bridge}v{i}")
            made.append(machine)
        yield made


def _connect(machine: Machine, bridge: str, outer: str) -> None:
    """Give a machine its link; the outer end goes with the inner one."""
    inside = ("-n", machine.name)
    _do("link", "add", outer, "type", "veth", "peer", "name", INTERFACE, "netns", machine.name)
    _do("link", "set", outer, "master", bridge)
    _do("link", "set", outer, "up")
    _do(*inside, "link", "set", "lo", "up")
    _do(*inside, "addr", "add", f"{machine.address}/24", "dev", INTERFACE)
    _do(*inside, "link", "set", INTERFACE, "up")
    shape = ("root", "tbf", "rate", f"{machine.bps}bit", "burst", str(BURST_BYTES), "latency", QUEUE)
    _run(["tc", "qdisc", "add", "dev", outer, *shape])
    _run([*machine.command, "tc", "qdisc", "add", "dev", INTERFACE, *shape])


def _do(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UnavailableError(f"no {command[0]!r} here; install iproute2") from error
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{' '.join(command)}: {error.stderr.strip()}; run as root") from error
