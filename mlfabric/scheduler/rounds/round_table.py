"""The AllReduces of one model: asked for, planned as rounds, settled. Pure.

The oldest request of every worker that is here makes a round, as soon as each of them has one, or most of them and the
others are late (``rhythm.py``). A round is planned, every worker is told its part, one that is late when it asks, each
says when it has the result; once all have it, it is *settled*, and not before: whoever dies earlier makes it void for
all, and it is planned anew among those that are left. So no worker goes on with a sum that another one does not have.
There is one round at a time.

A worker that falls silent may be back in a moment: the round waits for it for a while, unless it is known to answer no
more. One that comes back later is told that the others have done the round without it.

A new scheduler learns from the workers which attempt was the last to be settled, and whose result of it they have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from mlfabric.model.specs import ModelSpec, Role
from mlfabric.planning import Shape
from mlfabric.protocol import (
    Instruction,
    LinkProbed,
    ReduceFailed,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundKept,
    RoundSlow,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.probe_plans import ProbeCount
from mlfabric.scheduler.rounds.round_carrier import MOST_BREAKS, RoundCarrier
from mlfabric.scheduler.rounds.running_round import RunningRound, difference_of

__all__ = ["Rounds"]

_REMEMBERED = 16


class Rounds:
    """All open requests of one model, the round that is being carried out, and what was settled last.

    ``done`` counts the rounds that were settled, ``workers`` is how many took part in the last one, ``waits_for`` says
    what the next one waits for.
    """

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        self.spec = spec
        self.done = self.workers = 0
        self.waits_for = ""
        self._context = context
        self._queues: dict[str, deque[ReduceRequested]] = {}
        self._carrier = RoundCarrier(context, spec.name)
        self._formed = self._waits_for_all = False
        self._since_ns: int | None = None
        self._asked: set[tuple[str, int]] = set()
        self._may_return: dict[tuple[str, int], int] = {}
        self._left_out: set[tuple[str, int]] = set()
        self._caught_up: set[tuple[str, int]] = set()
        self._settled: RoundId | None = None
        self._known: deque[RoundId] = deque(maxlen=_REMEMBERED)
        """The last rounds that are known to be settled, this scheduler's and others'."""
        self._outcomes: dict[tuple[str, int], ReduceSettled | ReduceFailed] = {}

    @property
    def version(self) -> int:
        """How many rounds were settled."""
        return self.done

    @property
    def dropped(self) -> int:
        """How many tensors were dropped: none, as a call has a result or an error."""
        return 0

    @property
    def waiting(self) -> int:
        """How many requests no running round holds."""
        asked = len(self._running.members) if self._running is not None else 0
        return sum(len(queue) for queue in self._queues.values()) - asked

    @property
    def waits_for_workers(self) -> bool:
        """Whether the next round waits for workers, not for a way to plan it."""
        return self.waits_for not in ("", self._carrier.no_way)

    @property
    def how(self) -> str:
        """How the last round that began was planned."""
        return self._carrier.how

    @property
    def _running(self) -> RunningRound | None:
        return self._carrier.running

    @property
    def running(self) -> int:
        """How many workers the running round has; 0 if there is none."""
        return len(self._running.parts) if self._running is not None else 0

    @property
    def probes(self) -> ProbeCount:
        """What became of the probes between rounds."""
        return self._carrier.probes

    def is_reducing(self, worker: str) -> bool:
        """Tell whether a worker takes part in the running round."""
        return self._running is not None and worker in self._running.parts

    def is_waiting(self, worker: str) -> bool:
        """Tell whether a worker has asked for a round that has not begun."""
        return bool(self._queues.get(worker)) and not self.is_reducing(worker)

    def asked_by(self, worker: str) -> int:
        """Return how many requests of a worker are open."""
        return len(self._queues.get(worker, ()))

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        name = self.spec.name
        for worker, queue in self._queues.items():
            ids = [request.reduce for request in queue]
            assert len(set(ids)) == len(ids), f"{name}: {worker} waits twice for one of {ids}"
            assert self._context.is_here(worker), f"{name}: {worker} is waited for and not here"
        if self._running is not None:
            heads = {worker: self._queues[worker][0] for worker in self._running.members}
            assert heads == self._running.members, f"{name}: {self._running.id} is not of the oldest requests"
            assert self._running.arrived <= set(heads), f"{name}: someone has {self._running.id} that did not ask"
            over = len(self._running.arrived) == len(self._running.parts)
            assert not over, f"{name}: {self._running.id} is over and not settled"
            early = [worker for worker in self._running.late if self._queues.get(worker)]
            assert not early, f"{name}: {early} have asked and were not told of {self._running.id}"

    # Requests

    def request(self, event: ReduceRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a request, or answer one that was answered before."""
        key = event.reduce[:2]
        outcome = self._outcomes.get(key)
        if outcome is not None and outcome.reduce == event.reduce:
            yield outcome
            return
        self._asked.add(key)
        self._carrier.rhythm.asked(event.reduce.worker, now_ns)
        self._may_return.pop(key, None)
        if key in self._left_out:
            self._left_out.remove(key)
            self._caught_up.add(key)
            yield self._fail(event, "the others have done this round without it, as it was silent; load their weights")
            return
        if event.settled is not None and (self._settled is None or self._settled < event.settled):
            self._settle_as(event.settled)
        if self._since_ns is None:
            self._since_ns = now_ns
        yield from self._take(event, now_ns)

    def _take(self, event: ReduceRequested, now_ns: int) -> Iterator[Instruction]:
        """Put a request in its place; one that the running round holds may not have heard of it, or not been heard."""
        worker, running = event.reduce.worker, self._running
        queue = self._queues.setdefault(worker, deque())
        place = next((i for i, request in enumerate(queue) if request.reduce == event.reduce), None)
        if place is None:
            queue.append(event)
        elif running is None or running.members.get(worker) is not queue[place]:
            queue[place] = event
        elif event.arrived == running.id:
            yield from self._arrive(running, worker, now_ns)
        else:
            yield running.told(worker)
        if running is not None and worker in running.late:
            yield from self._join(running, queue, now_ns)

    def _join(self, running: RunningRound, queue: deque[ReduceRequested], now_ns: int) -> Iterator[Instruction]:
        """Let one that was late take its part; if it wants something else, the round is void."""
        yield from self._catch_up(queue)
        if not queue:
            return
        request, first = queue[0], next(iter(running.members.values()))
        if (request.size_bytes, request.dtype, request.op) != (first.size_bytes, first.dtype, first.op):
            yield from self._carrier.void(f"{request.reduce.worker} asks for something else")
            return
        running.members[request.reduce.worker] = request
        running.since_ns = now_ns
        yield running.told(request.reduce.worker)

    def arrived(self, event: RoundArrived, now_ns: int) -> Iterator[Instruction]:
        """Note that a worker has the result; settle the round if it was the last."""
        running = self._running
        if running is not None and running.id == event.round and event.worker in running.members:
            running.measured[event.worker] = event.up_bps, event.down_bps
            yield from self._arrive(running, event.worker, now_ns)

    def _arrive(self, running: RunningRound, worker: str, now_ns: int) -> Iterator[Instruction]:
        running.arrived.add(worker)
        if len(running.arrived) == len(running.parts):
            yield from self._settle(now_ns)

    def broken(self, event: RoundBroken, now_ns: int) -> Iterator[Instruction]:
        """Void a round that one of its workers cannot do; give it up for all after too many attempts."""
        running = self._running
        if running is None or running.id != event.round:
            return
        self._carrier.broken(now_ns)
        yield from self._carrier.void(f"{event.worker}: {event.detail}")
        breaks = self._carrier.breaks
        if breaks >= MOST_BREAKS:
            yield from self._fail_heads(f"{breaks} attempts failed, the last one at {event.worker}: {event.detail}")

    def worker_gone(self, record: MemberRecord, reason: str) -> Iterator[Instruction]:
        """Go on without a worker; wait a moment for one that may only have lost its stream."""
        worker = record.member.name
        key = (worker, record.member.incarnation)
        if self.is_reducing(worker):
            yield from self._carrier.void(reason)
        self._queues.pop(worker, None)
        self._carrier.rhythm.forget(worker)
        if record.state is MemberState.SILENT and key in self._asked:
            patience_ns = 0 if record.lost else self._context.config.round_patience_ns
            until_ns = record.since_ns + patience_ns
            self._may_return[key] = min(until_ns, self._may_return.get(key, until_ns))
        else:
            self._may_return.pop(key, None)
            self._outcomes.pop(key, None)
            self._asked.discard(key)
            self._caught_up.discard(key)
        if not self._here():
            self._formed, self._since_ns = False, None

    # Rounds

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next round can be planned, None if it waits for something else to happen."""
        if self._running is not None:
            self.waits_for = ", ".join(self._running.late)
            return self._carrier.overdue_ns()
        if self._since_ns is None:
            return None
        here = self._here()
        missing = [worker for worker in here if not self._queues.get(worker)]
        early_ns = self._early_ns(here, missing)
        if early_ns is None:
            self.waits_for = ", ".join(missing)
            return None
        returning_ns = max(self._may_return.values(), default=0)
        formed_ns = self._formed_ns(len(here))
        self.waits_for = "more workers" if formed_ns is None else self._carrier.no_way
        return None if formed_ns is None else max(early_ns, formed_ns, returning_ns, self._carrier.not_before_ns)

    def _early_ns(self, here: Sequence[str], missing: Sequence[str]) -> int | None:
        """Return from when on the missing need not be waited for; 0 if none is, None if they must be."""
        if not missing:
            return 0 if here else None
        may_be_early = self._formed and not self._waits_for_all and not self._may_return
        return self._carrier.rhythm.early_ns(here) if may_be_early and self._carrier.trusts_stripes else None

    def _here(self) -> list[str]:
        return [m.member.name for m in self._context.here(Role.WORKER) if m.model == self.spec.name]

    def _formed_ns(self, here: int) -> int | None:
        """Return when a first round may begin, though fewer are here than it should have; None if it may not."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        assert self._since_ns is not None, "somebody has asked"
        if self._formed or here >= max(head.together for head in heads):
            return self._since_ns
        if all(head.settled is None for head in heads):
            return None
        return self._since_ns + self._context.config.silence_ns

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Begin the next round and tell everyone its part; what was settled under another scheduler is caught up.

        One that is overdue is given up first.
        """
        if self._running is not None:
            overdue_ns = self._carrier.overdue_ns()
            if overdue_ns is None or now_ns < overdue_ns:
                return
            yield from self._carrier.give_up(now_ns)
        self._left_out |= self._may_return.keys()
        self._may_return.clear()
        self._formed = True
        for queue in self._queues.values():
            yield from self._catch_up(queue)
        heads = {worker: queue[0] for worker, queue in sorted(self._queues.items()) if queue}
        late = [worker for worker in self._here() if worker not in heads]
        early_ns = self._early_ns(self._here(), late)
        if not heads or early_ns is None or early_ns > now_ns:
            return
        if len({(h.size_bytes, h.dtype, h.op) for h in heads.values()}) > 1:
            yield from self._fail_heads(difference_of(heads))
            return
        yield from self._begin(heads, late, now_ns)

    def _begin(self, heads: dict[str, ReduceRequested], late: Sequence[str], now_ns: int) -> Iterator[Instruction]:
        everybody = [*heads, *late]
        if self._carrier.is_in_doubt:
            size_bytes = next(iter(heads.values())).size_bytes
            if probes := list(self._carrier.probe_first(size_bytes, everybody, now_ns)):
                yield from probes
                return
        heads = self._carrier.go_on(heads, everybody)
        shaped = self._carrier.shape(heads, late, (), now_ns)
        if late and (isinstance(shaped, str) or shaped.shape is not Shape.STRIPES):
            self._waits_for_all = True
            return
        running = self._carrier.begin(shaped, heads, late, (), now_ns)
        yield from map(running.told, heads) if running is not None else ()

    def _settle(self, now_ns: int) -> Iterator[Instruction]:
        running = self._carrier.settle(now_ns)
        self._waits_for_all = False
        self.done, self.workers = self.done + 1, len(running.members)
        self._settle_as(running.id)
        for worker, request in running.members.items():
            self._queues[worker].popleft()
            yield self._settle_one(request, running.id, f"all {len(running.members)} workers have it")
        if self._carrier.trusts_stripes:
            idle = [worker for worker in running.parts if not self._queues[worker]]
            yield from self._carrier.probe(running, idle, now_ns)

    def slow(self, event: RoundSlow, now_ns: int) -> Iterator[Instruction]:
        """Begin the round anew if that pays, as links have become slow."""
        running = self._running
        if running is not None and running.id == event.round and event.worker in running.members and not running.late:
            yield from self._carrier.slow(event, now_ns)

    def kept(self, event: RoundKept) -> None:
        """Take in what a worker has of the result of a void round."""
        self._carrier.kept(event)

    def probed(self, event: LinkProbed) -> None:
        """Take in what a probe has shown."""
        self._carrier.probed(event)

    def _settle_as(self, round_id: RoundId) -> None:
        """Note that this is the last round that is settled."""
        self._settled = round_id
        self._known.append(round_id)

    def _settle_one(self, request: ReduceRequested, round_id: RoundId, reason: str) -> ReduceSettled:
        settled = ReduceSettled(
            to=request.reduce.worker, reduce=request.reduce, round=round_id, workers=self.workers, reason=reason
        )
        self._outcomes[request.reduce[:2]] = settled
        return settled

    def _fail_heads(self, reason: str) -> Iterator[Instruction]:
        self._carrier.breaks = 0
        for queue in self._queues.values():
            if queue:
                yield self._fail(queue.popleft(), reason)

    def _fail(self, request: ReduceRequested, reason: str) -> ReduceFailed:
        self._carrier.rhythm.forget(request.reduce.worker)
        failed = ReduceFailed(to=request.reduce.worker, reduce=request.reduce, reason=reason)
        self._outcomes[request.reduce[:2]] = failed
        return failed

    def _catch_up(self, queue: deque[ReduceRequested]) -> Iterator[Instruction]:
        """Settle for a newcomer what was settled before, maybe under another scheduler; tell one that missed it."""
        if not queue:
            return
        head = queue[0]
        known = head.reduce[:2] in self._caught_up
        self._caught_up.add(head.reduce[:2])
        if known or self._settled is None or head.settled == self._settled:
            return
        if head.arrived is not None and head.arrived in self._known:
            self.workers = head.together
            if head.arrived != self._settled:
                self._caught_up.remove(head.reduce[:2])  # it has missed those after that
            yield self._settle_one(queue.popleft(), head.arrived, "all workers had it under another scheduler")
        elif head.settled is not None:
            yield self._fail(queue.popleft(), "the others have done this round without it; load their weights")
