"""What is known of every update of one model, what its worker and its server are told of it. Pure.

An update is *waiting* (no plan holds it), *planned* (both ends were told), or *settled*. What the server was told to
let go of stays planned until the server has answered, so that nothing that is on its way there can bring it back. That
holds for a sum and all of its members alike: until then none of them is planned anew, and then each by itself.

In synchronous training all transfers of an iteration share a ``seq`` and make one version. Those that were given up are
*owed* as long as their workers can send them again: the server waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from mlfabric.methods import Clocks, policy_of
from mlfabric.methods.policy import WaitingUpdate
from mlfabric.model.specs import Method, ModelSpec
from mlfabric.planning import paced_rate
from mlfabric.protocol import (
    CancelSum,
    Committed,
    Drop,
    Dropped,
    DropReason,
    Expect,
    Expected,
    Instruction,
    ModelVersion,
    Outcome,
    Resolve,
    Send,
    SumId,
    TransferId,
    UpdateId,
    Void,
)
from mlfabric.protocol.lineage import is_in_lineage
from mlfabric.scheduler.context import SEQ_BITS, Context
from mlfabric.scheduler.records import Lateness, PlannedUpdate, SettledUpdates, TornBy
from mlfabric.scheduler.reservations import Reservations
from mlfabric.scheduler.updates.ingress_queue import Coming, Succession
from mlfabric.scheduler.updates.pace import Pace
from mlfabric.scheduler.updates.sum_table import PlannedSum, SumTable

if TYPE_CHECKING:
    from mlfabric.scheduler.followers.replication_state import Replication
    from mlfabric.scheduler.shards.sharded import ShardedModel

__all__ = ["Iteration", "PushTable"]


@dataclass(slots=True)
class Iteration:
    """The transfers that make one version together (synchronous).

    Args:
        parts: how many the server was told of.
        owed: updates that were let go of on their way, and that their workers will send again.
    """

    seq: int
    parts: int
    owed: set[UpdateId] = field(default_factory=set)


FORGIVEN = 2
"""So often a sum of an update may be late; then the update goes by itself."""


class PushTable:
    """Every update of one model that has no outcome yet, and the outcomes that workers may still ask for.

    ``planned`` is in the order of ``seq``: who is given a later one moves to its end; the members of a sum share one.
    ``apart`` are the updates whose sum was given up: they go by themselves. ``late`` counts how often sums of an update
    were late.
    ``awaited`` means that the server joined and has not yet said what it holds of the model: until then nothing is
    known of its version, so nothing is planned or refused.
    ``has_formed`` means that as many workers have joined as the first iteration was to wait for.
    ``whole`` is the model that this one is a part of; ``refused`` are the updates of a part that were dropped since
    that has looked.
    ``server_epoch`` is the one under which the model is served, ``shown_epoch`` the last one that its server knew of
    when it came, ``began`` is the path to the present one (``protocol/lineage.py``), and ``lost`` counts the updates
    that were committed in versions that are not on it.
    ``policy`` decides what depends on the method; ``clocks`` are those of the workers that are waited for.
    """

    def __init__(self, context: Context, spec: ModelSpec, server: str) -> None:
        self.spec = spec
        self.server = server
        self.version = ModelVersion(1, 0)
        self.server_epoch = self.shown_epoch = 1
        self.began: tuple[ModelVersion, ...] = ()
        self.lost = 0
        self.initialised = False
        self.awaited = False
        self.most_workers = 1
        self.has_formed = False
        self.policy = policy_of(spec)
        self.clocks = Clocks()
        self.waiting: dict[UpdateId, WaitingUpdate] = {}
        self.planned: dict[UpdateId, PlannedUpdate] = {}
        self.sums = SumTable()
        self.apart: set[UpdateId] = set()
        self.late: Counter[UpdateId] = Counter()
        self.iteration: Iteration | None = None
        self.settled = SettledUpdates()
        self.commit_ns: dict[UpdateId, int] = {}
        self.follower: Replication | None = None
        self.whole: ShardedModel | None = None
        self.refused: list[tuple[UpdateId, Dropped]] = []
        self._context = context
        self._links = Reservations[TransferId](context.network, spec.name, "push")
        self._lateness = Lateness()
        self._succession = Succession()
        self._pace = Pace()
        self._seq = context.config.term.number << SEQ_BITS
        self._broken_up: set[SumId] = set()
        self._sizes: Counter[int] = Counter()

    def begin_under(self, epoch: int) -> None:
        """Begin without weights under a server epoch."""
        self.version, self.server_epoch, self.shown_epoch = ModelVersion(epoch, 0), epoch, epoch
        self.began = (self.version,)

    def begin_job(self, workers: int) -> None:
        """Begin together again: another job goes on with the model.

        Args:
            workers: how many the first iteration waits for; 0 for nobody.
        """
        self.spec = replace(self.spec, workers=workers)
        self.has_formed = False

    def count_under(self, version: ModelVersion) -> None:
        """Count a part under the server epoch of another part, if that is later; this many steps were made of both."""
        if version.number == self.version.number and version.epoch > self.version.epoch:
            self.version, self.began = version, (*self.began, version)

    def is_lost(self, version: ModelVersion) -> bool:
        """Tell whether a version did not go into the present one; one of the present epoch may not be told of yet."""
        is_present = version.epoch == self.version.epoch
        return not is_present and not is_in_lineage(self.began, version, self.version.number)

    @property
    def tau_max(self) -> int:
        """The delay bound in force."""
        return self.policy.delay_bound(self.most_workers)

    @property
    def missing(self) -> int:
        """How many more workers the first iteration waits for."""
        return 0 if self.has_formed else max(0, self.spec.workers - len(self.clocks))

    def worker_joined(self, worker: str, together: int) -> None:
        """Count a worker from now on.

        Args:
            together: how many the first iteration waits for, as it says; 0 if it leaves that to the others.
        """
        if together and not self.spec.workers:
            self.spec = replace(self.spec, workers=together)
        self.clocks.join(worker)
        self.has_formed |= 0 < self.spec.workers <= len(self.clocks)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        name = self.spec.name
        if not self.planned:
            assert not len(self.sums), f"{name}: sums of nothing that is planned: {list(self.sums)}"
            return
        both = [u for u in self.planned if self.settled.get(u) is not None]
        assert not both, f"{name}: planned though settled: {both}"
        if len(self.sums):
            self.sums.validate()
        for update, planned in self.planned.items():
            if planned.sum is not None:
                found = self.sums.whole(planned.sum)
                assert update in found.open, (
                    f"{name}: {update} is planned for {planned.sum}, which does not wait for it"
                )
                same = (found.seq, found.voided, found.received)
                assert (planned.seq, planned.voided, planned.received) == same, f"{name}: {update} is not as its sum"
        for found in self.sums:
            strays = [u for u in found.open if u not in self.planned or self.planned[u].sum != found.root.sum]
            assert not strays, f"{name}: {found.root.sum} waits for {strays}, which are planned otherwise"
            missing = set(found.members) - found.open
            assert found.voided or not missing, f"{name}: {found.root.sum} is expected without {missing}"
        self._validate_order()

    def _validate_order(self) -> None:
        for before, planned in pairwise(self.planned.values()):
            fits = before.seq < planned.seq
            if before.seq == planned.seq:
                fits = self.spec.method is Method.SYNCHRONOUS or planned.transfer == before.transfer
            seqs = self.planned.values()
            assert fits, f"{self.spec.name}: planned is not in the order of seq: {[p.seq for p in seqs]}"

    # Instructions

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _instruct(self, planned: PlannedUpdate, after: tuple[TransferId, ...], reason: str) -> Iterator[Instruction]:
        """Tell both ends of an update that goes to the server by itself."""
        update = planned.request.update
        path = self._context.path(update.worker, self.server)
        yield Send(
            to=update.worker,
            update=update,
            receiver=self.server,
            address=self._context.address(self.server),
            seq=planned.seq,
            ticket=planned.ticket,
            rate_bps=paced_rate(planned.profile, path, self._context.network) if planned.profile else 0,
            reason=reason,
        )
        yield self._expect(planned, after, reason)

    def _expect(self, planned: PlannedUpdate, after: tuple[TransferId, ...], reason: str) -> Expect:
        """Tell the server of an update, or of the sum that it is in."""
        request = planned.request
        found = None if planned.sum is None else self.sums.whole(planned.sum)
        members = (request,) if found is None else [self.planned[m].request for m in found.members]
        in_parts = self.iteration is not None and self.iteration.seq == planned.seq
        return Expect(
            to=self.server,
            transfer=planned.transfer,
            members=tuple(Expected(m.update, m.computed_from, m.resolved_below, m.norm, m.samples) for m in members),
            model=self.spec.name,
            seq=planned.seq,
            ticket=planned.ticket if found is None else found.root.ticket,
            size_bytes=request.size_bytes if found is None else found.images * self.spec.layout.size_bytes,
            tau_max=self.tau_max,
            kind=request.kind,
            after=after,
            reason=reason,
            lrs=() if found is None else found.lrs,
            parts=self.iteration.parts if self.iteration is not None and in_parts else 1,
        )

    # What is to come

    def least_ns(self, now_ns: int) -> int:
        """Return how long an update takes to come in if the server's link has nothing else to do."""
        rate_bps = self._context.ingress_bps(self.server, now_ns)
        return self.spec.layout.size_bytes * 8 * 10**9 // max(1, rate_bps)

    def _coming(self, planned: PlannedUpdate, least_ns: int) -> Coming:
        """Return what the server's link has to do for an update, or for the sum that it is in."""
        found = None if planned.sum is None else self.sums.whole(planned.sum)
        profile = planned.profile if found is None else found.root.profile
        needs_ns = least_ns * (1 if found is None else found.images)
        if profile is None:
            return Coming(0, needs_ns)
        span_ns = profile.end_ns - profile.start_ns
        return Coming(planned.late_end_ns or profile.end_ns, needs_ns, shares=span_ns > 2 * needs_ns)

    # Letting go

    def _void(self, planned: PlannedUpdate, reason: str, torn_by: TornBy) -> Iterator[Instruction]:
        """Tell the server to let go of an update, or of the sum that it is in."""
        if planned.sum is not None:
            yield from self._tear(self.sums.whole(planned.sum), reason, torn_by)
            return
        planned.voided = True
        self._links.free(planned.request.update)
        yield Void(to=self.server, model=self.spec.name, transfer=planned.request.update, reason=reason)

    def _tear(self, found: PlannedSum, reason: str, torn_by: TornBy) -> Iterator[Instruction]:
        """Give a sum up: the server lets go of it, unless it is complete there; its aggregators cancel it."""
        if found.voided:
            return
        found.voided, found.torn_by = True, torn_by
        self._context.count.torn[torn_by] += 1
        for member in found.open:
            self.planned[member].voided = True
            self._links.free(member)
        yield Void(to=self.server, model=self.spec.name, transfer=found.root.sum, reason=reason)
        yield from self._cancel(found, reason)

    def _cancel(self, found: PlannedSum, reason: str) -> Iterator[Instruction]:
        for part in found.parts:
            self._links.free(part.sum)
            aggregator = part.aggregator
            order = CancelSum(to=aggregator.name, model=self.spec.name, sum=part.sum, reason=reason)
            self.sums.note_cancelled(aggregator, order)
            if self._context.is_live(aggregator.name, aggregator.incarnation):
                yield order

    def _break_up(self) -> Iterator[Instruction]:
        """Give up the sums that lost a member, which was settled by itself: none of them can be applied any more."""
        for name in sorted(self._broken_up):
            if (found := self.sums.of(name)) is not None:
                yield from self._tear(found, "one of its updates was settled by itself", TornBy.REFUSED)
        self._broken_up.clear()

    def _let_go(self, updates: Iterable[UpdateId], torn_by: TornBy | None = None) -> None:
        """Note that the server let go of what was voided: it may be planned anew when its worker asks again."""
        for update in [u for u in updates if u in self.planned]:
            planned = self.planned[update]
            self._release(update)
            if self.settled.is_over(update):  # its worker knows an outcome that was reported in vain
                self.waiting.pop(update, None)
                self._forget(update)
            elif self._context.is_live(update.worker, update.incarnation):
                if planned.sum is not None and torn_by not in (TornBy.DRIFT, TornBy.HELD_UP):
                    self._set_apart(update, torn_by)
                if self.iteration is not None and not planned.is_over and planned.seq == self.iteration.seq:
                    self.iteration.owed.add(update)

    def _set_apart(self, update: UpdateId, torn_by: TornBy | None) -> None:
        """Let an update whose sum was given up go by itself; lateness, which may be nobody's fault, only in the end."""
        self.late[update] += torn_by is TornBy.OVERDUE
        if torn_by is not TornBy.OVERDUE or self.late[update] > FORGIVEN:
            self.apart.add(update)

    def _settle(self, update: UpdateId, outcome: Outcome) -> Iterator[Instruction]:
        """Note an outcome that the server reports, and answer its worker if that has asked again meanwhile."""
        planned = self.planned.get(update)
        if planned is not None and isinstance(outcome, Committed) and self._is_of_iteration(planned):
            self.iteration = None
        self._release(update)
        self._forget(update)
        self._enter_outcome(update, outcome)
        if self.waiting.pop(update, None) is not None:
            yield Resolve(to=update.worker, update=update, outcome=outcome, reason="the server had it")

    def _end(self, update: UpdateId, outcome: Dropped | Committed) -> Iterator[Instruction]:
        """Settle an update that no plan holds: it goes no further, and no iteration is to wait for it."""
        self.waiting.pop(update, None)
        self._forget(update)
        self._enter_outcome(update, outcome)
        words = "is dropped" if isinstance(outcome, Dropped) else "was lost"
        if isinstance(outcome, Dropped) and self._context.is_live(update.worker, update.incarnation):
            cause, reason = outcome.cause, outcome.detail
            yield Drop(to=update.worker, model=self.spec.name, update=update, cause=cause, reason=reason)
        yield from self._recount_parts(f"{update} {words}")

    def _enter_outcome(self, update: UpdateId, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._pace.made_it(update.worker)
        elif isinstance(outcome, Dropped) and outcome.cause is DropReason.DEADLINE_PAST:
            self._pace.missed(update.worker)
        self.settled.add(update, outcome)
        if self.whole is not None and isinstance(outcome, Dropped):
            self.refused.append((update, outcome))

    def _forget(self, update: UpdateId) -> None:
        """Forget what befell an update on its way: it goes no further."""
        self.clocks.settle(update)
        self.apart.discard(update)
        self.late.pop(update, None)
        if self.iteration is not None:
            self.iteration.owed.discard(update)

    def _is_open(self, update: UpdateId) -> bool:
        """Tell whether an outcome of this update would be news."""
        return update in self.planned or not (update in self.settled or self.settled.is_over(update))

    def _release(self, update: UpdateId) -> None:
        planned = self.planned.pop(update, None)
        self.commit_ns.pop(update, None)
        self._links.free(update)
        if planned is None or planned.sum is None:
            return
        found = self.sums.whole(planned.sum)
        found.open.discard(update)
        if found.open:
            self._broken_up.add(found.root.sum)
            return
        self.sums.remove(found)
        for part in found.parts:
            self._links.free(part.sum)

    # Iterations

    def _is_of_iteration(self, planned: PlannedUpdate) -> bool:
        return self.iteration is not None and planned.seq == self.iteration.seq

    def _recount_parts(self, reason: str) -> Iterator[Instruction]:
        """Expect what is left of an iteration again if there are more or fewer parts than the server was told of."""
        iteration = self.iteration
        if iteration is None:
            return
        iteration.owed = {u for u in iteration.owed if not self.settled.is_over(u)}
        parts = len({p.transfer for p in self.planned.values() if p.seq == iteration.seq}) + len(iteration.owed)
        if not parts:
            self.iteration = None
        elif parts != iteration.parts:
            iteration.parts = parts
            yield from self._expect_parts(iteration, reason)

    def _expect_parts(self, iteration: Iteration, reason: str) -> Iterator[Instruction]:
        on_way = {p.transfer: p for p in self.planned.values() if p.seq == iteration.seq}
        for planned in on_way.values():
            if not planned.voided:
                yield self._expect(planned, (), reason)

    def _place_of_plan(self, groups: int) -> int | None:
        """Return the ``seq`` that all of a new plan's transfers share, None if each has its own."""
        if self.spec.method is not Method.SYNCHRONOUS:
            return None
        if self.iteration is None:
            self.iteration = Iteration(self._next_seq(), groups)
        return self.iteration.seq
