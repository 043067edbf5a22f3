"""Finds out what links carry while the workers of an AllReduce job compute and their links are idle. Pure.

What a round tells of links comes too late for that round, and where links change every few seconds the first round
after each change is planned with what is not true any more: it takes several times as long as it might. So once a round
is settled, each worker sends a *probe*, at most a fifth of the tensor, to two others, and those report how fast it
came. One that takes longer than its slot is cut off, so all are told before workers usually ask for the next round. It
is as long as it is because of token buckets: what they have saved up goes over a slow link as fast as over any other.

Together they tell which links have changed (``probe_evidence.py``). If a link is taken for too slow, the next probes,
between other workers, put that right. So one of which nothing is heard in time counts as the slowest of the others:
what tells of it waits in the queue of a slow link. Where hardly any are heard of, that has other causes.

While probes show nothing new they are sent more and more rarely; they are sent again after each round once they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from mlfabric.network import LinkId, Network, down_link, up_link
from mlfabric.protocol import LinkProbed, Peer, Probe, RoundId
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.rounds.probe_evidence import SAME, changed_rates

__all__ = ["ProbeCount", "Probing", "Probings", "probes_of"]

TARGETS = 2
"""To how many others each worker sends, unless said."""
_LEAST_WORKERS = 4
_SHARE = 5
"""A probe has this part of the tensor at most."""
_LEAST_BYTES = 16 * 1024
_LEAST_NS = 12_000_000
"""How long a probe takes at the full rate at least. Processes that compute meanwhile send and read some ms late: with
what is over sooner they would time themselves, and take fast links for slow ones."""
_ROOM = 2
"""How many times as long as probes take at the full rate workers must compute."""
_SLOT_SHARE = 0.9
"""In which part of the time that workers compute they send their probes, one after the other."""
_FEW = 8
"""If less than one part of so many probes is heard of, nothing is made of the others' silence."""
_MOST_GROWTH = 2
_LEAST_SHARE = 16
"""A probe shows at least this part of what the fastest link carries: of less only a packet or two come in a slot."""
_CALM = 8
"""After so many probings without news there are half as many, and again."""
_RAREST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probings:
    """The probes after one round.

    Args:
        hosts: of the workers that take part.
        targets: to whom each of them sends.
        size_bytes: of each probe.
        slot_ns: after so long the next one is begun.
    """

    round: RoundId
    hosts: Mapping[str, str]
    targets: Mapping[str, Sequence[str]]
    size_bytes: int
    slot_ns: int


class ProbeCount(NamedTuple):
    """How many probes workers were asked for, how many came in time, and how often they showed a link to have changed.

    In time is before the next round is planned.
    """

    asked: int = 0
    answered: int = 0
    changed: int = 0


