"""What each link carries now, judged from finished transfers. Pure.

**The model.** A transfer from host A to host B crosses two links, A's up and B's down; the core is free of congestion.
If it is not paced, TCP takes what it can get, so one of the two limits it. Rates are shared about max-min fairly, hence
the test of Bertsekas and Gallager (Data Networks, 6.5.2): *a link limits a transfer if and only if it is full and no
other transfer on it is faster.* From that follows, for a transfer over ``[started, ended]``:

1. What a link is proven to have carried, all its transfers together, is a lower bound of its rate: an estimate below
   it is raised at once. A paced transfer says only this.
2. A link **limits** the transfer if what it carried comes near its estimate and nothing beside it went much faster
   (or its NIC was full, be it with others' traffic). That explains the transfer and renews the estimate.
3. A link is **clear** if something beside it went much faster at the same time, or if its NIC had room.
4. If no link explains the transfer, an estimate is too high; that of the likelier culprit is lowered to what it
   carried.

**Who is the culprit** among links that are not clear (boolean tomography: prefer the fewest culprits that explain
everything; Duffield, "Network tomography of binary network performance characteristics", 2006). In this order:
a link that carried clearly more for another peer a moment ago is innocent; a link that came to the same rate with
another peer is guilty, and those who were blamed in its stead are forgiven; else the link with the lower estimate in
relation to its nominal rate; else the one with fewer peers, because a shared link would have shown with others; else
both. So a slow host is found by its own few transfers, and a server's link is not dragged down by it.

A transfer is judged only some time after its end, because those that ran beside it may end later; raising never waits.
Receivers report what came to them. Of a stream only its sender knows when the links held it up, and not its input. That
part counts as a transfer of its own, the rest as a paced one; its receiver's record counts as paced, and only where the
sender does not report.

**Ageing.** The truth moves on while nobody looks: an estimate moves towards the nominal rate (towards the best rate
ever seen, where that is unknown). It has gone half the way after as long as its evidence took, and a fifth of the time
for which the link has been about as slow or fast as that, but at the latest after one half-life. For a link that is
taken for slow is avoided, so nobody sees when it is fast again; links that change often are better not held to what
they were, and one that stays slow is believed to for longer and longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mlfabric.errors import ConfigError
from mlfabric.monitor.history import Link
from mlfabric.monitor.link_evidence import Estimate, Known, Seen, Source, Transfer
from mlfabric.monitor.stream_pairs import Streams

__all__ = ["Estimate", "EstimatorOptions", "Link", "LinkEstimator", "Source", "Transfer"]

TOLERANCE = 0.1
RENEWAL_GAIN = 0.25
MUCH_FASTER = 2.0
MORE_FOR_ANOTHER = 1.25
MIN_BYTES = 64 * 1024
"""Of a record: what a receiver that comes late finds in its kernel has come at no rate at all."""
MIN_BUSY_BYTES = 16 * 1024
"""Of a stream's busy part, which is measured by what was acknowledged."""
KEEP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorOptions:
    """How estimates are made.

    Args:
        half_life_s: after this time without evidence an estimate has gone half the way to the nominal rate, or before;
            > 0.
        max_grace_s: a transfer is judged after its own duration once more, but at most this long after its end; >= 0.
    """

    half_life_s: float = 10.0
    max_grace_s: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.half_life_s) and self.half_life_s > 0):
            raise ConfigError(f"half_life_s={self.half_life_s}; allowed: > 0 and finite")
        if not 0 <= self.max_grace_s <= KEEP_S / 2:
            raise ConfigError(f"max_grace_s={self.max_grace_s}; allowed: 0 to {KEEP_S / 2}")


class Verdict(Enum):
    """Whether a link limited a transfer."""

    LIMITS = "limits"
    OPEN = "open"
    CLEAR = "clear"


