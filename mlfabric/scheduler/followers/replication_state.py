"""How a model's replica follows its primary, as the scheduler sees it (paper, section 5.3; design, section 5). Pure.

A *term* begins with a seed: the primary sends weights and optimizer state of one version, and from the term's beginning
on the workers keep what is committed. What the seed has in it they release; what comes after it each worker folds into
one *window*, in the order of commits, or sends by itself before it is committed if no lead is allowed. A window is sent
when the lead has reached a share of its bound, when a plan says so, or when the primary holds a commit back. It is
known here what each one has in it: workers fold and freeze as they are told, in the order in which they are told.

A hole (a worker is gone with what it kept, a report was missed, a member came back) is not filled: a new term begins,
while the replica keeps what it has and the primary keeps to its bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from mlfabric.model.divergence import Limit, units_above
from mlfabric.model.specs import Role
from mlfabric.protocol import (
    Commit,
    GroupOf,
    HeldBack,
    HostModel,
    Instruction,
    Keep,
    Logged,
    ModelVersion,
    NotKept,
    ReplicaReported,
    Seed,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferEnded,
    Unfollowed,
    UpdateId,
    Void,
)
from mlfabric.scheduler.followers.replica_plans import ReplicaPlans
from mlfabric.scheduler.followers.replica_sending import Entry, Phase, Window
from mlfabric.scheduler.followers.untold_commits import foretold
from mlfabric.scheduler.records import MemberRecord, MemberState

__all__ = ["Phase", "Replication"]


class Replication(ReplicaPlans):
    """One model's replica.

    Args:
        context: shared by the scheduler's parts.
        pushes: the model's updates; only read.
    """

    # What happens

    def committed(self, commits: tuple[Commit, ...]) -> Iterator[Instruction]:
        """Note a group that the primary committed; hand it on to the replica, and tell workers what to fold."""
        self._told.update((c.update, c) for c in commits if self._may_need(c.update))
        fresh = tuple(c for c in commits if c.version.number > self._logged)
        if self.phase is Phase.NONE or not fresh or not self._pushes.initialised:
            return
        numbers = (number for number, _ in groupby(c.version.number for c in fresh))
        lacking = next((wanted for wanted, number in enumerate(numbers, self._logged + 1) if wanted != number), None)
        if lacking is not None:
            self._hole = f"the log has no version {lacking}"
            return
        self._logged, self._last_step = fresh[-1].version.number, fresh[-1].step_norm
        yield Logged(to=self.name, model=self._model, commits=fresh, reason="the primary committed it")
        for number, step in groupby(fresh, key=lambda c: c.version.number):
            together = list(step)
            if self.phase is Phase.FOLLOWING and together[0].version <= self.version:  # told later than the seed was
                yield from self._release([c.update for c in together], "the replica was seeded with them")
                continue
            share = units_above(together[0].step_norm) // len(fresh) * len(together) + 1
            entry = Entry(number, together[0].lr, tuple(c.update for c in together), share, fresh[0].version.number)
            self._entries.append(entry)
            if self.phase is Phase.FOLLOWING:
                yield from self._settle_entry(entry)

    def reported(self, event: ReplicaReported) -> Iterator[Instruction]:
        """Note what the replica holds, and tell the primary."""
        if event.replica != self.name or self.following is None:
            return
        if self._is_unheard:
            # An earlier scheduler has told the primary of these; what this one lets it forget, it does from now on.
            self._is_unheard = False
            self._alone.update(event.held)
            self._held.update(event.held)
        if event.term == self.term and self.phase is Phase.SEEDING and event.version.number >= 0:
            yield from self._seeded(event.version)
        elif event.term == self.term and self.phase is Phase.FOLLOWING:
            self._applied(event.version)
        self.version, self._reported = event.version, event.held
        self._told = {u: c for u, c in self._told.items() if c.version > event.version}
        self._is_seeded = event.term > 0
        if self._is_seeded:
            yield self._followed("the replica holds more")
        for update in event.held:
            if update not in self._held and update not in self._in_flight:
                reason = "it was not heard of when it came, and is not counted on"
                yield Void(to=self.name, model=self._model, transfer=update, reason=reason)

    def _seeded(self, version: ModelVersion) -> Iterator[Instruction]:
        """Go on from the version that the replica was seeded with."""
        if version.epoch != self._pushes.version.epoch:
            self._hole = f"it was seeded with a version of epoch {version.epoch}"
            return
        self.phase = Phase.FOLLOWING
        for transfer in [t for t, f in self._in_flight.items() if isinstance(f.order, Seed)]:
            self._end(transfer)
        entries, self._entries = self._entries, []
        done = [u for entry in entries if entry.version <= version.number for u in entry.members]
        yield from self._release(done, "the replica was seeded with them")
        for entry in entries:
            if entry.version > version.number:
                self._entries.append(entry)
                yield from self._settle_entry(entry)

    def _applied(self, version: ModelVersion) -> None:
        done = [entry for entry in self._entries if entry.version <= version.number]
        self._entries = self._entries[len(done) :]
        gone = {u for entry in done for u in entry.members}
        self._held -= gone
        self._alone -= gone

    def ended(self, event: TransferEnded) -> None:
        """Note that a transfer has arrived at the replica."""
        if event.end is TransferEnd.RECEIVED and isinstance(event.transfer, (SumId, UpdateId)):
            found = self._end(event.transfer)
            if found is not None:
                self._held.update(found.members)
                self._unreleased += found.members

    def held_back(self, event: HeldBack) -> None:
        """Note that the primary waits: everything that the replica lacks goes there now."""
        self._flush = True
        self._given_up.clear()
        if event.alone:
            for transfer in event.transfers:
                found = self._pushes.sums.of(transfer) if isinstance(transfer, SumId) else None
                if isinstance(transfer, SumId):  # one of a former scheduler may have any in it that is not settled
                    self._wanted.update(found.members if found is not None else self._pushes.planned)
                self._wanted.update({transfer} if isinstance(transfer, UpdateId) else ())

    def not_kept(self, event: NotKept) -> None:
        """Note a hole."""
        if event.term == self.term and self.phase is not Phase.NONE:
            self._hole = f"{event.member}: {event.detail}"

    def _may_need(self, update: UpdateId) -> bool:
        """Tell whether the replica, or a process that is away and may have the update, may need its commit."""
        return self._is_seeded or self._orphaned_ns is not None or update in self._left_with

    def primary_holds(self, holds: ServerHolds) -> None:
        """Note what the primary committed and could not tell when it did, before its word is taken over.

        Its replica may not have been heard of yet, and may hold any of it.
        """
        rule, is_unheard = self._pushes.spec.rule, bool(holds.replica) and not self._is_seeded
        for ids in holds.applied:
            for counter, version, tau in ids.recent:
                update = UpdateId(ids.worker, ids.incarnation, counter)
                is_ahead = version.epoch == self.version.epoch and version > self.version
                is_step = version.number > 0  # initial weights are in the seed
                may_need = is_unheard or (is_ahead and self._may_need(update))
                if update in self._told or not (is_step and may_need):
                    continue
                planned = self._pushes.planned.get(update)
                self._told[update] = Commit(
                    update=update,
                    version=version,
                    tau=tau,
                    lr=rule.lr_at(version.number - 1, tau),
                    step_norm=0.0,
                    samples=planned.request.samples if planned is not None else (),
                )

    def primary_back(self, holds: ServerHolds, now_ns: int) -> None:
        """Note at which version the primary is that came back: what it did meanwhile was not told.

        One that took another one's place may be back at a version that the log has already. One that begins the model
        has nothing yet of which it could send a seed.
        """
        version = holds.version
        self._orphaned_ns = now_ns if holds.replica and self.phase is Phase.NONE else None
        began_anew = self.phase is Phase.FOLLOWING and version.epoch != self.version.epoch
        missed = self.phase is not Phase.NONE and version.number != self._logged
        has_no_seed = self.phase is Phase.SEEDING and not holds.initialised
        if began_anew or missed or has_no_seed:
            self._hole = f"the primary came back at version {tuple(version)}; the log ends at {self._logged}"

    def told(self) -> Iterator[GroupOf]:
        """Give what the primary has told of, and the replica has not reported."""
        if self._told:
            yield GroupOf(self._model, tuple(sorted(self._told.values(), key=lambda commit: commit.version)))

    def foretell(self) -> Iterator[GroupOf]:
        """Give what the primary, whose place the replica takes, may have committed and not told."""
        for commits in foretold(self._pushes, self._held & self._alone, self._told, self.version):
            yield GroupOf(self._model, commits)

    # What follows

    def advance(self, now_ns: int) -> Iterator[Instruction]:
        """Begin, end or go on; send what is to be sent now."""
        if self.phase is Phase.NONE and self._orphaned_ns is None and not self._context.here(Role.REPLICA):
            return iter(())  # so it is after nearly every event
        return self._advance(now_ns)

    def _advance(self, now_ns: int) -> Iterator[Instruction]:
        yield from self._look_for_replica()
        if self.phase is Phase.NONE:
            yield from self._release_primary(now_ns)
            return
        yield from self._look_at_workers()
        if self._hole:
            yield from self._begin_term(f"a hole: {self._hole}")
        yield from self._look_at_primary()
        if self.phase is Phase.WAITING and self._can_seed():
            yield from self._seed(now_ns)
        yield from self._forget_dropped()
        yield from self._send(now_ns)

    def _send(self, now_ns: int) -> Iterator[Instruction]:
        if self.phase is not Phase.FOLLOWING or self.replica is None or self.replica.state is not MemberState.HERE:
            return
        yield from self._release_copies()
        yield from self._send_wanted(now_ns)
        self._given_up.intersection_update(self._pushes.planned)
        yield from self._send_windows(now_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        if self._orphaned_ns is None or self.phase is not Phase.NONE:
            return None
        return self._orphaned_ns + self._context.config.silence_ns

    def _release_primary(self, now_ns: int) -> Iterator[Instruction]:
        """Tell a primary that keeps to a bound from before this scheduler's time that its replica does not come."""
        if self._orphaned_ns is not None and now_ns >= self._orphaned_ns + self._context.config.silence_ns:
            self._orphaned_ns = None  # what was told stays: the primary may not hear this before its replica comes
            yield Unfollowed(to=self._pushes.server, model=self._model, reason="its replica has not come back")

    def _look_for_replica(self) -> Iterator[Instruction]:
        """See whether the replica that there was has gone, and whether there is one now."""
        current = self.replica
        if current is not None:
            known = self._context.members.get(current.member.name)
            if known is not None and known is not current and known.member == current.member:
                self.replica, self._hole = known, "the replica was away"
                yield self._host_model()
            elif known is not current or current.state is MemberState.LEFT:
                yield from self._end_replication("the replica has left, or began anew")
        if self.replica is not None or self._pushes.spec.shard is not None:
            return
        for record in self._context.here(Role.REPLICA):
            if record.follows is not None and record.follows.server == self._pushes.server:
                self.replica, self.following = record, record.follows
                self._limit = Limit.of(record.follows.norm, record.follows.updates)
                self._primary, self._is_unheard = None, True
                yield self._host_model()
                yield from self._begin_term("a replica joined")
                return

    def _host_model(self) -> HostModel:
        return HostModel(to=self.name, spec=self._pushes.spec, reason=f"{self._model} is followed here")

    def _end_replication(self, reason: str) -> Iterator[Instruction]:
        self._left_with = frozenset(self._alone | self._held)
        self._clear()
        for worker in sorted(self._workers):
            yield Keep(to=worker, model=self._model, term=self.term, receiver="", address="", reason=reason)
        yield Unfollowed(to=self._pushes.server, model=self._model, reason=reason)
        self.phase, self.replica, self.following = Phase.NONE, None, None
        self._is_seeded = False  # what was told stays: the process may come back with what it has, and need it
        self._workers.clear()

    def end(self, reason: str) -> Iterator[Instruction]:
        """Follow no more: the model has ended."""
        self._orphaned_ns = None
        if self.phase is not Phase.NONE:
            yield from self._end_replication(reason)

    def _clear(self) -> None:
        for transfer in list(self._in_flight):
            self._end(transfer)
        self._entries.clear()
        self._windows.clear()
        self._held.clear()
        self._alone.clear()
        self._wanted.clear()
        self._lost.clear()
        self._unreleased.clear()
        self._flush, self._hole = False, ""

    def _begin_term(self, reason: str) -> Iterator[Instruction]:
        """Begin anew with nothing kept."""
        assert self.replica is not None, "a term has a replica"
        if reason.startswith("a hole"):
            self.terms_begun_by_hole += 1
        for transfer in self._in_flight:
            yield Void(to=self.name, model=self._model, transfer=transfer, reason=reason)
        there = self._alone & self._held
        self._clear()
        # The primary was told of these, and may count on them at any moment.
        self._alone, self._held = there, set(there)
        self.term += 1
        self.phase = Phase.WAITING
        self._logged = self._pushes.version.number
        self._workers = {}
        yield from self._look_at_workers()

    def _look_at_workers(self) -> Iterator[Instruction]:
        """Ask workers that came to keep what is committed; find holes that others have left."""
        assert self.replica is not None, "there is a replica"
        here = {r.member.name: r for r in self._context.here(Role.WORKER) if r.model == self._model}
        for name, record in list(self._workers.items()):
            if here.get(name) is not record:
                del self._workers[name]
                yield from self._lose(name)
        for name, record in here.items():
            if name not in self._workers:
                self._workers[name] = record
                self._find_again(record)
                yield Keep(
                    to=name,
                    model=self._model,
                    term=self.term,
                    receiver=self.name,
                    address=self.replica.member.address,
                    reason="the model has a replica",
                )

    def _lose(self, worker: str) -> Iterator[Instruction]:
        """Note that a worker is gone with what it kept."""
        for transfer, found in list(self._in_flight.items()):
            if found.order.to == worker:
                self._end(transfer)
                self._alone.difference_update(found.members)
                if isinstance(transfer, UpdateId):
                    self._lost.add(transfer)
                yield Void(to=self.name, model=self._model, transfer=transfer, reason=f"{worker} is gone")
        self._windows.pop(worker, None)
        lacking = [u for e in self._entries for u in e.members if u.worker == worker and u not in self._held]
        if lacking and self.phase is Phase.FOLLOWING:
            self._hole = f"{worker} is gone with {len(lacking)} updates that the replica lacks"

    def _find_again(self, worker: MemberRecord) -> None:
        """Find a hole if a worker is back that was sending an update by itself when it went, and will do so again.

        The replica is told by then to forget what has come; its word that it has that would be taken for the next.
        """
        settled, own = self._pushes.settled, (worker.member.name, worker.member.incarnation)
        again = [u for u in self._lost if u[:2] == own and u not in settled and not settled.is_over(u)]
        if again:
            self._hole = f"{worker.member.name} was away while it sent {len(again)} updates"

    def _look_at_primary(self) -> Iterator[Instruction]:
        """Repeat to a primary that came back how far it may be ahead."""
        record = self._context.members.get(self._pushes.server)
        if record is not None and record is not self._primary:
            self._primary = record
            if self.phase is Phase.FOLLOWING:
                yield self._followed("the primary came back")
            yield from (found.order for found in self._in_flight.values() if isinstance(found.order, Seed))

    def _can_seed(self) -> bool:
        pushes = self._pushes
        there = self.replica is not None and self.replica.state is MemberState.HERE
        return there and pushes.initialised and not pushes.awaited and self._context.is_here(pushes.server)

    def _seed(self, now_ns: int) -> Iterator[Instruction]:
        assert self.replica is not None, "checked by _can_seed"
        spec = self._pushes.spec
        self.phase = Phase.SEEDING
        size_bytes = (1 + spec.rule.state_images) * spec.layout.size_bytes
        order = Seed(
            to=self._pushes.server,
            model=self._model,
            term=self.term,
            transfer=self._context.numbers.next_sum(),
            receiver=self.name,
            address=self.replica.member.address,
            ticket=self._context.tickets.next(),
            reason=f"term {self.term}",
        )
        profile = self._context.network.transfer(self._context.path(order.to, self.name), size_bytes, now_ns)
        yield from self._begin(order, (), size_bytes, profile, now_ns)

    def _settle_entry(self, entry: Entry) -> Iterator[Instruction]:
        """Tell the workers of a committed version to fold what they do not send otherwise."""
        for update in entry.members:
            if update in self._held or update in self._alone:
                continue
            record = self._workers.get(update.worker)
            if record is None or record.member.incarnation != update.incarnation:
                self._hole = f"{update} was committed, and nobody keeps it"
                continue
            window = self._windows.setdefault(update.worker, Window())
            if self._folds:
                yield self._fold(update, entry, window)
            window.members.append(update)
            window.version = entry.version

    def _forget_dropped(self) -> Iterator[Instruction]:
        """Let the replica forget what will never be committed; before it is seeded that cannot be told."""
        if not self._alone or self.phase is not Phase.FOLLOWING:
            return
        pushes = self._pushes
        logged, held = {u for entry in self._entries for u in entry.members}, len(self._held)
        for update in sorted(self._alone - logged):
            asked = update in pushes.planned or update in pushes.waiting
            over = update in pushes.settled or pushes.settled.is_over(update)
            # One whose transfer broke is neither planned nor asked for until its worker asks again.
            if not asked and (over or update.worker not in self._workers):
                self._end(update)
                self._alone.discard(update)
                self._held.discard(update)
                yield Void(to=self.name, model=self._model, transfer=update, reason="it will not be committed")
        if len(self._held) < held:  # the primary, which may be sent one of them again, must not count on it
            yield self._followed("some of what the replica has will not be committed")