class Probing:
    """What the workers of one model probe, and what that shows.

    Args:
        network: its rates are set.
        targets: to how many others each worker sends.

    Attributes:
        count: of all probes so far.
    """

    def __init__(self, network: Network, targets: int = TARGETS) -> None:
        self.count = ProbeCount()
        self._network, self._targets = network, targets
        self._probings: Probings | None = None
        self._found: dict[tuple[str, str], int] = {}
        self._calm = self._skipped = self._began_ns = 0

    @property
    def finds_changes(self) -> bool:
        """Whether some of the last probes have shown that links change."""
        return self._calm < _CALM

    def expect_news(self) -> None:
        """Probe at the next opportunity."""
        self._calm = 0

    def begin(
        self, after: RoundId, size_bytes: int, idle: Mapping[str, str], pause_ns: int, best_bps: int, now_ns: int
    ) -> Probings | None:
        """Return which links are to be probed; None if there is no time for that, or it may not help.

        Args:
            after: the round that has just been settled; before the first one an id that no round has.
            size_bytes: of its tensor.
            idle: the hosts of its workers that have not asked for the next one.
            pause_ns: how long links are expected to be idle.
            best_bps: what the fastest link has carried at best; 0 if that is unknown.
        """
        self._probings, self._found = None, {}
        probe_bytes = self.probe_bytes(size_bytes, idle, pause_ns, best_bps)
        if not probe_bytes:
            return None
        self._skipped += 1
        if self._skipped < min(_RAREST, 1 << (self._calm // _CALM)):
            return None
        self._skipped, self._began_ns, hosts = 0, now_ns, self._alone(idle)
        self._probings = Probings(
            round=after,
            hosts=hosts,
            targets=_circle(after, hosts, self._targets),
            size_bytes=probe_bytes,
            slot_ns=round(_SLOT_SHARE * pause_ns / self._targets),
        )
        self._add(asked=sum(map(len, self._probings.targets.values())))
        return self._probings

    def probe_bytes(self, size_bytes: int, idle: Mapping[str, str], pause_ns: int, best_bps: int) -> int:
        """Return how long a probe is to be; 0 if there is no time for any, or too few could be sent.

        Args:
            size_bytes, idle, pause_ns, best_bps: as of :meth:`begin`.
        """
        hosts = self._alone(idle)
        if len(hosts) < _LEAST_WORKERS:
            return 0
        full_bps = best_bps or max(self._network.rate_bps(up_link(host), 0) for host in hosts.values())
        fitting_bytes = pause_ns * full_bps // (_ROOM * self._targets * 8 * 10**9)
        fits = min(size_bytes // _SHARE, fitting_bytes)
        return fits if fits >= max(_LEAST_BYTES, _LEAST_NS * full_bps // (8 * 10**9)) else 0

    def _alone(self, hosts: Mapping[str, str]) -> dict[str, str]:
        """Return the hosts of those workers that share theirs with no other."""
        count = Counter(hosts.values())
        return {w: host for w, host in hosts.items() if count[host] == 1 and self._network.has_host(host)}

    def probed(self, event: LinkProbed) -> None:
        """Note what a probe has shown; one of an earlier round, or that nobody asked for, shows nothing."""
        probings = self._probings
        if probings is None or probings.round != event.round:
            return
        if event.worker in probings.targets.get(event.source, ()):
            self._add(answered=(event.source, event.worker) not in self._found)
            self._found[event.source, event.worker] = event.bps

    def learn(self) -> frozenset[LinkId]:
        """Set what the probes since the last round have shown, once; return the links of which they tell anything.

        None is raised at once above the fastest of them, unless that is less than twice what it had.
        """
        probings, self._probings = self._probings, None
        if probings is None:
            return frozenset()
        network, hosts, found = self._network, probings.hosts, self._found
        shown = [((up_link(hosts[a]), down_link(hosts[b])), bps) for (a, b), bps in found.items()]
        if len(found) * _FEW > sum(map(len, probings.targets.values())):
            slowest_bps = min(found.values())
            found = {(a, b): found.get((a, b), slowest_bps) for a, targets in probings.targets.items() for b in targets}
        seen = {(up_link(hosts[a]), down_link(hosts[b])): bps for (a, b), bps in found.items()}
        links = {link for pair in seen for link in pair}
        known = {link: network.rate_bps(link, 0) for link in links}
        fastest_bps = max(known.values(), default=0)
        changed = changed_rates({pair: max(bps, fastest_bps // _LEAST_SHARE) for pair, bps in seen.items()}, known)
        for link, bps in changed.items():
            network.set_rate(link, min(bps, max(fastest_bps, _MOST_GROWTH * known[link])))
        confirmed = (link for pair, bps in shown for link in pair if bps * SAME >= network.rate_bps(link, 0))
        network.seen(confirmed, self._began_ns)
        self._calm = 0 if changed else self._calm + 1
        self._add(changed=len(changed))
        return frozenset(links)

    def _add(self, asked: int = 0, answered: int = 0, changed: int = 0) -> None:
        count = self.count
        self.count = ProbeCount(count.asked + asked, count.answered + answered, count.changed + changed)


def probes_of(context: Context, probings: Probings) -> Iterator[Probe]:
    """Yield what each worker is told; both ends of a probe get its ticket."""
    targets = probings.targets
    tickets = {(w, target): context.tickets.next() for w in targets for target in targets[w]}
    for worker in targets:
        yield Probe(
            to=worker,
            model=context.members[worker].model,
            round=probings.round,
            size_bytes=probings.size_bytes,
            targets=tuple(Peer(w, context.address(w), tickets[worker, w]) for w in targets[worker]),
            sources=tuple(Peer(w, "", ticket) for (w, target), ticket in tickets.items() if target == worker),
            slot_ns=probings.slot_ns,
            reason="what links carry is found out while they are idle",
        )


def _circle(round_id: RoundId, workers: Mapping[str, str], targets: int) -> dict[str, Sequence[str]]:
    """Return to whom each worker sends: to those that follow it in a circle, another one after each round."""
    circle = sorted(workers)
    Random(f"{round_id.term}/{round_id.counter}").shuffle(circle)
    twice = circle + circle
    return {worker: twice[i + 1 : i + min(1 + targets, len(circle))] for i, worker in enumerate(circle)}
