"""One model on a replica: the log that it follows, what it holds of it, what it may apply. Pure.

Bytes come as an update by itself, as a *window* (what one worker folded of its updates), or as a seed. The replica
applies the longest prefix of the log of which it has every update and into which no window reaches from beyond; under
ADAM group by group, as the primary did. Nothing that is not in the log is ever applied (design, section 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mlfabric.model.samples import SampleAccount
from mlfabric.model.specs import Method, ModelSpec
from mlfabric.model.update_rules import RuleKind
from mlfabric.protocol import (
    Commit,
    Expect,
    ModelVersion,
    NotKept,
    ReplicaReported,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.server import actions as act
from mlfabric.server.applied import AppliedSet
from mlfabric.server.bequest import Bequest
from mlfabric.server.replica_actions import (
    ApplyPrefix,
    Part,
    PlantSeed,
    PrefixApplied,
    PrefixRefused,
    ReplicaAction,
    SeedPlanted,
    SeedRefused,
)
from mlfabric.server.replica_log import Entry, entries_of
from mlfabric.transfer.offers import TransferState

__all__ = ["ReplicaModel"]

MOST_OVER = 64
"""As many orders are known once their transfers are forgotten: one may come twice, and late."""


@dataclass(slots=True, kw_only=True)
class _Incoming:
    """A transfer to this replica; ``seed`` is what came with an offered seed."""

    order: Expect
    state: TransferState = TransferState.EXPECTED
    connection: int | None = None
    seed: act.SeedOffered | None = None

    @property
    def members(self) -> tuple[UpdateId, ...]:
        return tuple(member.update for member in self.order.members)

    @property
    def holds_buffer(self) -> bool:
        return self.state is not TransferState.EXPECTED

    @property
    def is_held(self) -> bool:
        return self.state is TransferState.RECEIVED


class ReplicaModel:
    """The state of one model; every door returns the actions that follow.

    ``bequest`` is what it goes on with when it takes its primary's place. If nothing comes of that after the model went
    further than the log, the next seed is taken whatever it is of.
    """

    def __init__(self, replica: str, spec: ModelSpec) -> None:
        self.spec = spec
        self.version = ModelVersion(0, 0)
        self.term = 0
        self.seeded_by: TransferId | None = None
        self.applied = AppliedSet()
        self.samples = SampleAccount()
        self.transfers: dict[TransferId, _Incoming] = {}
        self.log: list[Entry] = []
        self._replica = replica
        self._over: deque[tuple[bytes, int]] = deque(maxlen=MOST_OVER)
        self._running: tuple[TransferId, ...] | None = None
        self._applying: tuple[Entry, ...] = ()
        self._seed: TransferId | None = None
        self._reported: ReplicaReported | None = None
        self.bequest = Bequest(spec)
        self._foretold: list[tuple[Commit, ...]] = []

    @property
    def is_idle(self) -> bool:
        """Nothing is being applied, and nothing that is here can be."""
        return self._running is None and self._seed is None and not self._foretold and not self._longest_prefix()

    # Transfers

    def expect(self, order: Expect) -> Iterator[ReplicaAction]:
        """Take a transfer that will be offered, instead of any other that has an update of it.

        An order that comes again once its transfer is forgotten says nothing new.
        """
        known = self.transfers.get(order.transfer)
        if (order.ticket, order.seq) in self._over:
            return
        if known is None:
            members = {member.update for member in order.members}
            for name in [n for n, rival in self.transfers.items() if members.intersection(rival.members)]:
                yield from self.void(name)
            self.transfers[order.transfer] = _Incoming(order=order)
        elif known.state is TransferState.EXPECTED:
            known.order = order

    def offer(self, offered: act.Offered) -> Iterator[ReplicaAction]:
        """Take an offer whose ticket fits: its bytes may come at once."""
        transfer = self.transfers[offered.transfer]
        order = transfer.order
        if transfer.is_held:
            yield act.Answer(connection=offered.connection, outcomes=())
            return
        flaw = self._flaw(offered, order)
        if flaw:
            yield act.Refuse(connection=offered.connection, reason=flaw)
            return
        if transfer.state is TransferState.RECEIVING and transfer.connection is not None:
            yield act.Abandon(connection=transfer.connection)
            yield act.Forget(transfer=offered.transfer)
        transfer.state, transfer.connection, transfer.seed = TransferState.RECEIVING, offered.connection, offered.seed
        yield act.Grant(transfer=offered.transfer, connection=offered.connection, size_bytes=order.size_bytes)

    def _flaw(self, offered: act.Offered, order: Expect) -> str:
        if offered.digest != self.spec.layout.digest or offered.length != order.size_bytes:
            return f"{offered.length} bytes of layout {offered.digest:#x} offered; allowed: {order.size_bytes} of its"
        if (order.kind is UpdateKind.STATE) != (offered.seed is not None):
            return f"{order.kind.value} expected; a seed comes with what the primary holds, an update without"
        return ""

    def received(self, name: TransferId, connection: int) -> Iterator[ReplicaAction]:
        """Note that a transfer is complete; its sender need not keep it any longer."""
        transfer = self.transfers.get(name)
        if transfer is None or transfer.state is not TransferState.RECEIVING or transfer.connection != connection:
            return
        transfer.state, transfer.connection = TransferState.RECEIVED, None
        yield act.Answer(connection=connection, outcomes=())
        yield act.Report(event=self._ended(name, TransferEnd.RECEIVED))
        if transfer.order.kind is UpdateKind.STATE and transfer.seed is not None:
            self._seed = name
        elif any(self.applied.knows(update) for update in transfer.members):
            yield from self._forget(name)

    def broken(self, name: TransferId, connection: int) -> Iterator[ReplicaAction]:
        """Note that a connection broke; its sender offers again."""
        transfer = self.transfers.get(name)
        if transfer is not None and transfer.connection == connection:
            transfer.state, transfer.connection = TransferState.EXPECTED, None
            yield act.Forget(transfer=name)

    def void(self, name: TransferId) -> Iterator[ReplicaAction]:
        """Forget a transfer, unless it is being used."""
        transfer = self.transfers.get(name)
        if transfer is None or name == self._seed or (self._running is not None and name in self._running):
            return
        if transfer.connection is not None:
            yield act.Abandon(connection=transfer.connection)
        yield from self._forget(name)

    def _forget(self, name: TransferId) -> Iterator[ReplicaAction]:
        transfer = self.transfers.pop(name)
        self._over.append((transfer.order.ticket, transfer.order.seq))
        if transfer.state is not TransferState.EXPECTED:
            yield act.Forget(transfer=name)

    def begin_term(self) -> Iterator[ReplicaAction]:
        """Let go of what was on its way: a new scheduler knows of nothing, and seeds anew.

        What can be used once it is in the log stays: the primary may have counted on it, and committed it.
        """
        for name, transfer in list(self.transfers.items()):
            if not transfer.is_held or not self._usable(name, transfer):
                yield from self.void(name)
        self.log.clear()

    def end(self) -> Generator[ReplicaAction, None, tuple[TransferId, ...]]:
        """Let go of everything; return the transfers whose buffers are in use."""
        for name in list(self.transfers):
            yield from self.void(name)
        return tuple(self.transfers)

    # The log

    def logged(self, group: tuple[Commit, ...]) -> None:
        """Note a group that the primary committed, once; after a gap only a seed helps."""
        first = group[0].version
        known = self.log[-1].version if self.log else self.version
        if first.epoch == known.epoch and first.number <= known.number:
            return
        if self.log and (first.number != self.log[-1].version.number + 1 or first.epoch != self.log[-1].version.epoch):
            self.log.clear()
        self.log += entries_of(group)

    def take_foretold(self, known: Iterable[Commit], groups: Sequence[tuple[Commit, ...]]) -> None:
        """Go on alone from here: with what the primary may have committed and not told.

        Args:
            known: what the primary has told of, and this replica may not have come to.
            groups: what it may have committed, in order.
        """
        self.bequest.ends(self.log, known)
        self._foretold = list(groups)

    def forget_foretold(self) -> None:
        """Let the log say no more than the primary has committed, from here on."""
        self._foretold = []

    def _foretell(self) -> None:
        """Let the log, once it leads no further, go on with what is foretold next and can be applied.

        A new scheduler knows that an update was committed, and may never have heard of its samples.
        """
        samples = {m.update: m.samples for t in self.transfers.values() for m in t.order.members if self._foretold}
        while self._foretold and not self._longest_prefix():
            group = self._foretold.pop(0)
            ahead = group[0].version.number - 1 - self.version.number
            commits = tuple(
                replace(
                    c,
                    version=ModelVersion(self.version.epoch, c.version.number - ahead),
                    tau=c.tau - ahead,
                    samples=c.samples or samples.get(c.update, ()),
                )
                for c in group
            )
            if not any(c.tau < 0 or self.applied.knows(c.update) for c in commits):
                self.bequest.certain = self.certain or self.version
                self.log.clear()
                self.logged(commits)

    # What the store did

    def stored(self, event: SeedPlanted | SeedRefused | PrefixApplied | PrefixRefused) -> Iterator[ReplicaAction]:
        """Note what the store did."""
        match event:
            case SeedPlanted():
                yield from self.planted()
            case SeedRefused():
                yield from self.seed_refused(event.detail)
            case PrefixApplied():
                yield from self.prefix_applied(event)
            case PrefixRefused():
                yield from self.prefix_refused(event)

    def planted(self) -> Iterator[ReplicaAction]:
        """Note that the seed is the model now: go on from its version, without what it has in it."""
        assert self._seed is not None, "no seed was planted"
        transfer, self._seed, self._running = self.transfers[self._seed], None, None
        assert transfer.seed is not None, "a seed comes with what the primary holds"
        holds = transfer.seed.holds
        self.version, self.applied = holds.version, AppliedSet(holds.applied)
        self.samples = SampleAccount(holds.samples)
        self.bequest.begin(holds)
        yield from self._begin_term(transfer)

    def _begin_term(self, seed: _Incoming) -> Iterator[ReplicaAction]:
        """Go on from the present version as that of a new term."""
        yield from self._forget(seed.order.transfer)
        self.term, self.seeded_by = seed.order.seq, seed.order.transfer
        for name, other in list(self.transfers.items()):
            kept = other.is_held and isinstance(name, UpdateId)
            outdated = other.order.seq < self.term and not kept
            if outdated or any(self.applied.knows(update) for update in other.members):
                yield from self.void(name)
        self._drop_old_entries()

    def _drop_old_entries(self) -> None:
        self.log = [entry for entry in self.log if entry.version > self.version]

    def seed_refused(self, detail: str) -> Iterator[ReplicaAction]:
        """Note that a seed cannot be used."""
        assert self._seed is not None, "no seed was refused"
        transfer, self._seed, self._running = self.transfers[self._seed], None, None
        yield from self._forget(transfer.order.transfer)
        yield self._hole(transfer.order.seq, detail)

    def prefix_applied(self, event: PrefixApplied) -> Iterator[ReplicaAction]:
        """Note that the prefix is applied, whatever became of the log meanwhile."""
        assert self._running is not None, "nothing was to be applied"
        done, self._applying = self._applying, ()
        for entry in done:
            for update, tau, samples in zip(entry.members, entry.taus, entry.samples, strict=True):
                self.applied.add(update, entry.version, tau)
                self.samples.train(samples)
        self.bequest.applied(done)
        self.version = event.version
        self._drop_old_entries()
        running, self._running = self._running, None
        for name in running:
            yield from self._forget(name)

    def prefix_refused(self, event: PrefixRefused) -> Iterator[ReplicaAction]:
        """Note that what the primary did cannot be done here: only a seed helps."""
        assert self._running is not None, "nothing was to be applied"
        running, self._running, self._applying = self._running, None, ()
        for name in running:
            yield from self._forget(name)
        self.log.clear()
        yield self._hole(self.term, event.detail)

    def _hole(self, term: int, detail: str) -> act.Report:
        return act.Report(event=NotKept(member=self._replica, model=self.spec.name, term=term, detail=detail))

    # What follows from the state

    def advance(self) -> Iterator[ReplicaAction]:
        """Plant a seed, apply what can be applied, report what is new."""
        if self._running is None and self._seed is not None and self.transfers[self._seed].is_held:
            transfer = self.transfers[self._seed]
            assert transfer.seed is not None, "checked when received"
            assert isinstance(transfer.order.transfer, SumId), "seeds are numbered as sums are"
            yield from self._take_seed(transfer, transfer.order.transfer, transfer.seed)
        if self._running is None and self._seed is None:
            self._foretell()
            yield from self._apply()
        report = self._report()
        if report != self._reported:
            self._reported = report
            yield act.Report(event=report)

    def _take_seed(self, transfer: _Incoming, name: SumId, seed: act.SeedOffered) -> Iterator[ReplicaAction]:
        """Plant a seed, unless the model is further than it: to go back would break the bound.

        One of a lesser server epoch is of a server whose place was taken, and which does not know that.
        """
        version = seed.holds.version
        if self.term and not self.certain and version < self.version:
            self._seed = None
            yield from self._begin_term(transfer)
            return
        self._running = ()
        yield PlantSeed(model=self.spec.name, transfer=name, holds=seed.holds, steps=seed.steps)

    def _report(self) -> ReplicaReported:
        held = (u for name, t in self.transfers.items() if t.is_held for u in self._usable(name, t))
        return ReplicaReported(
            replica=self._replica,
            model=self.spec.name,
            term=self.term,
            version=self.certain or self.version,
            held=tuple(sorted(held)),
        )

    def _usable(self, name: TransferId, transfer: _Incoming) -> tuple[UpdateId, ...]:
        """Return what can be applied once it is in the log; of a window that depends on the updates between its own."""
        return transfer.members if isinstance(name, UpdateId) else ()

    def announce(self) -> ReplicaReported:
        """Say what is here, to a scheduler that may know nothing."""
        self._reported = self._report()
        return self._reported

    def _apply(self) -> Iterator[ReplicaAction]:
        count = self._longest_prefix()
        if not count or not self.term:
            return
        entries = self.log[:count]
        places = {u: place for place, entry in enumerate(entries, 1) for u in entry.members}
        shares = {u: 1 / len(entry.members) for entry in entries for u in entry.members}
        parts = []
        for name, transfer in self.transfers.items():
            own = [places[u] for u in transfer.members if u in places]
            if transfer.is_held and own:
                has_share = self._is_mean and isinstance(name, UpdateId)
                share = shares[transfer.members[0]] if has_share else 1.0
                outdated = entries[max(own) - 1].began < entries[-1].began
                parts.append(Part(transfer=name, place=max(own), share=share, outdated=outdated))
        parts.sort(key=lambda part: part.place)
        self._running, self._applying = tuple(part.transfer for part in parts), tuple(entries)
        yield ApplyPrefix(
            model=self.spec.name,
            parts=tuple(parts),
            lrs=tuple(entry.lr for entry in entries),
            is_mean=self._is_mean,
            values=sum(len(entry.members) for entry in entries if entry.began == entries[-1].began),
            values_before=max(0, self.version.number + 1 - entries[-1].began),
            version=entries[-1].version,
        )

    @property
    def _is_mean(self) -> bool:
        return self.spec.method is Method.SYNCHRONOUS

    def _longest_prefix(self) -> int:
        """Return how many entries can be applied now."""
        if not self.log or self.log[0].version != (self.version.epoch, self.version.number + 1):
            return 0
        holder = {u: name for name, t in self.transfers.items() if t.is_held for u in t.members}
        count = 0
        for entry in self.log:
            if not all(update in holder for update in entry.members):
                break
            count += 1
        if self.spec.rule.kind is RuleKind.ADAM:
            ends = (place for place, entry in enumerate(self.log[:count], 1) if entry.ends_group)
            return next(ends, 0)
        return self._without_straddlers(count, holder)

    def _without_straddlers(self, count: int, holder: dict[UpdateId, TransferId]) -> int:
        """Shorten a prefix until every window that reaches into it ends in it."""
        while count:
            inside = {u for entry in self.log[:count] for u in entry.members}
            for place, entry in enumerate(self.log[:count]):
                names = {holder[u] for u in entry.members}
                if any(not inside.issuperset(self.transfers[name].members) for name in names):
                    count = place
                    break
            else:
                return count
        return 0

    @property
    def certain(self) -> ModelVersion | None:
        """The last version of the log, once the model goes further; None until then."""
        return self.bequest.certain

    def holds(self, server: str, server_epoch: int) -> ServerHolds:
        """Return what this replica goes on with as a server, under a new server epoch."""
        return self.bequest.holds(server, server_epoch, self.version, self.applied, self.samples)

    def _ended(self, name: TransferId, end: TransferEnd) -> TransferEnded:
        return TransferEnded(member=self._replica, model=self.spec.name, transfer=name, end=end)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for before, after in zip(self.log, self.log[1:], strict=False):
            assert after.version.number == before.version.number + 1, f"{self.spec.name}: a gap in the log"
        held = [u for t in self.transfers.values() if t.is_held for u in t.members]
        assert len(held) == len(set(held)), f"{self.spec.name}: held twice: {held}"
