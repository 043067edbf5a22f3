"""Laws that hold in whatever order things reach a server: updates and sums, voids, breaks, new schedulers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    CommitsReported,
    Committed,
    Dropped,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from mlfabric.server import actions as act
from mlfabric.transfer.offers import TransferState
from tests.server.stage import Stage, expect, expect_sum, member, offer, update, void

UPDATES = [update(worker, counter) for worker in "abc" for counter in range(2)]
TAU_MAX = 1


class Storm:
    """A server in a storm, what it said, and who it said it to."""

    def __init__(self, data: st.DataObject, method: Method) -> None:
        self.data, self.synchronous = data, method is Method.SYNCHRONOUS
        self.stage = Stage(method=method, budget_updates=2)
        self.bases: dict[UpdateId, int] = {}
        self.granted: dict[TransferId, int] = {}
        self.outcomes: dict[UpdateId, Committed | Dropped] = {}
        self.applying: act.ApplyStep | None = None
        self.connections = self.sums = self.seq = 0
        self.epoch = 1
        self.tell(act.TermBegan(term=1))

    # What happens

    def expect_update(self) -> None:
        name = self.data.draw(st.sampled_from(UPDATES))
        self.tell(expect(name, self.place(), self.base(name), tau_max=TAU_MAX, parts=self.parts()))

    def expect_sum(self) -> None:
        names = self.data.draw(st.lists(st.sampled_from(UPDATES), min_size=1, max_size=3, unique=True))
        members = [member(name, self.base(name)) for name in names]
        lrs = () if self.synchronous else None
        sum_id, self.sums = SumId(self.epoch, self.sums), self.sums + 1
        self.tell(expect_sum(sum_id, self.place(), *members, lrs=lrs, tau_max=TAU_MAX, parts=self.parts()))

    def base(self, name: UpdateId) -> int:
        """Return what an update was computed from: for ever the same version, one that there was."""
        number = self.stage.model.version.number
        return self.bases.setdefault(name, self.data.draw(st.integers(max(0, number - 2), number)))

    def place(self) -> int:
        self.seq += self.data.draw(st.integers(0, 1)) if self.synchronous else 1
        return self.seq

    def parts(self) -> int:
        return self.data.draw(st.integers(1, 2)) if self.synchronous else 1

    def offer(self) -> None:
        if name := self.here(TransferState.EXPECTED, TransferState.OFFERED, TransferState.RECEIVING):
            self.connections += 1
            self.tell(offer(name, self.connections, length=self.stage.model.incoming.transfers[name].size_bytes))

    def finish(self) -> None:
        if self.granted:
            name = self.data.draw(st.sampled_from(sorted(self.granted, key=str)))
            self.tell(act.PayloadReceived(transfer=name, connection=self.granted.pop(name)))

    def break_off(self) -> None:
        if name := self.here(*TransferState):
            connection = self.stage.model.incoming.transfers[name].connection or 0
            self.tell(act.TransferBroken(transfer=name, connection=connection, detail=""))

    def void(self) -> None:
        if name := self.here(*TransferState):
            self.tell(void(name))

    def step(self) -> None:
        if self.applying is not None:
            names, self.applying = self.applying.transfers, None
            self.tell(act.StepDone(model="net", transfers=names, step_norm=1.0))

    def refuse(self) -> None:
        if self.applying is not None:
            (first, *rest), self.applying = self.applying.transfers, None
            blamed, spoilt = (tuple(rest[:1]), (first,)) if rest else ((first,), ())
            self.tell(
                act.StepRefused(model="net", transfers=(first, *rest), detail="NaN", culprits=blamed, spoilt=spoilt)
            )

    def begin_term(self) -> None:
        self.epoch += 1
        self.tell(act.TermBegan(term=self.epoch))

    def here(self, *states: TransferState) -> TransferId | None:
        names = [name for name, t in self.stage.model.incoming.transfers.items() if t.state in states]
        return self.data.draw(st.sampled_from(names)) if names else None

    # What must hold

    def tell(self, event) -> None:
        for action in self.stage.tell(event):
            self.check(action)
        transfers = self.stage.model.incoming.transfers
        self.granted = {name: number for name, number in self.granted.items() if name in transfers}

    def check(self, action: act.Action) -> None:
        match action:
            case act.Grant(transfer=name, connection=connection):
                self.granted[name] = connection
            case act.ApplyStep():
                assert self.applying is None, "two steps at once"
                self.applying = action
                self.in_turn(action)
            case act.Report(event=CommitsReported(commits=commits), again=False):
                for commit in commits:
                    tau = commit.version.number - 1 - self.bases[commit.update]
                    assert tau == commit.tau <= (0 if self.synchronous else TAU_MAX), commit
                    self.settle(commit.update, Committed(version=commit.version, tau=commit.tau))
                versions = [commit.version.number for commit in commits]
                first = versions[0] if self.synchronous else versions[0] + len(commits) - 1
                assert versions[-1] == first == self.stage.model.version.number
            case act.Report(
                event=TransferEnded(transfer=name, end=TransferEnd.DISCARDED, cause=cause, detail=detail), again=False
            ):
                assert isinstance(name, UpdateId), "a sum was settled"
                assert cause is not None
                self.settle(name, Dropped(cause=cause, detail=detail))

    def in_turn(self, action: act.ApplyStep) -> None:
        incoming = self.stage.model.incoming
        seqs = {incoming.transfers[name].seq for name in action.transfers}
        assert len(seqs) == 1
        assert min(t.seq for t in incoming.transfers.values()) == seqs.pop(), "applied before its turn"

    def settle(self, name: UpdateId, outcome: Committed | Dropped) -> None:
        assert name not in self.outcomes, f"{name} was settled twice: {self.outcomes[name]}, {outcome}"
        self.outcomes[name] = outcome

    def calm(self) -> None:
        """Let all that is here be committed, and void the rest."""
        for _ in range(100):
            self.step()
            if not (transfers := self.stage.model.incoming.transfers):
                return
            for name in [name for name, t in transfers.items() if not t.is_complete]:
                self.tell(void(name))
            for name, transfer in list(transfers.items()):
                if transfer.parts > 1 and transfer.state is TransferState.RECEIVED:
                    again = expect(transfer.members[0].update, transfer.seq, parts=1)
                    self.tell(replace(again, transfer=name, members=transfer.members))
        raise AssertionError(f"it never ends: {self.stage.model.incoming.transfers}")


EVENTS = [
    *[Storm.expect_update, Storm.expect_sum] * 2,
    *[Storm.offer, Storm.finish, Storm.step] * 4,
    Storm.break_off,
    Storm.void,
    Storm.refuse,
    Storm.begin_term,
]


@pytest.mark.parametrize("method", [Method.ASYNCHRONOUS, Method.SYNCHRONOUS])
@given(data=st.data())
@settings(deadline=None)
def test_every_update_is_settled_at_most_once_in_its_turn_and_within_its_bound(method, data):
    storm = Storm(data, method)
    for event in data.draw(st.lists(st.sampled_from(EVENTS), min_size=20, max_size=80)):
        event(storm)
    storm.calm()
    applied = {u for u, outcome in storm.outcomes.items() if isinstance(outcome, Committed)}
    assert applied == {u for u in UPDATES if isinstance(storm.stage.model.applied.outcome(u), Committed)}
    if not storm.synchronous:
        assert storm.stage.model.version.number == len(applied)
