"""Bytes on links in virtual time: concurrent transfers share each link evenly.

What a flow cannot use of its even share of a link, because another link or its pace holds it back, nobody has. That is
not what TCP does, but it knows what matters here: a transfer takes as long as its links take, others make it slower,
and a plan's prediction may be wrong. (How fast things really go is the twin's to say.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mlfabric.network import LinkId, down_link, up_link
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.world import Timer, World

__all__ = ["Flow", "Flows"]

_BIT_NS_PER_BYTE = 8 * 10**9
_LOCAL_BPS = 1 << 43


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer under way, which ``process`` sends; ``left`` is in bit * ns/s."""

    process: Process
    way: tuple[str, str]
    path: tuple[LinkId, ...]
    left: int
    pace_bps: int
    done: Callable[[], None]
    bps: int = 0
    timer: Timer | None = field(default=None)


class Flows:
    """Every transfer under way, and what the links really carry."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rates: dict[LinkId, int] = {}
        self._running: list[Flow] = []
        self._at_ns = world.now_ns

    def add_host(self, host: str, bps: int = 0) -> None:
        """Connect a host; 0 stands for the usual rate."""
        for link in (up_link(host), down_link(host)):
            self._rates.setdefault(link, bps or self._world.config.link_bps)

    def set_rate(self, link: LinkId, bps: int) -> None:
        """Change what a link carries from now on."""
        self._advance()
        self._rates[link] = bps
        self._share_out()

    def cuts_changed(self) -> None:
        """Let what is cut stall, and what is not any more go on."""
        self._advance()
        self._share_out()

    def start(self, source: str, destination: str, size_bytes: int, pace_bps: int, done: Callable[[], None]) -> Flow:
        """Begin a transfer; ``done`` is called when its last byte has left."""
        self._advance()
        path = () if source == destination else (up_link(source), down_link(destination))
        pace_bps, left = min(pace_bps or _LOCAL_BPS, _LOCAL_BPS), size_bytes * _BIT_NS_PER_BYTE
        flow = Flow(self._world.running, (source, destination), path, left, pace_bps, done)
        self._running.append(flow)
        self._share_out()
        return flow

    def stop(self, flow: Flow) -> None:
        """Break off a transfer; nothing happens if it is over."""
        if flow not in self._running:
            return
        self._advance()
        self._end(flow)

    def _end(self, flow: Flow) -> None:
        self._running.remove(flow)
        if flow.timer is not None:
            flow.timer.cancel()
        self._share_out()

    def _advance(self) -> None:
        elapsed_ns, self._at_ns = self._world.now_ns - self._at_ns, self._world.now_ns
        for flow in self._running:
            flow.left -= elapsed_ns * flow.bps

    def _share_out(self) -> None:
        """Give every flow its part of the narrower of its links; what is cut stalls."""
        cuts, now_ns = self._world.cuts, self._world.now_ns
        moving = [flow for flow in self._running if not (cuts and cuts.stalls(*flow.way, now_ns))]
        users = Counter(link for flow in moving for link in flow.path)
        for flow in self._running:
            shares = [self._rates[link] // users[link] for link in flow.path if users[link]]
            bps = max(1, min([flow.pace_bps, *shares])) if flow in moving else 1
            if flow.timer is None or bps != flow.bps:
                flow.bps = bps
                self._set_timer(flow)

    def _set_timer(self, flow: Flow) -> None:
        if flow.timer is not None:
            flow.timer.cancel()
        delay_ns = max(0, -(-flow.left // flow.bps))
        flow.timer = self._world.later(delay_ns, "bytes", lambda: self._arrived(flow), flow.process)

    def _arrived(self, flow: Flow) -> None:
        self._advance()
        self._end(flow)
        flow.done()
