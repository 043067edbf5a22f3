"""How the rounds of one model are carried: their shape, the links that they reserve, what they tell of links. Pure.

One round is carried at a time. Who is in it, and what follows from its end, others decide.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from mlfabric.methods.all_reduce import Shaped, shape_round
from mlfabric.methods.teams import Link
from mlfabric.model.ranges import Ranges, count
from mlfabric.network import down_link, up_link
from mlfabric.planning import Shape
from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    LinkProbed,
    Probe,
    ReduceRequested,
    RoundId,
    RoundKept,
    RoundSlow,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.rounds.kept_round import KeptRound
from mlfabric.scheduler.rounds.probe_plans import TARGETS, ProbeCount, Probing, probes_of
from mlfabric.scheduler.rounds.rhythm import Rhythm
from mlfabric.scheduler.rounds.round_links import RoundLinks
from mlfabric.scheduler.rounds.round_parts import parts_of
from mlfabric.scheduler.rounds.running_round import RunningRound
from mlfabric.scheduler.rounds.trust import Made, Trust

__all__ = ["FIRST_PAUSE_NS", "MOST_BREAKS", "RoundCarrier"]

FIRST_PAUSE_NS = 20_000_000
MOST_BREAKS = 8
OVERDUE_TIMES = 2
LOST_TIMES, LEAST_LOST_NS, FIRST_LOST_NS = 10, 5_000_000_000, 60_000_000_000
"""A round counts as lost after so many times as long as any of the last ones took, and at least so long; the first one
after so long. Each attempt that fails doubles that."""
_REMEMBERED = 8
_USUAL_TIMES = 1.25
"""What takes so many times as long as usual shows that links have changed."""
_STALE_TIMES = 8
"""Where links change, what is known of them is of the past after so many times as long as it takes to probe them."""
_TARGETS_BETWEEN = 4
"""To how many others each worker sends where links are probed before each round, and all depends on what that shows."""


class RoundCarrier:
    """The round of one model that is under way, and what earlier ones have taught.

    Args:
        context: that of the scheduler.
        model: whose rounds these are.
        probes_first: links are probed before rounds, if the one before has shown that they have changed, or that there
            is more to be learnt of them: they are never idle otherwise.

    Attributes:
        running: the round that is under way; None if there is none.
        how: how the last one that began was planned.
        no_way: why none could be planned; "" if one could.
        not_before_ns: when the next one may begin, after one that broke.
        breaks: how many attempts in a row have failed.
        rhythm: when workers ask.
        settled_ns: when the last one was settled.
        usual_ns: how long the last ones took; None before the first.
        is_in_doubt: links may not be what they were taken for, and have not been probed since.
    """

    def __init__(self, context: Context, model: str, *, probes_first: bool = False) -> None:
        self.running: RunningRound | None = None
        self.how = self.no_way = ""
        self.not_before_ns = self.breaks = 0
        self.rhythm = Rhythm()
        self._context = context
        self._model = model
        self._links, self._trust = RoundLinks(), Trust()
        self._targets = _TARGETS_BETWEEN if probes_first else TARGETS
        self._probing = Probing(context.network, self._targets)
        self._longer: deque[float] = deque(maxlen=_REMEMBERED)
        """How many times as long as planned the last rounds took, of those before which links may be probed."""
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        """What the last rounds took, ns for each byte."""
        self.settled_ns = 0
        self.usual_ns: int | None = None
        self.is_in_doubt = False
        self._probes_first, self._is_probed = probes_first, False
        """Whether links were to be probed before the next round, or the first one."""
        self._slow = 0
        """How often in a row the round was begun anew as it was slow."""
        self._probed_ns = 0
        """When links were probed last because a round was to begin."""
        self._kept: KeptRound | None = None
        """The last void round, if its result can be kept."""
        self._rest: Ranges = ()
        """What of the tensor the next round is of, if not all."""

    @property
    def probes(self) -> ProbeCount:
        """What became of the probes between rounds."""
        return self._probing.count

    @property
    def trusts_stripes(self) -> bool:
        """Whether the next round may go in stripes."""
        return not self._trust.is_lost

    def shape(
        self, heads: Mapping[str, ReduceRequested], late: Sequence[str], receivers: Sequence[str], now_ns: int
    ) -> Shaped | str:
        """Plan the next round; nothing is changed but what probes have shown of links.

        Args:
            heads: what each member contributes.
            late: members that have not asked yet.
            receivers: workers that only receive the result.

        Returns:
            How it is to go, or why there is no way now.
        """
        hosts = {worker: self._context.host(worker) for worker in sorted([*heads, *late])}
        size_bytes = count(self._rest) or next(iter(heads.values())).size_bytes
        self._links.probed(self._probing)
        return shape_round(
            self._context.network,
            hosts,
            size_bytes,
            self._next_id(),
            now_ns,
            late,
            self._trust.without,
            receivers={worker: self._context.host(worker) for worker in sorted(receivers)},
        )

    def begin(
        self,
        shaped: Shaped | str,
        heads: dict[str, ReduceRequested],
        late: Sequence[str],
        receivers: Collection[str],
        now_ns: int,
        version: int = 0,
        who: str = "",
    ) -> RunningRound | None:
        """Begin the round that :meth:`shape` planned; return None, and try again in a moment, if there is no way.

        Args:
            version: of the model, that the result makes.
            who: which workers are in it, and why not all, for people.
        """
        round_id = self.take_id()
        if isinstance(shaped, str):
            self.no_way, self.not_before_ns = f"a way: {shaped}", now_ns + FIRST_PAUSE_NS
            return None
        after, rest, self._kept, self._rest = self._kept, self._rest, None, ()
        part = f"the other {count(rest)} bytes of the round before" if rest else ""
        self.no_way, self.how = "", "; ".join(filter(None, (who, part, shaped.reason)))
        self.running = RunningRound(
            id=round_id,
            members=heads,
            parts=parts_of(self._context, shaped.trees, sorted([*heads, *late, *receivers]), late),
            receivers=frozenset(receivers),
            reason=self.how,
            reserved=self._reserve(shaped, round_id),
            shape=shaped.shape,
            without_stripes=shaped.without_stripes,
            since_ns=now_ns,
            planned_ns=max((one.profile.end_ns - now_ns for one in shaped.transfers), default=shaped.planned_ns),
            version=version,
            summed=shaped.summed,
            is_best=shaped.is_best,
            shares=shaped.shares,
            after=after.id if after is not None and rest else None,
            rest=rest,
        )
        return self.running

    def take_id(self) -> RoundId:
        """Return an id that no round will have."""
        taken = self._next_id()
        self._context.numbers.rounds += 1
        return taken

    def _next_id(self) -> RoundId:
        return RoundId(self._context.config.term.number, self._context.numbers.rounds + 1)

    def _reserve(self, shaped: Shaped, round_id: RoundId) -> tuple[tuple[str, RoundId, int], ...]:
        keys = [(self._model, round_id, i) for i in range(len(shaped.transfers))]
        for key, transfer in zip(keys, shaped.transfers, strict=True):
            self._context.network.reserve(key, transfer.path, transfer.profile)
        return tuple(keys)

    def settle(self, now_ns: int) -> RunningRound:
        """End the round that is under way, and learn from it."""
        running = self._end()
        if not running.shares:
            self._learn(running, now_ns)
        self.rhythm.settled(now_ns)
        self.settled_ns = now_ns
        if not running.rest:
            self._took.append((now_ns - running.since_ns) / max(1, running.size_bytes))
            self.usual_ns = round(median(self._took) * max(1, running.size_bytes))
        self.breaks = self._slow = 0
        self._is_probed = self._is_probed and not (self._probes_first and self._is_news(running, now_ns))
        return running

    def _learn(self, running: RunningRound, now_ns: int) -> None:
        """Learn from a round that had its links for itself what these carry, and which shapes do well."""
        hosts = self._hosts(running)
        self._links.learn(self._context.network, running, hosts, now_ns)
        if not running.rest:
            made = Made(running.shape, running.without_stripes, running.size_bytes, now_ns - running.since_ns)
            self._trust.judge(made, self._context.network, hosts.values(), now_ns)

    def _is_news(self, running: RunningRound, now_ns: int) -> bool:
        """Tell whether a round shows that links have changed, or that there is more to be learnt of them."""
        if not (running.is_best and running.planned_ns):
            return True
        longer, usual = (now_ns - running.since_ns) / running.planned_ns, self._longer
        is_usual = bool(usual) and longer <= _USUAL_TIMES * median(usual)
        usual.append(longer)
        return not is_usual

    def links(self, workers: Collection[str], now_ns: int) -> dict[str, Link]:
        """Return what each worker's link carries, in bit/s, if its host's workers share that."""
        self._links.probed(self._probing)
        hosts = {worker: self._context.host(worker) for worker in workers}
        sharing = Counter(hosts.values())
        rate_bps = self._context.network.rate_bps
        return {
            worker: Link(*(max(1, rate_bps(way(host), now_ns)) / sharing[host] for way in (up_link, down_link)))
            for worker, host in hosts.items()
        }

    def probe_first(self, size_bytes: int, workers: Collection[str], now_ns: int) -> Iterator[Probe]:
        """Have all links probed before the first round, as nothing is known of them. It begins once that is over.

        So it is where links change and workers compute for long, as what was found out after the last round is old
        then, or where a worker has come or was lost. A round over links that are not what they are taken for takes many
        times as long.
        """
        pause_ns = self._probing_ns(size_bytes, workers, now_ns)
        is_old = now_ns - max(self.settled_ns, self._probed_ns) > _STALE_TIMES * pause_ns
        is_stale = self._probing.finds_changes and (self.is_in_doubt or is_old)
        if (self._is_probed or (self._took and not self._probes_first)) and not is_stale:
            return
        self._is_probed, self._probed_ns, self.is_in_doubt = True, now_ns, False
        if probes := list(self._probe(self._next_id(), size_bytes, workers, pause_ns, now_ns)):
            self.take_id()
            self.not_before_ns = now_ns + pause_ns
            yield from probes

    def _probing_ns(self, size_bytes: int, workers: Iterable[str], now_ns: int) -> int:
        """Return how long a round waits while links are probed: about as long as a tensor over the fastest one."""
        network, hosts = self._context.network, map(self._context.host, workers)
        tensor_ns = size_bytes * 8 * 10**9 // max(1, *(network.rate_bps(up_link(host), now_ns) for host in hosts))
        return tensor_ns * self._targets // TARGETS

    def probe(self, running: RunningRound, workers: Iterable[str], now_ns: int) -> Iterator[Probe]:
        """Have the links of some workers probed after a settled round: of those that are idle until the next one."""
        pause_ns = self.rhythm.pause_ns
        if pause_ns is None and self._is_probed:
            pause_ns = self._probing_ns(running.size_bytes, running.parts, now_ns)
        if running.shape is not Shape.DIRECT and pause_ns is not None:
            yield from self._probe(running.id, running.size_bytes, workers, pause_ns, now_ns)

    def _probe(
        self, after: RoundId, size_bytes: int, workers: Iterable[str], pause_ns: int, now_ns: int
    ) -> Iterator[Probe]:
        idle = {worker: self._context.host(worker) for worker in workers}
        probings = self._probing.begin(after, size_bytes, idle, pause_ns, self._links.best_bps, now_ns)
        if probings is not None:
            yield from probes_of(self._context, probings)

    def probed(self, event: LinkProbed) -> None:
        """Take in what a probe has shown."""
        self._probing.probed(event)

    def doubt(self) -> None:
        """Note that a worker has come, or come back: nothing is known of its link, and it has kept nothing."""
        self.is_in_doubt, self._kept = True, None

    def lost(self, reason: str, now_ns: int) -> Iterator[Instruction]:
        """Void a round as one of its workers is gone. Its link may only have become slow, and hold up its pulses.

        So links are probed before the next round, a pause later: by then their queues are empty.
        """
        assert self.running is not None, "nothing is to be begun anew"
        if self.running.planned_ns and self._probing.finds_changes:
            self.is_in_doubt = True
            pause_ns = self._probing_ns(self.running.size_bytes, self.running.parts, now_ns)
            self.not_before_ns = max(self.not_before_ns, now_ns + pause_ns)
        yield from self.void(reason)

    def broken(self, now_ns: int) -> None:
        """Count a failed attempt; the next one is made after a pause that doubles."""
        self.breaks += 1
        self.not_before_ns = now_ns + (FIRST_PAUSE_NS << min(self.breaks - 1, MOST_BREAKS))

    def void(self, reason: str, *, keep: bool = False) -> Iterator[Instruction]:
        """End the round that is under way: all who were told of it forget it, or ``keep`` what they have of its result.

        Where each worker gets a sum of its own, nothing is kept.
        """
        running = self._end()
        self._kept = KeptRound(running) if keep and not running.summed else None
        for worker in sorted({*running.members, *running.receivers}):
            yield CancelReduce(to=worker, round=running.id, keep=self._kept is not None, reason=reason)

    def kept(self, event: RoundKept) -> None:
        """Note what a worker has of the result of a void round."""
        if self._kept is not None and self._kept.id == event.round:
            self._kept.has(event)
            if self._kept.is_known and self.is_in_doubt:
                self.not_before_ns = 0

    def go_on(self, ready: dict[str, ReduceRequested], workers: Collection[str]) -> dict[str, ReduceRequested]:
        """Return what the next round is of: what a void one was of, if it goes on where that was; else all.

        Args:
            ready: what it may be of.
            workers: to whom its result goes.
        """
        self._rest = () if self._kept is None else self._kept.rest(ready, workers)
        return ready if self._kept is None or not self._rest else self._kept.heads(ready)

    def overdue_ns(self) -> int | None:
        """Return when the round is given up: at the latest when it counts as lost; None while some are late.

        One in stripes is given up much earlier where other shapes are known to do better.
        """
        running = self.running
        if running is None or running.late:
            return None
        if (better_ns := self._better_ns(running)) is not None:
            return running.since_ns + better_ns
        usual_ns = round(LOST_TIMES * max(self._took) * running.size_bytes) if self._took else FIRST_LOST_NS
        return running.since_ns + (max(LEAST_LOST_NS, usual_ns) << min(self.breaks, MOST_BREAKS))

    def _better_ns(self, running: RunningRound) -> int | None:
        """Return how long a round in stripes may take, as other shapes do better; None if that is unknown."""
        others_ns = self._trust.others_ns_per_byte
        is_known = running.shape is Shape.STRIPES and not running.shares and others_ns is not None
        return round(OVERDUE_TIMES * others_ns * running.size_bytes) if is_known and others_ns is not None else None

    def give_up(self, now_ns: int) -> Iterator[Instruction]:
        """Void a round that is overdue; where other shapes do better, the next one has another shape."""
        assert self.running is not None, "nothing is to be given up"
        took_ns, is_beaten = now_ns - self.running.since_ns, self._better_ns(self.running) is not None
        if is_beaten:
            self._trust.failed(took_ns / self.running.size_bytes)
        else:
            self.breaks += 1
        than = f"{OVERDUE_TIMES} times as long as other shapes do" if is_beaten else "so it counts as lost"
        yield from self.void(f"it has taken {took_ns / 1e9:.1f} s, {than}")

    def slow(self, event: RoundSlow, now_ns: int) -> Iterator[Instruction]:
        """Begin anew a round of which a worker says that it goes on slowly, if that pays: links must have changed.

        It is void; once all have said what they keep, so that nothing of it is in queues any more, links are probed,
        and the next attempt is made. That costs two or three pauses and what is left of the round; each time that is
        done in vain it has to save twice as much.
        """
        running = self.running
        assert running is not None, "nothing is to be begun anew"
        size_bytes, hosts = running.size_bytes, self._hosts(running)
        pause_ns = self._probing_ns(size_bytes, hosts, now_ns)
        usual_ns = max(running.planned_ns, round(min(self._took, default=0) * running.summed_bytes))
        if not running.summed:  # what all have is kept
            planned_ns = max(1, running.planned_ns)
            usual_ns = usual_ns * min(event.usual_ns, planned_ns) // planned_ns
        if event.left_ns <= (2 * pause_ns + usual_ns) << min(self._slow, MOST_BREAKS):
            return
        if not self._probing.probe_bytes(size_bytes, hosts, pause_ns, self._links.best_bps):
            return  # the next attempt would go the same way
        self._probing.expect_news()
        self._slow, self.is_in_doubt, self.not_before_ns = self._slow + 1, True, now_ns + 2 * pause_ns
        rest = f"the rest would take {event.left_ns / 1e9:.1f} s, and all was to take {running.planned_ns / 1e9:.1f} s"
        yield from self.void(f"{event.worker}: {rest}", keep=True)

    def _hosts(self, running: RunningRound) -> dict[str, str]:
        return {worker: self._context.host(worker) for worker in running.parts}

    def _end(self) -> RunningRound:
        running, self.running = self.running, None
        assert running is not None, "a round is running"
        for key in running.reserved:
            self._context.network.release(key)
        return running
