"""What a replica takes, applies and reports: exact actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import (
    AppliedIds,
    Expect,
    HostModel,
    Logged,
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
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.replica_actions import ApplyPrefix, Part, PlantSeed, PrefixApplied, PrefixRefused, SeedPlanted
from mlfabric.server.replica_state import ReplicaState
from mlfabric.transfer.offers import EARLY_WAIT_NS
from tests.bare import Scene
from tests.server import stage as on_stage
from tests.server.stage import SIZE, SPEC, commit, get, member, offer, update, want

SEED = SumId(1, 0)


class Stage(Scene):
    """One replica that follows one model."""

    def __init__(self, version: int = 0, **fields) -> None:
        super().__init__(ReplicaState("r"))
        self.spec = replace(SPEC, **fields)
        self.tell(HostModel(to="r", spec=self.spec, reason=""))
        self.seed(version)

    @property
    def model(self):
        return self.state.models["net"]

    def seed(self, version: int, term: int = 1, name: SumId = SEED, applied: tuple[AppliedIds, ...] = ()) -> list[Any]:
        self.tell(expect(name, term=term, kind=UpdateKind.STATE, members=(update("seed"),)))
        held = ServerHolds(
            server="s", spec=self.spec, version=ModelVersion(1, version), initialised=True, applied=applied
        )
        self.tell(offer(name, seed=act.SeedOffered(holds=held, steps=0)))
        plants = self.tell(act.PayloadReceived(transfer=name, connection=1))
        assert isinstance(plants[-1], PlantSeed)
        return self.tell(SeedPlanted(model="net", transfer=name))

    def bring(self, name: TransferId, *members: UpdateId, term: int = 1) -> list[Any]:
        self.tell(expect(name, term=term, members=members or (name,)), offer(name))
        return self.tell(act.PayloadReceived(transfer=name, connection=1))

    def log(self, first: int, *members: UpdateId, same_version: bool = False) -> list[Any]:
        commits = tuple(commit(name, first + (0 if same_version else n)) for n, name in enumerate(members))
        return self.tell(Logged(to="r", model="net", commits=commits, reason=""))


def expect(name: TransferId, term: int = 1, members=(), **fields) -> Expect:
    """Order a replica to take in what has these members."""
    order = on_stage.expect(update("a"), term, to="r", tau_max=0, ticket=str(name).encode(), **fields)
    return replace(order, transfer=name, members=tuple(member(one, epoch=0) for one in members))


def applied(actions: list[Any]) -> list[ApplyPrefix]:
    return [a for a in actions if isinstance(a, ApplyPrefix)]


def reports(actions: list[Any]) -> list[Any]:
    return [a.event for a in actions if isinstance(a, act.Report)]


A0, A1, B0, B1 = update("a", 0), update("a", 1), update("b", 0), update("b", 1)
W1, W2 = SumId(1, 1), SumId(1, 2)


def test_what_is_offered_is_granted_and_answered_once_it_is_here():
    stage = Stage()
    stage.tell(expect(A0, members=(A0,)))
    assert stage.tell(offer(A0)) == [act.Grant(transfer=A0, connection=1, size_bytes=SIZE)]
    assert stage.tell(act.PayloadReceived(transfer=A0, connection=1)) == [
        act.Answer(connection=1, outcomes=()),
        act.Report(event=TransferEnded(member="r", model="net", transfer=A0, end=TransferEnd.RECEIVED)),
        act.Report(event=ReplicaReported(replica="r", model="net", term=1, version=ModelVersion(1, 0), held=(A0,))),
    ]


def test_nothing_is_applied_before_it_is_in_the_log():
    stage = Stage()
    assert not applied(stage.bring(A0))
    (order,) = applied(stage.log(1, A0))
    assert order.parts == (Part(transfer=A0, place=1),)
    assert (order.lrs, order.version) == ((0.1,), ModelVersion(1, 1))


def test_the_longest_prefix_is_applied_that_is_here_completely():
    stage = Stage()
    stage.log(1, A0, B0, A1)
    stage.bring(B0)
    (order,) = applied(stage.bring(A0))
    assert order.parts == (Part(transfer=A0, place=1), Part(transfer=B0, place=2))
    assert order.version.number == 2
    found = stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 2)))
    assert [a.transfer for a in found if isinstance(a, act.Forget)] == [A0, B0]
    assert reports(found) == [ReplicaReported(replica="r", model="net", term=1, version=ModelVersion(1, 2))]


def test_no_window_straddles_the_end_of_what_is_applied():
    stage = Stage()
    stage.log(1, B0, A0, B1, A1)
    assert not applied(stage.bring(W1, A0, A1))
    (order,) = applied(stage.bring(B0))
    assert order.parts == (Part(transfer=B0, place=1),)
    stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 1)))
    (order,) = applied(stage.bring(B1))
    assert order.parts == (Part(transfer=B1, place=2), Part(transfer=W1, place=3))


def test_a_window_that_reaches_beyond_the_log_waits():
    stage = Stage()
    stage.log(1, A0)
    assert not applied(stage.bring(W1, A0, A1))
    assert applied(stage.log(2, A1))


def test_two_windows_that_overlap_are_applied_together_or_not_at_all():
    stage = Stage()
    stage.log(1, A0, B0, A1, B1)
    stage.bring(W1, A0, A1)
    (order,) = applied(stage.bring(W2, B0, B1))
    assert order.parts == (Part(transfer=W1, place=3), Part(transfer=W2, place=4))


def test_one_thing_is_applied_at_a_time():
    stage = Stage()
    stage.log(1, A0, B0)
    assert applied(stage.bring(A0))
    assert not applied(stage.bring(B0))
    assert applied(stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 1))))


def test_adam_s_groups_are_applied_one_by_one_as_the_primary_did():
    stage = Stage(rule=RuleSpec(kind=RuleKind.ADAM))
    stage.log(1, A0, B0)
    stage.log(3, A1)
    stage.bring(A1)
    stage.bring(A0)
    (order,) = applied(stage.bring(B0))
    assert [part.transfer for part in order.parts] == [A0, B0]
    (later,) = applied(stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 2))))
    assert [part.transfer for part in later.parts] == [A1]


def test_an_iteration_is_one_version_and_each_update_has_its_share_in_it():
    stage = Stage(method=Method.SYNCHRONOUS)
    stage.log(1, A0, B0, same_version=True)
    stage.bring(A0)
    (order,) = applied(stage.bring(B0))
    assert order.parts == (Part(transfer=A0, place=1, share=0.5), Part(transfer=B0, place=1, share=0.5))
    assert order.lrs == (0.1,)


def test_a_seed_has_in_it_what_was_applied_before_and_goes_on_with_the_rest():
    stage = Stage()
    stage.log(1, A0, B0, A1)
    stage.bring(B0)
    stage.bring(A1)
    one = AppliedIds(worker="a", incarnation=1, low=1, recent=())
    other = AppliedIds(worker="b", incarnation=1, low=0, recent=((0, ModelVersion(1, 2), 0),))
    found = stage.seed(2, term=2, name=SumId(1, 9), applied=(one, other))
    assert B0 not in stage.model.transfers
    (order,) = applied(found)
    assert order.parts == (Part(transfer=A1, place=1),)
    assert reports(found)[-1].term == 2


def test_a_seed_makes_windows_of_earlier_terms_useless():
    stage = Stage()
    stage.bring(W1, A0, A1)
    stage.seed(2, term=2, name=SumId(1, 9))
    assert not stage.model.transfers


def test_after_a_gap_in_the_log_only_a_seed_helps():
    stage = Stage()
    stage.bring(A0)
    assert not applied(stage.log(2, A0))
    assert applied(stage.seed(1, term=2, name=SumId(1, 9)))


def test_steps_that_cannot_be_made_are_a_hole():
    stage = Stage()
    stage.log(1, A0)
    stage.bring(A0)
    found = stage.tell(PrefixRefused(model="net", detail="NaN"))
    assert NotKept(member="r", model="net", term=1, detail="NaN") in reports(found)


def test_what_breaks_is_offered_again():
    stage = Stage()
    stage.tell(expect(A0, members=(A0,)), offer(A0))
    found = stage.tell(act.TransferBroken(transfer=A0, connection=1, detail=""))
    assert found == [act.Forget(transfer=A0)]
    assert isinstance(stage.tell(offer(A0, connection=2))[0], act.Grant)


def test_what_is_here_is_not_taken_twice():
    stage = Stage()
    stage.bring(A0)
    assert stage.tell(offer(A0, connection=2)) == [act.Answer(connection=2, outcomes=())]


def test_what_is_here_is_said_again_to_a_scheduler_that_comes_to_know_the_model():
    stage = Stage()
    stage.bring(A0)
    told = reports(stage.tell(HostModel(to="r", spec=stage.spec, reason="")))
    assert [(report.version, report.held) for report in told] == [(ModelVersion(1, 0), (A0,))]


def test_an_order_that_comes_again_once_its_transfer_was_used_is_not_waited_for():
    stage = Stage()
    stage.bring(A0)
    stage.log(1, A0)
    stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 1)))
    stage.tell(expect(SEED, kind=UpdateKind.STATE, members=(update("seed"),)))
    stage.tell(expect(A0, members=(A0,)))
    assert not stage.state.models["net"].transfers


def test_an_offer_that_nobody_announced_and_a_want_are_refused():
    stage = Stage()
    assert stage.tell(want(get("w"), 3)) == [act.Refuse(connection=3, reason="")]
    stage.tell(offer(A0))
    assert stage.tick(EARLY_WAIT_NS / 1e9) == [act.Refuse(connection=1, reason="")]


def test_what_is_of_another_size_is_refused():
    stage = Stage()
    stage.tell(expect(A0, members=(A0,)))
    found = stage.tell(replace(offer(A0), length=SIZE + 16))
    assert isinstance(found[0], act.Refuse)


def test_a_voided_update_is_forgotten_unless_it_is_being_applied():
    stage = Stage()
    stage.bring(A0)
    assert stage.tell(Void(to="r", model="net", transfer=A0, reason=""))[0] == act.Forget(transfer=A0)
    stage.log(1, B0)
    assert applied(stage.bring(B0))
    assert stage.tell(Void(to="r", model="net", transfer=B0, reason="")) == []


def test_a_new_scheduler_finds_the_model_and_what_the_primary_may_have_counted_on():
    stage = Stage(version=3)
    stage.bring(A0)
    stage.bring(SumId(1, 7), B0)
    stage.tell(expect(B1, members=(B1,)), act.TermBegan(term=5))
    assert list(stage.model.transfers) == [A0]
    assert stage.state.holds() == [
        ReplicaReported(replica="r", model="net", term=1, version=ModelVersion(1, 3), held=(A0,))
    ]


@pytest.mark.parametrize("forgets_the_log", [act.TermBegan(term=5), 7], ids=["a new scheduler", "a gap"])
def test_what_is_being_applied_is_known_of_though_the_log_is_forgotten_meanwhile(forgets_the_log):
    stage = Stage()
    stage.bring(A0)
    logged = replace(commit(A0, 1), samples=((3, 5),))
    assert applied(stage.tell(Logged(to="r", model="net", commits=(logged,), reason="")))
    if isinstance(forgets_the_log, int):
        stage.log(forgets_the_log, B0)
    else:
        stage.tell(forgets_the_log)
    stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 1)))
    assert stage.model.version == (1, 1)
    assert stage.model.applied.knows(A0)
    assert stage.model.samples.counts().trained == ((3, 5),)


def test_a_group_that_is_logged_twice_counts_once():
    stage = Stage()
    stage.log(1, A0)
    stage.log(2, B0)
    stage.log(2, B0)
    stage.bring(B0)
    (order,) = applied(stage.bring(A0))
    assert order.version.number == 2


def test_a_seed_that_is_older_than_the_model_does_not_take_it_back():
    stage = Stage()
    stage.tell(expect(W2, term=2, kind=UpdateKind.STATE, members=(update("seed"),)))
    held = ServerHolds(server="s", spec=stage.spec, version=ModelVersion(1, 0), initialised=True)
    stage.tell(offer(W2, connection=2, seed=act.SeedOffered(holds=held, steps=0)))
    stage.log(1, A0)
    stage.bring(A0)
    stage.tell(PrefixApplied(model="net", version=ModelVersion(1, 1)))
    found = stage.tell(act.PayloadReceived(transfer=W2, connection=2))
    assert not any(isinstance(action, PlantSeed) for action in found)
    assert reports(found)[-1] == ReplicaReported(replica="r", model="net", term=2, version=ModelVersion(1, 1))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_in_whatever_order_things_come_the_same_is_applied(order: tuple[int, ...]):
    stage = Stage()
    names = [A0, A1, B0, B1]
    stage.log(1, *names)
    parts: list[TransferId] = []
    for place in order:
        for found in applied(stage.bring(names[place])):
            parts += [part.transfer for part in found.parts]
            for later in applied(stage.tell(PrefixApplied(model="net", version=found.version))):
                parts += [part.transfer for part in later.parts]
                stage.tell(PrefixApplied(model="net", version=later.version))
    assert parts == names
