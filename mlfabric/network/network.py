"""The state of all links: capacity over time, and what is reserved of it.

Each link has two step functions: its *capacity* (the base rate, which ``set_rate`` replaces, then changes known in
advance) and its *free* capacity: capacity less reservations. A reservation that does not fit is refused, so the free
capacity falls below zero only if the capacity is lowered below the existing reservations. These stay; the free capacity
counts as zero there, and the link is *overbooked* until they are released or over. ``prune`` forgets the past.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple, Self

from mlfabric.errors import UsageError
from mlfabric.network.draft import Draft
from mlfabric.network.links import CORE, LinkId, Path, down_link, up_link
from mlfabric.network.profile import MAX_RATE_BPS, Profile, check_size, transfer_over
from mlfabric.network.routes import GraphRoutes, Routes, StarRoutes
from mlfabric.network.timeline import HORIZON_NS, Timeline

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Network", "Reservation"]

MOST_PATHS = 1 << 16
"""So many paths are kept; others are computed again when needed (a thousand hosts have a million)."""


# Named tuples of different types compare equal (UpdateId, GetId): the type is part of the key.
_TypedKey = tuple[type, Hashable]


class Reservation(NamedTuple):
    """The reservation of one key: a rate profile on each link of a path."""

    path: Path
    profile: Profile


class Network:
    """Hosts, links and reservations; made by ``star`` or ``from_graph``."""

    def __init__(self, routes: Routes, default_bps: int, latency_ns: int = 0) -> None:
        self._routes = routes
        self._up_latency_ns = latency_ns
        self._latency_ns: dict[LinkId, int] = {}
        self._default_bps = _rate(default_bps)
        self._hosts: set[str] = set()
        self._nominal_bps: dict[LinkId, int] = {}
        self._seen_ns: dict[LinkId, int] = {}
        self._since_ns: dict[LinkId, int] = {}
        """When each link's rate was last seen; from when on what others report of it counts."""
        self._capacity: dict[LinkId, Timeline] = {}
        self._free: dict[LinkId, Timeline] = {}
        self._overbooked: set[LinkId] = set()
        self._touched: set[LinkId] = set()
        self._paths: dict[tuple[str, str], Path] = {}
        self._reserved: dict[_TypedKey, Reservation] = {}
        self._ends: list[tuple[int, int, _TypedKey]] = []
        self._count = 0
        self._floor_ns = 0

    @classmethod
    def star(cls, default_bps: int, latency_ns: int = 0) -> Self:
        """Make a star without hosts.

        Args:
            default_bps: rate of a link whose own is unknown, > 0.
            latency_ns: how long a bit takes from any host to any other, >= 0.
        """
        if latency_ns < 0:
            raise UsageError(f"latency_ns={latency_ns}; allowed: 0 or more")
        if default_bps <= 0:
            raise UsageError(f"default_bps={default_bps}; allowed: 1 to 2**43")
        return cls(StarRoutes(), default_bps, latency_ns)

    @classmethod
    def from_graph(cls, graph: nx.DiGraph[str]) -> Self:
        """Make a network from a directed graph.

        Args:
            graph: each edge has ``capacity_bps`` and may have ``latency_ns``; nodes with a true attribute ``host`` are
                hosts (all nodes, if none has it), the others switches. Hosts must reach each other.

        Raises:
            UsageError: an edge without a capacity, a capacity out of range, or hosts without a path.
        """
        marked = [node for node, is_host in graph.nodes(data="host") if is_host]
        network = cls(GraphRoutes(graph, marked or graph.nodes), 0)
        network._hosts.update(marked or graph.nodes)
        for tail, head, data in graph.edges(data=True):
            if "capacity_bps" not in data:
                raise UsageError(f"edge {tail}->{head} has no capacity_bps; give its rate in bit/s")
            network._add_link(LinkId(tail, head), data["capacity_bps"])
            network._latency_ns[LinkId(tail, head)] = int(data.get("latency_ns", 0))
        return network

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts known."""
        return frozenset(self._hosts)

    @property
    def links(self) -> tuple[LinkId, ...]:
        """All links in the order in which they were added."""
        return tuple(self._free)

    @property
    def is_star(self) -> bool:
        """Whether every host has one link into a core that is never congested, and one out of it."""
        return isinstance(self._routes, StarRoutes)

    @property
    def star_latency_ns(self) -> int:
        """How long a bit takes from any host of a star to any other; 0 for a graph."""
        return self._up_latency_ns

    @property
    def floor_ns(self) -> int:
        """The instant before which everything is forgotten."""
        return self._floor_ns

    def has_host(self, name: str) -> bool:
        """Return whether a host is known."""
        return name in self._hosts

    def has_link(self, link: LinkId) -> bool:
        """Return whether a link is known."""
        return link in self._free

    def unknown_host(self, names: Iterable[str]) -> str | None:
        """Return the first of some hosts that is not known; None if all are."""
        known = self._hosts
        for name in names:
            if name not in known:
                return name
        return None

    def add_host(self, name: str, up_bps: int = 0, down_bps: int = 0, now_ns: int = 0) -> None:
        """Add a host to a star, or set a nominal rate of a known host.

        The same nominal rate as before changes nothing, so a measured rate survives a member's return. In a graph
        the host must be known, and its links stay as the graph has them.

        Args:
            up_bps, down_bps: nominal rates in bit/s; 0 means unknown (the default, for a new host).
            now_ns: what was seen earlier of a link whose nominal rate changes does not count any more.

        Raises:
            UsageError: a bad name or rate, or a new host for a graph.
        """
        if isinstance(self._routes, GraphRoutes):
            self._check_host(name)
            return
        if not name or name == CORE:
            raise UsageError(f"host name {name!r}; allowed: any but '' and {CORE!r}")
        rates = ((up_link(name), _rate(up_bps)), (down_link(name), _rate(down_bps)))
        self._hosts.add(name)
        for link, bps in rates:
            if link not in self._free:
                self._add_link(link, bps or self._default_bps)
                self._latency_ns[link] = self._up_latency_ns if link.head == CORE else 0
                self._nominal_bps[link] = bps
            elif bps and bps != self._nominal_bps[link]:
                self._nominal_bps[link] = bps
                self.set_rate(link, bps)
                self._since_ns[link] = now_ns

    def forget_host(self, name: str) -> None:
        """Forget a host of a star that will not return, with its links; nothing happens while they are reserved."""
        links = {up_link(name), down_link(name)}
        if not self.is_star or name not in self._hosts:
            return
        if self.has_reservations(links):
            return
        self._hosts.discard(name)
        self._overbooked -= links
        self._touched -= links
        for link in links:
            del self._capacity[link], self._free[link], self._latency_ns[link], self._nominal_bps[link]
            self._seen_ns.pop(link, None)
            self._since_ns.pop(link, None)
        self._paths = {ends: path for ends, path in self._paths.items() if name not in ends}

    def path(self, source: str, destination: str) -> Path:
        """Return the links from one host to another; () for the same host.

        Raises:
            UsageError: an unknown host.
        """
        found = self._paths.get((source, destination))
        if found is None:
            self._check_host(source)
            self._check_host(destination)
            found = self._routes.find(source, destination) if source != destination else ()
            if len(self._paths) >= MOST_PATHS:
                self._paths.clear()
            self._paths[source, destination] = found
        return found

    def latency_ns(self, path: Path) -> int:
        """Return how long a bit takes over an idle path: the sum of its links' latencies."""
        return sum(map(self._latency_ns.__getitem__, path))

    def set_rate(self, link: LinkId, bps: int, seen_ns: int | None = None) -> None:
        """Set a link's base capacity: it holds from now until the first planned change that is not yet pruned.

        Args:
            bps: in bit/s; 0 means that nothing passes.
            seen_ns: when somebody saw that who reports it; nothing happens if ``seen`` was told of something newer.
                None for what nobody has seen: it counts in any case.
        """
        capacity = self._line(self._capacity, link)
        if seen_ns is None:
            self._seen_ns.pop(link, None)
        elif seen_ns >= self._since_ns.get(link, seen_ns):
            self._seen_ns[link] = seen_ns
        else:
            return
        capacity.trim(self._floor_ns)
        self._put(link, 0, bps)

    def seen(self, links: Iterable[LinkId], at_ns: int) -> None:
        """Note that links were seen to carry what they are taken to carry: what was reported earlier is of the past."""
        times = dict.fromkeys(links, at_ns)
        self._seen_ns.update(times)
        self._since_ns.update(times)

    def seen_ns(self, link: LinkId) -> int | None:
        """Return when somebody saw what a link is taken to carry; None if nobody did."""
        return self._seen_ns.get(link)

    def is_known(self, link: LinkId) -> bool:
        """Tell whether a link's rate was declared or seen, and is not just the default."""
        return link in self._seen_ns or bool(self._nominal_bps.get(link))

    def plan_rate_change(self, link: LinkId, at_ns: int, bps: int) -> None:
        """Plan a capacity from ``at_ns`` until the next planned change (a maintenance window is two of these)."""
        if not self._floor_ns <= at_ns < HORIZON_NS:
            raise UsageError(f"at_ns={at_ns}; allowed: {self._floor_ns} (pruned until there) to 2**62")
        self._put(link, at_ns, bps)

    def rate_bps(self, link: LinkId, at_ns: int) -> int:
        """Return a link's capacity at an instant, including what is reserved."""
        line = self._capacity.get(link) or self._line(self._capacity, link)
        return line.at(at_ns if at_ns > self._floor_ns else self._floor_ns)

    def free_line(self, link: LinkId) -> Timeline:
        """Return a link's residual capacity over time, read-only; below zero means none."""
        return self._line(self._free, link)

    def free_lines(self, links: Iterable[tuple[str, str]]) -> list[Timeline]:
        """Return many links' residual capacities, as ``free_line`` does; links may be plain (tail, head)."""
        try:
            return list(map(self._free.__getitem__, links))  # type: ignore[arg-type]
        except KeyError as error:
            raise UsageError(f"unknown link {error.args[0]}; {len(self._free)} are known; add its host first") from None

    def capacity_line(self, link: LinkId) -> Timeline:
        """Return a link's capacity over time, read-only."""
        return self._line(self._capacity, link)

    def transfer(self, path: Path, size_bytes: int, ready_ns: int) -> Profile | None:
        """Plan one transfer over the free capacity (paper, figure 4: ``t_en``); reserve nothing.

        Returns:
            Its profile, or None if it would not end before the horizon (2**62 ns).

        Raises:
            UsageError: unknown link, or size out of range.
        """
        check_size(size_bytes)
        return transfer_over([self._line(self._free, link) for link in path], size_bytes, max(ready_ns, self._floor_ns))

    def reserve(self, key: Hashable, path: Path, profile: Profile) -> None:
        """Reserve a profile on each link of a path, under a key that holds nothing yet.

        Raises:
            UsageError: the key holds a reservation, or the profile does not fit; nothing was changed.
        """
        typed = (type(key), key)
        if typed in self._reserved:
            raise UsageError(f"{key} holds a reservation already; release it first")
        pieces, lines = self._ahead(profile), [self._line(self._free, link) for link in path]
        for link, line in zip(path, lines, strict=True):
            if line.times[1] <= self._floor_ns:
                line.trim(self._floor_ns)
            for start_ns, end_ns, bps in pieces:
                if line.least(start_ns, end_ns) < bps:
                    raise UsageError(f"{key}: {bps} bit/s do not fit on link {link}; plan it again over what is free")
        for line in lines:
            for start_ns, end_ns, bps in pieces:
                line.add(start_ns, end_ns, -bps)
        self._touched.update(path)
        self._reserved[typed] = Reservation(path, profile)
        self._count += 1
        heapq.heappush(self._ends, (profile.end_ns, self._count, typed))

    def release(self, key: Hashable) -> None:
        """Release what a key has reserved; nothing happens if it holds nothing."""
        held = self._reserved.pop((type(key), key), None)
        if held is not None:
            pieces = self._ahead(held.profile)
            self._touched.update(held.path)
            for link in held.path if pieces else ():
                line = self._free[link]
                if line.times[1] <= self._floor_ns:
                    line.trim(self._floor_ns)
                for start_ns, end_ns, bps in pieces:
                    line.add(start_ns, end_ns, bps)

    def reservation(self, key: Hashable) -> Reservation | None:
        """Return what a key holds, or None; reservations that were over when pruned are gone."""
        return self._reserved.get((type(key), key))

    def prune(self, now_ns: int) -> None:
        """Forget everything before ``now_ns``; questions about the past are answered as of now."""
        self._floor_ns = max(self._floor_ns, now_ns)
        while self._ends and self._ends[0][0] <= self._floor_ns:
            end_ns, _, key = heapq.heappop(self._ends)
            held = self._reserved.get(key)
            if held is not None and held.profile.end_ns == end_ns:
                del self._reserved[key]

    def busy_until(self, link: LinkId, now_ns: int, *, needs_ns: int = HORIZON_NS, free_share: float = 0.5) -> int:
        """Return the first instant, not before ``now_ns``, from which at least ``free_share`` of the capacity stays
        free.

        A link without capacity is not busy.

        Args:
            needs_ns: for how long it has to stay free; for ever by default.
        """
        free, capacity = self._line(self._free, link), self._line(self._capacity, link)
        at_ns = until_ns = max(now_ns, self._floor_ns)
        while at_ns < HORIZON_NS and at_ns - until_ns < needs_ns:
            is_busy = max(0, free.at(at_ns)) < free_share * capacity.at(at_ns)
            at_ns = min(free.next_change(at_ns), capacity.next_change(at_ns))
            until_ns = at_ns if is_busy else until_ns
        return until_ns

    def draft(self) -> Draft:
        """Return a cheap overlay for trying reservations; it is valid until this network changes."""
        return Draft(self._free, self._floor_ns)

    def has_reservations(self, links: AbstractSet[LinkId]) -> bool:
        """Tell whether anything is reserved on some of these links, be it over or not."""
        return any(not links.isdisjoint(held.path) for held in self._reserved.values())

    def without_reservations(self) -> Network:
        """Return an independent copy of which nothing is reserved."""
        bare = self.copy()
        for _, key in self._reserved:
            bare.release(key)
        return bare

    def copy(self) -> Network:
        """Return an independent copy."""
        twin = Network(self._routes, self._default_bps, self._up_latency_ns)
        twin._latency_ns = self._latency_ns.copy()
        twin._hosts = self._hosts.copy()
        twin._nominal_bps = self._nominal_bps.copy()
        twin._seen_ns, twin._since_ns = self._seen_ns.copy(), self._since_ns.copy()
        twin._capacity = {link: line.copy() for link, line in self._capacity.items()}
        twin._free = {link: line.copy() for link, line in self._free.items()}
        twin._overbooked = self._overbooked.copy()
        twin._touched = self._touched.copy()
        twin._paths = self._paths.copy()
        twin._reserved = self._reserved.copy()
        twin._ends = self._ends.copy()
        twin._count = self._count
        twin._floor_ns = self._floor_ns
        return twin

    def validate(self) -> None:
        """Assert that free is capacity less reservations at every instant, not below zero unless overbooked."""
        self._validate(self._free)

    def validate_touched(self) -> None:
        """Assert the same for the links that changed since the last check."""
        if self._touched:
            touched, self._touched = self._touched, set()
            self._validate(touched)

    def _validate(self, links: Iterable[LinkId]) -> None:
        used: dict[LinkId, Timeline] = {link: Timeline(0) for link in links}
        for path, profile in self._reserved.values():
            pieces = None
            for link in path:
                if (line := used.get(link)) is not None:
                    pieces = self._ahead(profile) if pieces is None else pieces
                    for start_ns, end_ns, bps in pieces:
                        line.add(start_ns, end_ns, bps)
        for link, line in used.items():
            self._validate_link(link, line)

    def _validate_link(self, link: LinkId, used: Timeline) -> None:
        free, capacity = self._free[link], self._capacity[link]
        free.validate(merged=True)
        capacity.validate(merged=False)
        floor_ns = self._floor_ns
        for at_ns in {floor_ns, *[t for line in (free, capacity, used) for t in line.times[1:-1] if t > floor_ns]}:
            expected = capacity.at(at_ns) - used.at(at_ns)
            assert free.at(at_ns) == expected, f"{link} at {at_ns}: free {free.at(at_ns)}, should be {expected}"
            assert expected >= 0 or link in self._overbooked, f"{link} at {at_ns}: {expected} bit/s free"

    def _check_host(self, name: str) -> None:
        if name not in self._hosts:
            raise UsageError(f"unknown host {name!r}; {len(self._hosts)} are known; add it first")

    def _line(self, lines: dict[LinkId, Timeline], link: LinkId) -> Timeline:
        try:
            return lines[link]
        except KeyError:
            raise UsageError(f"unknown link {link}; {len(lines)} are known; add its host first") from None

    def _add_link(self, link: LinkId, bps: int) -> None:
        self._touched.add(link)
        self._capacity[link] = Timeline(_rate(bps))
        self._free[link] = Timeline(bps)

    def _put(self, link: LinkId, at_ns: int, bps: int) -> None:
        free = self._line(self._free, link)
        until_ns, former_bps = self._capacity[link].put(at_ns, _rate(bps))
        self._touched.add(link)
        free.trim(self._floor_ns)
        if bps != former_bps:
            free.add(at_ns, until_ns, bps - former_bps)
        if min(free.values) < 0:
            self._overbooked.add(link)
        else:
            self._overbooked.discard(link)

    def _ahead(self, profile: Profile) -> list[tuple[int, int, int]]:
        """The pieces that are not over; a piece that began before the floor begins at 0, like the pruned timelines."""
        floor = self._floor_ns
        return [(0 if start <= floor else start, end, bps) for start, end, bps in profile.pieces if end > floor]


def _rate(bps: int) -> int:
    if not 0 <= bps <= MAX_RATE_BPS:
        raise UsageError(f"rate of {bps} bit/s; allowed: 0 to 2**43")
    return bps