class LinkEstimator:
    """Estimates of all links; time comes from the caller and must not go back."""

    def __init__(self, options: EstimatorOptions | None = None) -> None:
        self._options = options or EstimatorOptions()
        self._links: dict[Link, Known] = {}
        self._to_judge: list[tuple[float, Transfer]] = []
        self._streams = Streams()

    @property
    def links(self) -> list[Link]:
        """Every link that was heard of, in order."""
        return sorted(self._links)

    def set_nominal(self, host: str, up_bps: int, down_bps: int) -> None:
        """Set the nominal rates of a host's link in bit/s; 0 leaves what is known."""
        for link, bps in ((Link(host, True), up_bps), (Link(host, False), down_bps)):
            known = self._links.setdefault(link, Known())
            known.nominal_bps = float(bps) or known.nominal_bps

    def observe(self, transfers: Iterable[Transfer], now_s: float) -> None:
        """Take in finished transfers; small ones and those within a host say nothing."""
        for transfer in transfers:
            if transfer.from_host == transfer.to_host or transfer.ended_s <= transfer.started_s:
                continue
            if transfer.busy_bytes:
                if transfer.busy_bytes >= MIN_BUSY_BYTES and transfer.busy_s > 0:
                    self._take_in_stream(transfer)
            elif transfer.bytes >= MIN_BYTES and not (transfer.paced and self._streams.received(transfer)):
                self._take_in(transfer)
        self._settle(now_s)

    def observe_nic(self, link: Link, bps: float, speed_bps: float, started_s: float, ended_s: float) -> None:
        """Take in what a host's NIC carried over an interval, of whatever program.

        Args:
            link: the direction.
            bps: mean rate.
            speed_bps: what the NIC can do; 0 (unknown) makes the sample useless.
            started_s, ended_s: the interval.
        """
        if speed_bps > 0 and ended_s > started_s:
            history = self._links.setdefault(link, Known()).history
            history.nic.append((started_s, ended_s, bps))
            history.nic_speed_bps = speed_bps

    def estimate(self, link: Link, now_s: float) -> Estimate | None:
        """Return what a link carries now; None if neither evidence nor a nominal rate is known.

        The age of a nominal rate that nothing was learnt about is 0.
        """
        self._settle(now_s)
        known = self._links.get(link)
        if known is None or (known.estimate_bps is None and not known.nominal_bps):
            return None
        bps = round(known.now_bps(now_s, self._options.half_life_s))
        age_s = 0.0 if known.estimate_bps is None else max(0.0, now_s - known.learnt_s)
        return Estimate(bps, age_s, known.source)

    def _settle(self, now_s: float) -> None:
        """Judge what has waited long enough."""
        due = [transfer for due_s, transfer in self._to_judge if due_s <= now_s]
        if due:
            self._to_judge = [entry for entry in self._to_judge if entry[0] > now_s]
            for transfer in sorted(due, key=lambda t: t.ended_s):
                self._judge(transfer)
            for known in self._links.values():
                known.history.forget(now_s - KEEP_S)

    def _take_in_stream(self, transfer: Transfer) -> None:
        """Take in what a sender says of a stream, in place of what its receiver says."""
        received = self._streams.sent(transfer)
        if received is not None:
            for link in received.links:
                self._links[link].history.remove(received.passage(link))
        for part in transfer.parts():
            self._take_in(part)

    def _take_in(self, transfer: Transfer) -> None:
        for link in transfer.links:
            known = self._links.setdefault(link, Known())
            known.history.add(transfer.passage(link))
        self._raise(transfer)
        if not transfer.paced:
            grace_s = min(transfer.ended_s - transfer.started_s, self._options.max_grace_s)
            self._to_judge.append((transfer.ended_s + grace_s, transfer))

    def _now_bps(self, link: Link, transfer: Transfer) -> float:
        return self._links[link].now_bps(transfer.ended_s, self._options.half_life_s)

    def _likely_bps(self, link: Link, transfer: Transfer) -> float:
        return self._links[link].history.likely_bps(transfer.started_s, transfer.ended_s)

    def _raise(self, transfer: Transfer) -> None:
        """Raise estimates that are below what was carried (1)."""
        for link in transfer.links:
            known = self._links[link]
            proven_bps = known.history.proven_bps(transfer.started_s, transfer.ended_s)
            known.best_bps = max(known.best_bps, proven_bps)
            if proven_bps > self._now_bps(link, transfer):
                known.learn(proven_bps, transfer.ended_s, transfer.took_s, Source.TRANSFERS)

    def _judge(self, transfer: Transfer) -> None:
        """Find out what limited a transfer (2-4)."""
        self._raise(transfer)
        self._remember(transfer)
        up, down = transfer.links
        verdicts = {link: self._verdict(link, transfer) for link in (up, down)}
        guilty = [link for link, verdict in verdicts.items() if verdict is Verdict.LIMITS]
        if not guilty:
            suspects = [link for link, verdict in verdicts.items() if verdict is Verdict.OPEN]
            guilty = self._culprits(suspects, transfer)
            for link in guilty:
                other = down if link == up else up
                doubtful = other in suspects
                self._links[link].instead_of = (other, self._likely_bps(other, transfer)) if doubtful else None
        for link in guilty:
            self._limit(link, transfer)
        common = [link for link in guilty if self._is_common(link, transfer)]
        if len(common) == 1:
            self._forgive_instead_of(common[0], transfer)

    def _remember(self, transfer: Transfer) -> None:
        up, down = transfer.links
        for link, peer in ((up, down), (down, up)):
            known = self._links[link]
            proven_bps = known.history.proven_bps(transfer.started_s, transfer.ended_s)
            known.latest[peer] = Seen(transfer.ended_s, self._likely_bps(link, transfer), proven_bps)

    def _limit(self, link: Link, transfer: Transfer) -> None:
        """Set or renew the estimate of a link that limited a transfer, unless something newer is known."""
        known = self._links[link]
        if transfer.ended_s >= known.learnt_s:
            watched = self._nic_verdict(link, transfer) is Verdict.LIMITS
            before_bps, likely_bps = self._now_bps(link, transfer), self._likely_bps(link, transfer)
            near = likely_bps >= (1 - TOLERANCE) * before_bps
            bps = before_bps + RENEWAL_GAIN * min(0.0, likely_bps - before_bps) if near else likely_bps
            known.learn(bps, transfer.ended_s, transfer.took_s, Source.NIC if watched else Source.TRANSFERS)

    def _verdict(self, link: Link, transfer: Transfer) -> Verdict:
        watched = self._nic_verdict(link, transfer)
        if watched is not Verdict.OPEN:
            return watched
        known = self._links[link]
        passage = transfer.passage(link)
        if known.history.fastest_rival_bps(passage) > MUCH_FASTER * passage.rate_bps:
            return Verdict.CLEAR
        near = self._likely_bps(link, transfer) >= (1 - TOLERANCE) * self._now_bps(link, transfer)
        return Verdict.LIMITS if near else Verdict.OPEN

    def _nic_verdict(self, link: Link, transfer: Transfer) -> Verdict:
        history = self._links[link].history
        total_bps = history.nic_bps(transfer.started_s, transfer.ended_s)
        if total_bps is None:
            return Verdict.OPEN
        return Verdict.LIMITS if total_bps >= (1 - TOLERANCE) * history.nic_speed_bps else Verdict.CLEAR

    def _culprits(self, suspects: list[Link], transfer: Transfer) -> list[Link]:
        """Choose whose estimate is lowered; see the header."""
        if len(suspects) < 2:
            return suspects
        innocent = [link for link in suspects if self._carried_more(link, transfer)]
        if len(innocent) == 1:
            return [link for link in suspects if link not in innocent]
        common = [link for link in suspects if self._is_common(link, transfer)]
        if len(common) == 1:
            return common
        a, b = suspects
        for figure, slack in ((self._share, TOLERANCE), (self._peers, 0.0)):
            difference = figure(a, transfer) - figure(b, transfer)
            if abs(difference) > slack:
                return [a if difference < 0 else b]
        return suspects

    def _others(self, link: Link, transfer: Transfer) -> list[Seen]:
        """Return what a link carried lately: its latest transfer with each peer but this transfer's."""
        since_s = transfer.ended_s - self._options.half_life_s
        latest = self._links[link].latest.items()
        return [seen for peer, seen in latest if peer not in transfer.links and seen.at_s >= since_s]

    def _carried_more(self, link: Link, transfer: Transfer) -> bool:
        """Tell whether the link certainly carried more for another peer."""
        most_bps = max((seen.proven_bps for seen in self._others(link, transfer)), default=0.0)
        return most_bps > MORE_FOR_ANOTHER * self._likely_bps(link, transfer)

    def _is_common(self, link: Link, transfer: Transfer) -> bool:
        """Tell whether the link came to the same rate with another peer."""
        bps = self._likely_bps(link, transfer)
        others = [seen.likely_bps for seen in self._others(link, transfer)]
        return any(_alike(other, bps) for other in others)

    def _forgive_instead_of(self, link: Link, transfer: Transfer) -> None:
        """Forgive those who were blamed for the rate that this link is now known to have come to."""
        bps = self._likely_bps(link, transfer)
        for known in self._links.values():
            if known.instead_of is not None and known.instead_of[0] == link and _alike(known.instead_of[1], bps):
                known.forgive(bps, transfer.ended_s, transfer.took_s)

    def _share(self, link: Link, transfer: Transfer) -> float:
        """Return the estimate in relation to the nominal rate."""
        known = self._links[link]
        now_bps = self._now_bps(link, transfer)
        return 1.0 if math.isinf(now_bps) else now_bps / known.reference_bps

    def _peers(self, link: Link, transfer: Transfer) -> float:
        return float(len(self._others(link, transfer)))


def _alike(a_bps: float, b_bps: float) -> bool:
    return max(a_bps, b_bps) <= MORE_FOR_ANOTHER * min(a_bps, b_bps)
