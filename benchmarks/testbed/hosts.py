"""Hosts on one computer: network namespaces on a bridge, each with a link whose rates change while it is used.

Every host has a veth pair to a bridge, and a token bucket at either end: at its own the up-link, at the bridge's the
down-link. The bridge is in a namespace too, so that neither the computer's addresses nor its packet filters matter.
Addresses of all hosts are fixed everywhere beforehand (neighbours, ports of the bridge): no packet is ever lost, late
or sent to all because somebody had to be found. Needs root and iproute2.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

from benchmarks.testbed.namespaces import FOLDER, kill_all_in, leftovers, owner_prefix
from benchmarks.testbed.shaping import Bucket, Shaper
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.twin.settings import Direction

__all__ = ["HERE", "INTERFACE", "MOST_HOSTS", "Host", "Testbed", "remove_leftovers", "testbed"]

INTERFACE = "veth0"
"""The link's name inside each host."""

MOST_HOSTS = 250
ADVICE = "run as root; in a container, give it the rights to make network namespaces (docker run --privileged)"
LEAST_BPS, MOST_BPS = 100_000, 40_000_000_000
CONGESTION_CONTROL = "cubic"
"""Whatever the computer's own is: the usual one; and bbr was seen to take three times as long for many to one."""

_NETWORK = "10.77.0"
_BRIDGE = "bridge"
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_made = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of a testbed.

    Args:
        name: unique in the testbed.
        namespace: what ``ip netns exec`` calls it; empty for this computer as it is.
        address: at which other hosts reach it.
        interface: its link's name inside of it.
    """

    name: str
    namespace: str
    address: str
    interface: str

    @property
    def command(self) -> list[str]:
        """What to put before a command so that it runs there."""
        return ["ip", "netns", "exec", self.namespace]


HERE = Host(name="here", namespace="", address="127.0.0.1", interface="lo")
"""This computer, for processes that need no host of their own, and no rights either."""


class Testbed:
    """Hosts that are there; made by :func:`testbed`.

    Attributes:
        hosts: in the order in which they were named.
        switch: the namespace of the bridge between them.
        link_bps: the rate that links began with.
    """

    __test__ = False  # pytest takes it for tests by its name

    def __init__(self, hosts: Sequence[Host], switch: str, link_bps: int, queue_s: float, shapers: _Shapers) -> None:
        self.hosts = tuple(hosts)
        self.switch = switch
        self.link_bps = link_bps
        self._by_name = {host.name: host for host in hosts}
        self._queue_s = queue_s
        self._shapers = shapers
        self._rates: dict[tuple[str, Direction], int] = {}
        self._cut: set[tuple[str, Direction]] = set()
        self.set_rates({(host.name, direction): link_bps for host in hosts for direction in Direction})

    @property
    def rates_bps(self) -> Mapping[tuple[str, Direction], int]:
        """The rate of each direction of each host's link at this time."""
        return MappingProxyType(self._rates)

    def host(self, name: str) -> Host:
        """Return a host by its name.

        Raises:
            UsageError: there is none of this name.
        """
        if name not in self._by_name:
            raise UsageError(f"host {name!r}; allowed: {', '.join(self._by_name)}")
        return self._by_name[name]

    def cut_off(self, name: str, *, cut: bool = True) -> None:
        """Pull out the other end of a host's cable, or plug it in again: packets vanish, and nobody is told.

        Raises:
            UsageError: there is no host of this name.
            UnavailableError: it cannot be done here; says why.
        """
        port = _port(self.hosts.index(self.host(name)))
        _run(["ip", "-n", self.switch, "-batch", "-"], [f"link set {port} {'down' if cut else 'up'}"])

    def set_rates(self, rates_bps: Mapping[tuple[str, Direction], int]) -> None:
        """Change rates while the links are in use; links that are not mentioned, or have that rate, stay as they are.

        Args:
            rates_bps: for host and direction in bit/s, Ethernet headers included.

        Raises:
            UsageError: a host or rate that cannot be; nothing was changed.
        """
        for (name, _), bps in rates_bps.items():
            self.host(name)
            _check_rate(bps)
        changed = {link: bps for link, bps in rates_bps.items() if self._rates.get(link) != bps}
        self._shapers.set(
            {link: Bucket(rate_bps=bps, full_bps=self.link_bps, queue_s=self._queue_s) for link, bps in changed.items()}
        )
        self._rates |= changed

    def cut(self, name: str, *directions: Direction) -> None:
        """Let all packets to or from a host vanish, which neither end is told of; both unless one direction is given.

        Raises:
            UsageError: there is none of this name.
        """
        for direction in directions or Direction:
            self._let_pass(name, direction, passes=False)

    def mend(self, name: str) -> None:
        """Let all packets to and from a host pass, as at the beginning; nothing happens if they do.

        Raises:
            UsageError: there is none of this name.
        """
        for direction in Direction:
            self._let_pass(name, direction, passes=True)

    def _let_pass(self, name: str, direction: Direction, *, passes: bool) -> None:
        host = self.host(name)
        own = self.hosts.index(host)
        if passes is ((name, direction) not in self._cut):
            return
        self._cut ^= {(name, direction)}
        if direction is Direction.UP:
            _run(["ip", "-n", host.namespace, "-batch", "-"], _neighbour_lines(self.hosts, own, reachable=passes))
        else:
            _run(["bridge", "-n", self.switch, "-batch", "-"], [_entry_line(own, known=passes)])


