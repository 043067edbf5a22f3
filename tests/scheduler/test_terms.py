"""Two schedulers at once: which is the newer, and that the older decides nothing from the moment it learns of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import NO_TERM, Role, Term
from mlfabric.protocol import MemberJoined, Refuse, RefuseReason, TermShown, Tick, Welcome
from mlfabric.protocol.lineage import name_of_epoch
from mlfabric.scheduler.members.terms import Verdict, verdict
from mlfabric.scheduler.runner import next_term
from tests.scheduler.stage import SPEC, Stage, member, push

terms = st.builds(Term, st.integers(0, 3), st.integers(0, 3))


def joining(name: str, seen: Term, role: Role = Role.WORKER) -> MemberJoined:
    spec = SPEC if role is Role.WORKER else None
    return MemberJoined(member=replace(member(name, role), seen=seen), spec=spec)


@pytest.mark.parametrize(
    ("own", "seen", "may_rise", "wanted"),
    [
        (Term(5, 1), NO_TERM, False, Verdict.STAYS),
        (Term(5, 1), Term(5, 1), False, Verdict.STAYS),
        (Term(5, 1), Term(4, 9), False, Verdict.STAYS),
        (Term(5, 1), Term(6, 0), False, Verdict.FENCED),
        (Term(5, 1), Term(6, 0), True, Verdict.RISES),
        (Term(5, 1), Term(5, 2), False, Verdict.FENCED),
        (Term(5, 2), Term(5, 1), False, Verdict.RISES),
        (Term(5, 1), Term(5, 2), True, Verdict.RISES),
    ],
)
def test_the_greater_term_is_the_newer_scheduler_and_who_serves_nobody_may_rise(own, seen, may_rise, wanted):
    assert verdict(own, seen, may_rise=may_rise) is wanted


@given(one=terms, other=terms)
def test_of_two_schedulers_that_serve_members_exactly_one_is_fenced_or_rises(one: Term, other: Term):
    found = {verdict(one, other, may_rise=False), verdict(other, one, may_rise=False)}
    if one == other:
        assert found == {Verdict.STAYS}
    elif one.number == other.number:
        assert found == {Verdict.RISES, Verdict.FENCED}, "a term is in use twice: the winner takes another one"
    else:
        assert found == {Verdict.STAYS, Verdict.FENCED}


def test_who_has_been_succeeded_refuses_everybody_and_decides_nothing_any_more():
    stage = Stage(term=5)
    stage.state.context.numbers.last_server_epoch = 0
    stage.trained("w1", "w2")
    assert stage.tell(push("w1")) == []
    (refused,) = stage.state.handle(joining("w3", Term(6, 0)), stage.now_ns)
    assert refused == Refuse(
        to="w3",
        cause=RefuseReason.FENCED,
        reason="this scheduler, of term 5, was shown term 6: it has been succeeded, and ends",
    )
    assert stage.state.next_wakeup_ns(stage.now_ns) is None
    assert stage.tell(Tick()) == []
    (refused,) = stage.state.handle(joining("w4", NO_TERM), stage.now_ns)
    assert isinstance(refused, Refuse)


def test_who_has_just_begun_says_that_it_rises_before_it_admits_anybody():
    stage = Stage(term=5)
    (refused,) = stage.state.handle(joining("s", Term(7, 3), Role.SERVER), stage.now_ns)
    assert isinstance(refused, Refuse)
    assert (stage.state.verdict, stage.state.seen) == (Verdict.RISES, Term(7, 3))


def test_who_serves_nobody_and_is_shown_a_newer_one_by_a_passer_by_ends():
    stage, verdicts = Stage(term=5), []
    for seen in (Term(4, 9), Term(6, 0)):
        assert stage.tell(TermShown(seen=seen)) == []
        verdicts.append(stage.state.verdict)
    assert verdicts == [Verdict.STAYS, Verdict.FENCED]


def test_members_of_earlier_schedulers_are_let_in():
    stage = Stage(term=5)
    answers = stage.state.handle(joining("s", Term(4, 3), Role.SERVER), stage.now_ns)
    assert [type(answer) for answer in answers] == [Welcome]


@pytest.mark.parametrize("full", [False, True], ids=["", "having named more epochs than a term has room for"])
def test_a_scheduler_rises_above_the_term_that_the_epoch_of_a_checkpoint_is_of_unless_it_is_its_own(full):
    stage = Stage(term=5).trained("w1")
    stage.state.context.numbers.last_server_epoch = name_of_epoch(6 if full else 5, 3)
    own = stage.state.context.numbers.next_server_epoch()
    for epoch, wanted in ((own, Verdict.STAYS), (name_of_epoch(7, 3), Verdict.RISES)):
        came = joining(f"from {epoch}", NO_TERM, Role.SERVER)
        stage.state.handle(replace(came, held=(replace(SPEC, name="other"),), server_epochs=(epoch,)), stage.now_ns)
        assert stage.state.verdict is wanted
    assert stage.state.seen.number == 7


def test_an_epoch_is_above_the_file_s_the_clock_s_and_what_members_have_seen(tmp_path):
    first = next_term(tmp_path)
    far = first + 10**9
    (tmp_path / "epoch").write_text(f"{far}\n")
    assert next_term(tmp_path) == far + 1
    assert next_term(tmp_path, far + 7) == far + 8
    assert int((tmp_path / "epoch").read_text()) == far + 8
    assert next_term(None, far) == far + 1
    assert next_term(None) < far
