"""How the updates of a plan are set on their way: dropped, sent by themselves, summed, overtaken. Pure.

A group of a plan becomes a sum: ids, coefficients, reservations, and who is told what. Receivers are told before
senders: the server, the aggregators from the root outwards, then the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from mlfabric.model.specs import Member, Method, RuleKind
from mlfabric.model.stepping import Coefficients, member_coefficients
from mlfabric.network import Path, Profile
from mlfabric.planning import Commit, Group, Plan, Shape, Transfer, paced_rate
from mlfabric.protocol import Dropped, Instruction, PushRequested, Send, Sum, SumId, SumInput, TransferId, UpdateId
from mlfabric.scheduler.records import PlannedUpdate, TornBy
from mlfabric.scheduler.updates.push_ends import PushEnds
from mlfabric.scheduler.updates.sum_table import PlannedSum, SumPart, hops

__all__ = ["BLOCKED_NS", "Arranging"]

BLOCKED_NS = 100_000_000

_PLAIN = Coefficients(1.0, 0.0)


class _Leg(NamedTuple):
    """How one update comes to the host that adds it up."""

    update: UpdateId
    path: Path
    profile: Profile


class _Told(NamedTuple):
    """What the instructions for a sum are made of besides the sum itself."""

    coefficients: Mapping[UpdateId, Coefficients]
    after: Mapping[TransferId, tuple[TransferId, ...]]
    reasons: Mapping[UpdateId, str]


class Arranging(PushEnds):
    """The updates of one model, and how their plans are carried out."""

    def _leave(self, found: Plan) -> Iterator[Instruction]:
        for left in found.drops:
            update, planned = left.update, self.planned.get(left.update)
            if planned is not None:
                yield from self._void(planned, left.reason, TornBy.REFUSED)
            else:
                yield from self._end(update, Dropped(cause=left.cause, detail=left.reason))

    def _arrange(
        self, found: Plan, adders: Mapping[str, Member], last_seq: int, there_ns: int, now_ns: int
    ) -> Iterator[Instruction]:
        """Carry a plan out; nothing of it is committed before ``there_ns``, when what keeps its place is there."""
        shared_seq = self._place_of_plan(len(found.groups))
        for number, together in groupby(found.commits, key=lambda commit: commit.group):
            group, commits = found.groups[number], list(together)
            for commit in commits:
                self.commit_ns[commit.update] = max(there_ns, commit.commit_ns)
            planned = self.planned.get(group.members[0])
            if planned is not None:
                yield from self._keep(planned, found.transfers[group.last[0]], last_seq, now_ns)
            else:
                self._context.count.groups[group.shape, len(commits)] += 1
                seq = shared_seq or self._next_seq()
                if group.shape is Shape.DIRECT:
                    yield from self._send_alone(commits[0], found.transfers[group.last[0]].profile, seq)
                else:
                    yield from self._sum_up(found, group, commits, adders, seq)
            last_seq = self.planned[group.members[0]].seq
        for deferred in found.deferred:
            if isinstance(deferred.what, UpdateId) and (waiting := self.waiting.get(deferred.what)) is not None:
                waiting.blocked_until_ns = now_ns + BLOCKED_NS
        if self.iteration is not None:
            self.iteration.owed.difference_update(self.planned)
        yield from self._recount_parts("the iteration has other parts now")

    def _keep(self, planned: PlannedUpdate, transfer: Transfer, last_seq: int, now_ns: int) -> Iterator[Instruction]:
        """Leave an update that was planned before as it is, or give it a later place or other times."""
        after: tuple[TransferId, ...] = ()
        update, reason = planned.request.update, "overtaken within its deadline"
        if planned.seq < last_seq:
            self.sums.put_off_behind(planned.seq, now_ns)
            planned.seq = self._next_seq()
            self.planned[update] = self.planned.pop(update)
        elif not transfer.planned:
            return
        if transfer.planned:
            after = self._links.enter(update, transfer.path, transfer.profile)
            reason = "planned anew: links have changed"
            planned.profile, planned.late_end_ns, planned.overdue = transfer.profile, 0, 0
        yield self._expect(planned, after, reason)

    def _send_alone(self, commit: Commit, profile: Profile, seq: int) -> Iterator[Instruction]:
        planned, after = self._take(self.waiting[commit.update].request, profile, seq)
        yield from self._instruct(planned, after, commit.reason)

    def _take(self, request: PushRequested, profile: Profile, seq: int) -> tuple[PlannedUpdate, tuple[TransferId, ...]]:
        """Plan an update that goes to the server by itself; return what it starts after."""
        update = request.update
        self.waiting.pop(update, None)
        after = self._links.enter(update, self._context.path(update.worker, self.server), profile)
        planned = self.planned[update] = PlannedUpdate(
            request=request,
            seq=seq,
            ticket=self._context.tickets.next(),
            profile=profile,
            patience_ns=self._lateness.patience_ns(profile),
        )
        return planned, after

    # Sums

    @property
    def _steps_once(self) -> bool:
        """Whether a sum makes one step: it is then plain, however many updates are in it."""
        return self.spec.method is Method.SYNCHRONOUS or self.spec.rule.kind is RuleKind.ADAM

    @property
    def _images(self) -> int:
        return 1 if self._steps_once else self.spec.rule.sum_images

    def _lrs(self, commits: Sequence[Commit]) -> tuple[float, ...]:
        """Return the learning rate of each member's step, at the version that the plan gives it.

        If the server's news is late, a worker may know a newer version than the scheduler; its update is applied to
        that one at the earliest, without delay.
        """
        if self._steps_once:
            return ()
        return tuple(self.spec.rule.lr_at(c.version - min(c.tau, 0), max(c.tau, 0)) for c in commits)

    def _coefficients(self, commits: Sequence[Commit], lrs: Sequence[float]) -> dict[UpdateId, Coefficients]:
        found = [_PLAIN] * len(commits) if self._steps_once else member_coefficients(self.spec.rule, lrs)
        return {commit.update: own for commit, own in zip(commits, found, strict=True)}

    def _sum_up(
        self, found: Plan, group: Group, commits: Sequence[Commit], helpers: Mapping[str, Member], seq: int
    ) -> Iterator[Instruction]:
        """Reserve what a group of the plan needs, and instruct everybody on its way.

        Args:
            commits: of all members, in order.
            helpers: the aggregators that the plan was made with, by host.
            seq: the group's.
        """
        parts, legs = self._parts_of(found, group, helpers)
        lrs = self._lrs(commits)
        planned = PlannedSum(
            parts=tuple(parts),
            members=group.members,
            open=set(group.members),
            seq=seq,
            images=self._images,
            lrs=lrs,
            due_ns=parts[0].profile.end_ns,
            patience_ns=hops(parts)
            * self._lateness.patience_ns(
                Profile(min(leg.profile.start_ns for leg in legs), parts[0].profile.end_ns, ())
            ),
        )
        self.sums.add(planned)
        after = self._take_all(planned, legs)
        reasons = {commit.update: commit.reason for commit in commits}
        yield from self._tell(planned, legs, _Told(self._coefficients(commits, lrs), after, reasons))

    def _parts_of(self, found: Plan, group: Group, helpers: Mapping[str, Member]) -> tuple[list[SumPart], list[_Leg]]:
        """Return what aggregators add up of a group, receivers before senders, and how its updates come to them.

        An update without a transfer of its own leaves the very host that adds it up.
        """
        parts, legs = list[SumPart](), list[_Leg]()
        (root,) = group.last
        coming = [(found.transfers[root], self._context.numbers.next_sum(), self.server)]
        for transfer, name, receiver in coming:  # grows while it is walked
            aggregator, own, children = helpers[transfer.source], list[_Leg](), list[SumId]()
            carried: set[UpdateId] = set()
            for given in (found.transfers[i] for i in transfer.inputs):
                carried.update(given.members)
                if given.inputs or len(given.members) > 1:
                    children.append(self._context.numbers.next_sum())
                    coming.append((given, children[-1], aggregator.name))
                else:
                    own.append(_Leg(given.members[0], given.path, given.profile))
            here = Profile(transfer.ready_ns, transfer.ready_ns, ())
            own += [_Leg(member, (), here) for member in transfer.members if member not in carried]
            legs += own
            parts.append(
                SumPart(
                    sum=name,
                    aggregator=aggregator,
                    members=transfer.members,
                    updates=tuple(leg.update for leg in own),
                    parts=tuple(children),
                    receiver=receiver,
                    ticket=self._context.tickets.next(),
                    path=transfer.path,
                    profile=transfer.profile,
                    cut_through=transfer.cut_through,
                )
            )
        return parts, legs

    def _take_all(self, planned: PlannedSum, legs: Sequence[_Leg]) -> dict[TransferId, tuple[TransferId, ...]]:
        """Enter all transfers of a sum, those that start first at first; return what each of them starts after."""
        own = {leg.update: leg for leg in legs}
        for member in planned.members:
            self.planned[member] = PlannedUpdate(
                request=self.waiting.pop(member).request,
                seq=planned.seq,
                ticket=self._context.tickets.next(),
                profile=own[member].profile,
                sum=planned.root.sum,
            )
        transfers: list[tuple[int, TransferId, Path, Profile]] = [
            (leg.profile.start_ns, leg.update, leg.path, leg.profile) for leg in legs
        ]
        transfers += [(p.profile.start_ns, p.sum, p.path, p.profile) for p in reversed(planned.parts)]
        transfers.sort(key=lambda t: t[0])
        return {name: self._links.enter(name, path, profile) for _, name, path, profile in transfers}

    def _tell(self, planned: PlannedSum, legs: Sequence[_Leg], told: _Told) -> Iterator[Instruction]:
        count, root = len(planned.members), planned.root
        first = self.planned[planned.members[0]]
        reason = f"{count} updates summed on the way: {told.reasons[planned.members[0]]}"
        yield self._expect(first, told.after[root.sum], reason)
        for part in planned.parts:
            yield self._order(planned, part, told, f"{len(part.members)} of the {count} updates of {root.sum}")
        adders = {update: part.aggregator for part in planned.parts for update in part.updates}
        paths = {leg.update: leg.path for leg in legs}
        for member in planned.members:
            update = self.planned[member]
            assert update.profile is not None, f"{member} was planned with a profile"
            yield Send(
                to=member.worker,
                update=member,
                receiver=adders[member].name,
                address=adders[member].address,
                seq=planned.seq,
                ticket=update.ticket,
                rate_bps=paced_rate(update.profile, paths[member], self._context.network),
                reason=told.reasons[member],
            )

    def _order(self, planned: PlannedSum, part: SumPart, told: _Told, reason: str) -> Sum:
        """Tell an aggregator of its part."""
        return Sum(
            to=part.aggregator.name,
            sum=part.sum,
            model=self.spec.name,
            inputs=tuple(self._inputs(planned, part, told)),
            members=part.members,
            images=planned.images,
            cut_through=part.cut_through,
            receiver=part.receiver,
            address=self._context.address(part.receiver),
            ticket=part.ticket,
            rate_bps=paced_rate(part.profile, part.path, self._context.network),
            seq=planned.seq,
            reason=reason,
        )

    def _inputs(self, planned: PlannedSum, part: SumPart, told: _Told) -> Iterator[SumInput]:
        for update in part.updates:
            own, known = told.coefficients[update], self.planned[update]
            yield SumInput(
                transfer=update,
                ticket=known.ticket,
                first=own.first,
                second=own.second,
                size_bytes=known.request.size_bytes,
                after=told.after[update],
            )
        tickets: dict[SumId, bytes] = {p.sum: p.ticket for p in planned.parts}
        size_bytes = planned.images * self.spec.layout.size_bytes
        for child in part.parts:
            yield SumInput(
                transfer=child,
                ticket=tickets[child],
                first=1.0,
                second=1.0,
                size_bytes=size_bytes,
                after=told.after[child],
            )