class _Shapers:
    """The up-links' shapers, each in its host, and that of all down-links, at the bridge."""

    def __init__(self, hosts: Sequence[Host], switch: str, stack: ExitStack) -> None:
        self._ports = {host.name: _port(i) for i, host in enumerate(hosts)}
        self._down = Shaper(switch, list(self._ports.values()))
        stack.callback(self._down.close)
        self._up = {host.name: Shaper(host.namespace, [INTERFACE]) for host in hosts}
        for shaper in self._up.values():
            stack.callback(shaper.close)

    def set(self, buckets: Mapping[tuple[str, Direction], Bucket]) -> None:
        down = {self._ports[name]: b for (name, direction), b in buckets.items() if direction is Direction.DOWN}
        if down:
            self._down.set(down)
        for (name, direction), bucket in buckets.items():
            if direction is Direction.UP:
                self._up[name].set({INTERFACE: bucket})


@contextmanager
def testbed(names: Sequence[str], *, link_bps: int, queue_s: float = 0.05) -> Iterator[Testbed]:  # noqa: PT028
    """Make hosts; remove them at the end, and whatever still runs in them.

    First removes what crashed processes have left behind.

    Args:
        names: of the hosts, each one that a host may have; 1 to 250.
        link_bps: rate of their links, each way, 100 kbit/s to 40 Gbit/s.
        queue_s: how long the queue before each link is at most, at the rate that the link has; > 0.

    Raises:
        UsageError: names or rate cannot be.
        UnavailableError: hosts cannot be made here; says why.
    """
    _check(names, link_bps, queue_s)
    prefix = f"{owner_prefix()}{next(_made)}-"
    switch = f"{prefix}switch"
    hosts = [
        Host(name=name, namespace=f"{prefix}host-{name}", address=f"{_NETWORK}.{i + 1}", interface=INTERFACE)
        for i, name in enumerate(names)
    ]
    with ExitStack() as stack:
        remove_leftovers()
        stack.callback(_remove, [switch, *(host.namespace for host in hosts)])
        _build(hosts, switch)
        try:
            made = Testbed(hosts, switch, link_bps, queue_s, _Shapers(hosts, switch, stack))
        except OSError as error:
            raise UnavailableError(f"{error}; {ADVICE}") from error
        yield made


testbed.__test__ = False  # type: ignore[attr-defined]


def remove_leftovers() -> list[str]:
    """Remove hosts of processes that have ended, and what still runs in them; return the namespaces' names."""
    found = leftovers()
    _remove(found)
    return found


def _remove(namespaces: Iterable[str]) -> None:
    """Remove namespaces, which another process may be doing too."""
    there = [name for name in namespaces if (FOLDER / name).exists()]
    if there:
        kill_all_in(there)
        try:
            _run(["ip", "-force", "-batch", "-"], (f"netns del {name}" for name in there))
        except UnavailableError:
            if any((FOLDER / name).exists() for name in there):
                raise


