"""Finds out what links carry while the workers of an AllReduce job compute and their links are idle. Pure.

What a round tells of links comes too late for that round, and where links change every few seconds the first round
after each change is planned with what is not true any more: it takes two or three times as long as it might. So once a
round is settled, each worker sends a *probe*, a tenth of the tensor, to two others, and those report how fast it
came.

What they say together tells which links have changed (``evidence.py``); what is taken for too slow, the next ones put
right, which go between other workers.

While probes show nothing new they are sent more and more rarely; they are sent again after each round once they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from mlfabric.network import LinkId, Network, down_link, up_link
from mlfabric.protocol import LinkProbed, Peer, Probe, RoundId
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.evidence import changed_rates
from mlfabric.scheduler.planning import Shape
from mlfabric.scheduler.running_round import RunningRound

__all__ = ["Probing"]

_TARGETS = 2
_LEAST_WORKERS = 4
_SHARE = 10
"""A probe has this part of the tensor."""
_LEAST_BYTES = 16 * 1024
_LEAST_NS = 4_000_000
"""How long a probe takes at the full rate at least: what is over sooner cannot be timed."""
_ROOM = 2
"""How many times as long as probes take at the full rate workers must compute."""
_SLOT_SHARE = 0.9
"""In which part of the time that workers compute they send their probes, one after the other."""
_MOST_GROWTH = 2
_CALM = 8
"""After so many probings without news there are half as many, and again."""
_RAREST = 8


@dataclass(slots=True)
class _Session:
    """The probes after one round: between whom, and what they have shown so far, by source and destination."""

    round: RoundId
    hosts: Mapping[str, str]
    targets: Mapping[str, Sequence[str]]
    found: dict[tuple[str, str], int] = field(default_factory=dict)


class Probing:
    """The probes of one model's workers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._session: _Session | None = None
        self._calm = self._skipped = 0

    def begin(
        self, running: RunningRound, idle: Mapping[str, str], pause_ns: int | None, best_bps: int
    ) -> Iterator[Probe]:
        """Have links probed, if there is time for that and it may help.

        Args:
            running: the round that has just been settled.
            idle: the hosts of its workers that have not asked for the next one.
            pause_ns: how long links were idle before the last one; None if that is unknown.
            best_bps: what the fastest link has carried at best; 0 if that is unknown.
        """
        self._session = None
        network, count = self._context.network, Counter(idle.values())
        hosts = {w: host for w, host in idle.items() if count[host] == 1 and network.has_host(host)}
        if running.shape is Shape.DIRECT or len(hosts) < _LEAST_WORKERS:
            return
        size_bytes = running.size_bytes // _SHARE
        full_bps = best_bps or max(network.rate_bps(up_link(host), 0) for host in hosts.values())
        takes_ns = size_bytes * 8 * 10**9 // max(1, full_bps)
        can_be_timed = size_bytes >= _LEAST_BYTES and takes_ns >= _LEAST_NS
        if not (can_be_timed and pause_ns and _ROOM * _TARGETS * takes_ns <= pause_ns):
            return
        self._skipped += 1
        if self._skipped < min(_RAREST, 1 << (self._calm // _CALM)):
            return
        self._skipped = 0
        self._session = session = _Session(running.id, hosts, _circle(running.id, hosts))
        yield from self._probes(session, size_bytes, round(_SLOT_SHARE * pause_ns / _TARGETS))

    def _probes(self, session: _Session, size_bytes: int, slot_ns: int) -> Iterator[Probe]:
        targets = session.targets
        tickets = {(w, target): self._context.tickets.next() for w in targets for target in targets[w]}
        for worker in targets:
            yield Probe(
                to=worker,
                model=self._context.members[worker].model,
                round=session.round,
                size_bytes=size_bytes,
                targets=tuple(Peer(w, self._context.address(w), tickets[worker, w]) for w in targets[worker]),
                sources=tuple(Peer(w, "", ticket) for (w, target), ticket in tickets.items() if target == worker),
                slot_ns=slot_ns,
                reason="what links carry is found out while they are idle",
            )

    def probed(self, event: LinkProbed) -> None:
        """Note what a probe has shown; one of an earlier round, or that nobody asked for, shows nothing."""
        session = self._session
        if session is None or session.round != event.round:
            return
        if event.worker in session.targets.get(event.source, ()):
            session.found[event.source, event.worker] = event.bps

    def learn(self, network: Network) -> frozenset[LinkId]:
        """Set what the probes since the last round have shown, once; return the links of which they tell anything.

        None is raised at once above the fastest of them, unless that is less than twice what it had.
        """
        session, self._session = self._session, None
        if session is None:
            return frozenset()
        hosts = session.hosts
        seen = {(up_link(hosts[a]), down_link(hosts[b])): bps for (a, b), bps in session.found.items()}
        links = {link for pair in seen for link in pair}
        known = {link: network.rate_bps(link, 0) for link in links}
        changed = changed_rates(seen, known)
        fastest_bps = max(known.values(), default=0)
        for link, bps in changed.items():
            network.set_rate(link, min(bps, max(fastest_bps, _MOST_GROWTH * known[link])))
        self._calm = 0 if changed else self._calm + 1
        return frozenset(links)


def _circle(round_id: RoundId, workers: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return to whom each worker sends: to those that follow it in a circle, another one after each round."""
    circle = sorted(workers)
    Random(f"{round_id.epoch}/{round_id.counter}").shuffle(circle)
    twice = circle + circle
    return {worker: twice[i + 1 : i + 1 + _TARGETS] for i, worker in enumerate(circle)}
