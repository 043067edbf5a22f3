"""How a job with a barrier or a slack begins: with as many workers as it says, or with whoever comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    InitialReceived,
    MemberLeft,
    MemberSilent,
    ModelVersion,
    Refuse,
    RefuseReason,
    Send,
    Welcome,
)
from tests.scheduler.stage import SPEC, Stage, holds, initial, push

METHODS = pytest.mark.parametrize("method", [Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS])


def spec_of(method: Method, workers: int = 3):
    return replace(SPEC, method=method, tau_max=None, workers=workers)


def staged(method: Method, *workers: str, together: int = 3) -> Stage:
    return Stage(silence_ns=10**9).trained(*workers, spec=spec_of(method, together))


def senders(instructions):
    return sorted(i.to for i in instructions if isinstance(i, Send))


@METHODS
def test_nothing_is_planned_before_all_have_joined_and_then_all_that_waits(method):
    stage = staged(method, "a", "b")
    assert stage.ask(push("a")) + stage.ask(push("b")) == []
    assert stage.state.next_wakeup_ns(stage.now_ns) is None
    assert stage.pushes.missing == 1
    stage.worker("c", spec=spec_of(method))
    assert stage.pushes.missing == 0
    assert senders(stage.ask(push("c"))) == ["a", "b", "c"]


@METHODS
def test_initial_weights_wait_for_nobody(method):
    stage = Stage()
    stage.server()
    stage.worker("a", spec=spec_of(method))
    (sent,) = [i for i in stage.ask(initial("a")) if isinstance(i, Send)]
    assert sent.to == "a"
    stage.tell(InitialReceived(server="s", model="net", version=ModelVersion(1, 0)))
    assert stage.ask(push("a", 1)) == []


@METHODS
def test_once_they_have_joined_those_who_are_left_go_on(method):
    stage = staged(method, "a", "b", "c")
    stage.tell(MemberLeft(name="c", incarnation=1))
    assert stage.pushes.missing == 0
    assert senders(stage.tell(push("a")) + stage.tell(push("b")) + stage.tick()) == ["a", "b"]


@METHODS
def test_a_worker_that_left_before_is_missing_again_and_a_silent_one_is_not(method):
    stage = staged(method, "a", "b")
    stage.tell(MemberSilent(name="b", incarnation=1))
    assert stage.pushes.missing == 1
    stage.tell(MemberLeft(name="b", incarnation=1))
    assert stage.pushes.missing == 2


@METHODS
def test_without_a_number_whoever_comes_first_begins(method):
    stage = staged(method, "a", together=0)
    assert senders(stage.ask(push("a"))) == ["a"]


@METHODS
def test_a_new_scheduler_waits_no_more_once_iterations_were_made(method):
    stage, spec = Stage(term=2, silence_ns=10**9), spec_of(method)
    stage.server(held=(spec,))
    stage.tell(holds(5, spec=spec))
    stage.worker("a", spec=spec)
    assert stage.pushes.missing == 0


@METHODS
def test_a_model_from_a_checkpoint_begins_together_again(method):
    stage, spec = Stage(term=2, silence_ns=10**9), spec_of(method)
    stage.server(held=(replace(spec, workers=0),))
    stage.tell(holds(5, spec=replace(spec, workers=0), epoch_base=5))
    stage.worker("a", spec=spec)
    assert stage.pushes.missing == 2


@METHODS
def test_workers_that_count_differently_are_refused_and_one_that_does_not_say_is_not(method):
    stage = staged(method, "a")
    (refusal,) = stage.worker("b", spec=spec_of(method, 4))
    assert isinstance(refusal, Refuse)
    assert refusal.cause is RefuseReason.OPTIONS_DIFFER
    assert any(isinstance(i, Welcome) for i in stage.worker("c", spec=spec_of(method, 0)))
    assert stage.pushes.missing == 1


def test_an_asynchronous_model_has_no_such_number():
    with pytest.raises(ConfigError, match="workers=2 with method asynchronous"):
        replace(SPEC, workers=2)