def _build(hosts: Sequence[Host], switch: str) -> None:
    """Make namespaces, the bridge and the links; rates come later."""
    _run(["ip", "-batch", "-"], (f"netns add {name}" for name in (switch, *(host.namespace for host in hosts))))
    _run(["ip", "-n", switch, "-batch", "-"], _switch_lines(hosts))
    _run(["bridge", "-n", switch, "-batch", "-"], _forwarding_lines(hosts))
    for i, host in enumerate(hosts):
        _run(["ip", "-n", host.namespace, "-batch", "-"], _host_lines(hosts, i))


def _switch_lines(hosts: Sequence[Host]) -> Iterator[str]:
    yield f"link add {_BRIDGE} type bridge stp_state 0 mcast_snooping 0"
    yield f"link set {_BRIDGE} addrgenmode none up"
    for i, host in enumerate(hosts):
        inside = f"name {INTERFACE} address {_hardware_address(i)} netns {host.namespace}"
        yield f"link add {_port(i)} type veth peer {inside}"
        yield f"link set {_port(i)} addrgenmode none master {_BRIDGE} up"


def _forwarding_lines(hosts: Sequence[Host]) -> Iterator[str]:
    for i in range(len(hosts)):
        yield f"link set dev {_port(i)} learning off flood off mcast_flood off bcast_flood off"
        yield _entry_line(i, known=True)


def _entry_line(i: int, *, known: bool) -> str:
    """Return what makes the bridge send what is for a host to its port, or, as it floods nothing, nowhere."""
    entry = f"{_hardware_address(i)} dev {_port(i)} master static"
    return f"fdb replace {entry}" if known else f"fdb del {entry}"


def _host_lines(hosts: Sequence[Host], own: int) -> Iterator[str]:
    yield "link set lo up"
    yield f"link set {INTERFACE} addrgenmode none"
    yield f"addr add {hosts[own].address}/24 dev {INTERFACE}"
    yield f"link set {INTERFACE} up"
    yield f"route replace {_NETWORK}.0/24 dev {INTERFACE} src {hosts[own].address} congctl {CONGESTION_CONTROL}"
    yield from _neighbour_lines(hosts, own, reachable=True)


def _neighbour_lines(hosts: Sequence[Host], own: int, *, reachable: bool) -> Iterator[str]:
    """Yield what makes a host send to all others, or to an address that nobody has."""
    for i, host in enumerate(hosts):
        if i != own:
            to = _hardware_address(i if reachable else MOST_HOSTS)
            yield f"neigh replace {host.address} lladdr {to} dev {INTERFACE} nud permanent"


def _port(i: int) -> str:
    return f"port{i}"


def _hardware_address(i: int) -> str:
    return f"02:00:0a:4d:00:{i + 1:02x}"


def _run(command: Sequence[str], lines: Iterable[str]) -> None:
    """Give a command of iproute2 its lines.

    Raises:
        UnavailableError: it is not there, or refuses.
    """
    try:
        subprocess.run(command, input="\n".join(lines) + "\n", check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UnavailableError(f"no {command[0]!r} here; install iproute2") from error
    except subprocess.CalledProcessError as error:
        why = "; ".join(error.stderr.strip().splitlines()[:2])
        raise UnavailableError(f"{' '.join(command)}: {why}; {ADVICE}") from error


def _check(names: Sequence[str], link_bps: int, queue_s: float) -> None:
    if not 1 <= len(names) <= MOST_HOSTS:
        raise UsageError(f"{len(names)} hosts; allowed: 1 to {MOST_HOSTS}")
    if len(set(names)) < len(names):
        raise UsageError(f"names of hosts {', '.join(names)}; give each host a name of its own")
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise UsageError(f"name of a host {name!r}; allowed: up to 63 letters, digits and inner dashes")
    _check_rate(link_bps)
    if not 0 < queue_s <= 10:
        raise UsageError(f"queue of {queue_s} s; allowed: more than 0, up to 10")


def _check_rate(bps: int) -> None:
    if not LEAST_BPS <= bps <= MOST_BPS:
        raise UsageError(f"rate of {bps} bit/s; allowed: {LEAST_BPS} to {MOST_BPS}")
