"""The emulated network: hosts with links, what streams carry over them, latency, cuts.

Each host has a link up and one down, whose rates may change. Streams share links max-min fairly; a piece arrives as a
whole. Between two hosts that are cut off nothing arrives: streams wait, as TCP does, and go on later.
The kernel of a process that is stopped still receives; the connections of one that has died are reset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count

from mlfabric.channels.backlog import Path
from mlfabric.channels.memory import PIECE_BYTES, SEGMENT_BYTES, MemoryStream, Pipe
from mlfabric.lab.processes import PROCESS, Process
from mlfabric.lab.shares import NO_LINK, Shares

__all__ = ["NATURE", "Links", "Way"]

NATURE = Context()
"""The context of what no process does: timers of the network and of the storm."""
WITHIN_HOST_BPS = 40e9
DIAL_AGAIN_S = 1.0
_ONE_NS = 1e-9

Link = tuple[str, str]
"""Direction ("up" or "down") and host."""


@dataclass(slots=True, eq=False)
class _Flow:
    """One direction of a connection."""

    connection: _Connection
    source: str
    destination: str
    pipe: Pipe
    links: tuple[int, int]
    back: tuple[int, int]
    is_active: bool = False
    arrives_s: float = 0.0

    @property
    def limit_bps(self) -> float:
        """What it may carry at most."""
        return float(self.pipe.most_bps) or WITHIN_HOST_BPS


@dataclass(slots=True, eq=False)
class _Connection:
    ends: tuple[Process | None, Process | None]
    hosts: tuple[str, str]
    breaks: bool = False
    flows: list[_Flow] = field(default_factory=list)

    def fail(self) -> None:
        """Reset it for both ends."""
        for flow in self.flows:
            flow.pipe.fail(ConnectionResetError("Connection reset by peer"))


class Links:
    """All hosts, and all that is under way between them.

    Args:
        loop: whose time it is; a virtual one, or any other.
        draw: the source of chance.
        latency_s: the least and the most that a piece of a stream takes.
        acknowledged: how much the other way carries for what arrives, as a share of that.

    Attributes:
        piece_bytes: how long a piece is at the most.
        message_s: returns how long the next message takes, by its source, its destination and its size in bytes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        draw: random.Random,
        latency_s: tuple[float, float],
        acknowledged: float = 0.0,
    ) -> None:
        self.loop = loop
        self.latency_s = latency_s
        self._draw = draw
        self._numbers: dict[Link, int] = {}
        self._listeners: dict[str, tuple[Process | None, Callable[[MemoryStream], None]]] = {}
        self._ports = count(7000)
        self._connections: dict[_Connection, None] = {}
        self._active = Shares[_Flow](acknowledged)
        self._counted_s = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_changed = False
        self.piece_bytes = PIECE_BYTES
        self.message_s: Callable[[str, str, int], float] = lambda *_: self.draw_latency_s()
        self._cuts: dict[tuple[str, str], None] = {}
        self._healed: list[Callable[[], None]] = []

    # Hosts and cuts

    def set_rate(self, host: str, direction: str, bps: float) -> None:
        """Let a host's link carry so much from now on."""
        self._count()
        self._active.set_rate(self._numbers.setdefault((direction, host), len(self._numbers)), bps)
        self._is_changed = True
        self._look_soon()

    def carried_bytes(self, host: str) -> tuple[int, int]:
        """Return how many bytes a host's link has sent and received."""
        self._count()
        up, down = (self._active.carried_bits[self._numbers[way, host]] for way in ("up", "down"))
        return int(up / 8), int(down / 8)

    def is_cut(self, source: str, destination: str) -> bool:
        """Tell whether nothing arrives from one host at another."""
        return source != destination and (source, destination) in self._cuts

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let nothing arrive any more, from each first host at the second."""
        self._cuts.update(dict.fromkeys(ways))
        self._changed()

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let everything arrive again."""
        for way in ways:
            self._cuts.pop(way, None)
        self._changed()
        healed, self._healed = self._healed, []
        for look_again in healed:
            look_again()

    def when_healed(self, call: Callable[[], None]) -> None:
        """Call back once, when something is healed."""
        self._healed.append(call)

    def draw_latency_s(self) -> float:
        """Return how long the next message takes."""
        return self._draw.uniform(*self.latency_s)

    # Connections

    def listen(self, host: str, accept: Callable[[MemoryStream], None]) -> str:
        """Let an endpoint of the present process accept connections; return its address."""
        address = f"{host}:{next(self._ports)}"
        self._listeners[address] = PROCESS.get(), accept
        return address

    def unlisten(self, address: str) -> None:
        """Accept nothing more there."""
        self._listeners.pop(address, None)

    async def dial(self, host: str, address: str) -> MemoryStream:
        """Connect from a host; while the other one is cut off, try again and again."""
        other = address.rpartition(":")[0]
        await asyncio.sleep(2 * self.draw_latency_s())
        while self.is_cut(host, other) or self.is_cut(other, host):
            await asyncio.sleep(DIAL_AGAIN_S)
        if address not in self._listeners:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        process, accept = self._listeners[address]
        connection = _Connection((PROCESS.get(), process), (host, other))
        there, back = (self._flow(connection, *ends) for ends in ((host, other), (other, host)))
        self._connections[connection] = None
        path = Path(SEGMENT_BYTES, round(2e9 * self.latency_s[0]))
        context = NATURE if process is None else process.context
        self.loop.call_soon(accept, MemoryStream(host, there.pipe, back.pipe, path), context=context)
        return MemoryStream(address, back.pipe, there.pipe, path)

    def _flow(self, connection: _Connection, source: str, destination: str) -> _Flow:
        links = back = NO_LINK, NO_LINK
        if source != destination:
            links, back = (
                (self._numbers["up", a], self._numbers["down", b])
                for a, b in ((source, destination), (destination, source))
            )
        pipe = Pipe(lambda _: self._begin(flow), self.piece_bytes)
        flow = _Flow(connection, source, destination, pipe, links, back)
        connection.flows.append(flow)
        return flow

    def died(self, process: Process) -> None:
        """Accept nothing for a process that has died, and reset its connections, as its kernel does."""
        for address, (listener, _) in list(self._listeners.items()):
            if listener is process:
                del self._listeners[address]
        for connection in [c for c in self._connections if process in c.ends]:
            self._reset(connection)

    def _reset(self, connection: _Connection) -> None:
        """Reset a connection, once both ends hear of it."""
        one, other = connection.hosts
        if self.is_cut(one, other) or self.is_cut(other, one):
            self.when_healed(lambda: self._reset(connection))
        else:
            self._connections.pop(connection, None)
            self.loop.call_later(self.draw_latency_s(), connection.fail, context=NATURE)

    def break_one(self) -> str:
        """Reset some connection in the middle of what it carries next; return which, "" if there is none."""
        self._connections = {c: None for c in self._connections if not any(flow.pipe.is_over for flow in c.flows)}
        if not self._connections:
            return ""
        connection = self._draw.choice(list(self._connections))
        connection.breaks = True
        return " to ".join(connection.hosts)

    # What is under way

    def _begin(self, flow: _Flow) -> None:
        """Carry what was written, unless it is on its way already."""
        if not flow.is_active and flow.pipe.written and not self.is_cut(flow.source, flow.destination):
            self._count()
            flow.is_active = True
            self._active.enter(flow, flow.links, 8.0 * len(flow.pipe.written[0]), flow.limit_bps, flow.back)
            self._is_changed = True
            self._look_soon()

    def _end(self, place: int) -> None:
        self._active.streams[place].is_active = False
        self._active.leave(place)
        self._is_changed = True

    def _changed(self) -> None:
        """Stop or start streams after cuts have changed."""
        self._count()
        for place, flow in reversed(list(enumerate(self._active.streams))):
            if self.is_cut(flow.source, flow.destination):
                self._end(place)
        self._is_changed = True
        self._look_soon()
        for connection in list(self._connections):
            for flow in connection.flows:
                self._begin(flow)

    def _count(self) -> None:
        """Take in what was carried since the last time, and let whole pieces arrive."""
        now_s = self.loop.time()
        passed_s, self._counted_s = now_s - self._counted_s, now_s
        for place in self._active.pass_time(passed_s):
            flow = self._active.streams[place]
            written = flow.pipe.written
            while written and self._active.is_through(place):
                self._deliver(flow, written.popleft())
                if written:
                    self._active.go_on(place, 8.0 * len(written[0]), flow.limit_bps)
            if not written:
                self._end(place)

    def _deliver(self, flow: _Flow, piece: bytes) -> None:
        if flow.connection.breaks:
            flow.connection.fail()
            return
        flow.arrives_s = max(flow.arrives_s + _ONE_NS, self.loop.time() + self.draw_latency_s())
        self.loop.call_at(flow.arrives_s, flow.pipe.arrive, piece, context=NATURE)

    def _look_soon(self, wait_s: float = 0.0) -> None:
        """Set the timer for the next change of rates, or the next piece that is whole."""
        at_s = self.loop.time() + wait_s
        if self._timer is not None and self._timer.when() > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(at_s, self._look, context=NATURE)

    def _look(self) -> None:
        self._timer = None
        self._count()
        if self._is_changed:  # the links are divided anew
            self._is_changed = False
            self._active.share_out()
        if self._active.streams:
            self._look_soon(max(_ONE_NS, self._active.next_s()))


class Way:
    """Messages from one host to another, in their order; they wait while it is cut, and are lost when it breaks.

    Args:
        links: the network.
        source, destination: the hosts.
    """

    def __init__(self, links: Links, source: str, destination: str) -> None:
        self._links = links
        self._ends = source, destination
        self._last_s = 0.0
        self._held: list[Callable[[], None]] = []
        self._is_broken = False

    def send(self, arrive: Callable[[], None], size_bytes: int = 0) -> None:
        """Let a message arrive later."""
        takes_s = self._links.message_s(*self._ends, size_bytes)
        self._last_s = max(self._last_s + _ONE_NS, self._links.loop.time() + takes_s)
        self._links.loop.call_at(self._last_s, self._arrive, arrive, context=NATURE)

    def _arrive(self, arrive: Callable[[], None]) -> None:
        if self._is_broken:
            return
        if self._held or self._links.is_cut(*self._ends):
            if not self._held:
                self._links.when_healed(self._look_again)
            self._held.append(arrive)
        else:
            arrive()

    def _look_again(self) -> None:
        held, self._held = self._held, []
        for arrive in held:
            self._arrive(arrive)

    def break_off(self) -> None:
        """Lose what is under way, and all that is still sent."""
        self._is_broken = True
        self._held.clear()
